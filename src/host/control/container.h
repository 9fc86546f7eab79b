/* container.h - one container: its files in the VM, its document, its processes.
 * States (reference/host.md §15.1 without migration): NotCreated, Created, Running, Paused,
 * Stopped, Invalid. Life: new -> create -> start -> … exit … -> delete. delete can be repeated and
 * goes on where it stopped; a container whose create failed is Invalid only until its resources
 * are back, then it is gone. Gate: create, start, delete, pause, resume, update, one at a time;
 * kill, exec registration and all queries take none and answer while the guest is stuck. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct container;
typedef struct json_t json_t;
struct ctx;
struct err;
struct fsm;
struct process;

enum container_state {
    CONTAINER_NOT_CREATED,
    CONTAINER_CREATED,
    CONTAINER_RUNNING,
    CONTAINER_PAUSED,
    CONTAINER_STOPPED,
    CONTAINER_INVALID,
    CONTAINER_STATE_COUNT
};
extern const struct fsm container_fsm, process_fsm;

/* Queries: never wait. */
const char *container_id(const struct container *c);
const char *container_pod_id(const struct container *c);
enum container_state container_state(const struct container *c);
/* exec_id "" is init. NULL with ERR_NOT_FOUND. Borrowed: gone after a wait unless looked up again.
 */
struct process *container_process(struct container *c, const char *exec_id, struct err *err);

/* Waits for gate and guest. Publishes start before it returns. */
int container_start(struct ctx *ctx, struct container *c, const char *exec_id, uint32_t *ret_pid,
                    struct err *err);
struct container_exec {
    const char *exec_id, *in, *out, *err;
    bool terminal;
    const char *process_json; /* OCI process; ERR_INVALID if NULL */
    size_t process_len;
};
/* Registers only; opens nothing. ERR_EXISTS for a used id. Publishes exec-added. */
int container_exec(struct ctx *ctx, struct container *c, const struct container_exec *e,
                   struct err *err);
/* all: every process of the container. Ended: ERR_NOT_FOUND (all: success). Returns without
 * waiting for the death. Created and not started: ends it (137 for SIGKILL), with its event. */
int container_kill(struct ctx *ctx, struct container *c, const char *exec_id, uint32_t signo,
                   bool all, struct err *err);
int container_pause(struct ctx *ctx, struct container *c, struct err *err);
int container_resume(struct ctx *ctx, struct container *c, struct err *err);
int container_resize(struct ctx *ctx, struct container *c, const char *exec_id, uint16_t rows,
                     uint16_t cols, struct err *err);
int container_close_stdin(struct container *c, const char *exec_id, struct err *err);
int container_update(struct ctx *ctx, struct container *c, const char *resources_json, size_t len,
                     struct err *err);
/* Host pids that stand for the container: the anchor's, once per process of ours. Caller frees.
 * Never empty while the container exists. */
struct container_pid {
    uint32_t pid;
    char exec_id[80];
};
int container_pids(struct container *c, struct container_pid **ret, size_t *ret_n, struct err *err);
/* LCOWMetrics of the guest; the last known ones once it has stopped. Caller unrefs, changes
 * nothing. */
int container_stats(struct ctx *ctx, struct container *c, json_t **ret, struct err *err);

/* What a client sees of a process; strings borrowed. Never waits. */
enum process_status {
    PROCESS_UNKNOWN,
    PROCESS_CREATED,
    PROCESS_RUNNING,
    PROCESS_STOPPED,
    PROCESS_PAUSED
}; /* containerd's numbers */
struct process_view {
    const char *container_id, *exec_id, *bundle, *in, *out, *err;
    bool terminal;
    uint32_t pid, exit_status;
    uint64_t exited_wall_ns; /* 0: not yet */
    enum process_status status;
};
void process_view(const struct process *p, struct process_view *ret);
/* Until it has ended; at once afterwards. Valid before start. Cancelled: -1, never a made-up exit.
 */
int process_wait(struct ctx *ctx, struct process *p, struct process_view *ret, struct err *err);
