/* process.h - one process of a container, its init or an exec: stdio, start, signals, exit.
 *
 *     NotCreated ─► Created ─► Running ─► Terminated
 *
 * Life: new -> created -> start -> … exit … -> forget. A process steps its own states only and
 * reports each step to its container (container_process_changed), which decides what it means.
 * Counted: fibers that wait for a process outlive its deletion.
 *
 * open_io, start, signal, resize and wait wait for the guest or the client until ctx ends; all
 * others never wait. */
#pragma once
#include "base/clock.h"
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct container;
struct ctx;
struct err;
struct fsm;
struct jsw;
typedef struct json_t json_t;
struct process;
struct saved;

enum process_state {
    PROCESS_ST_NOT_CREATED,
    PROCESS_ST_CREATED,
    PROCESS_ST_RUNNING,
    PROCESS_ST_TERMINATED,
    PROCESS_ST_COUNT
};
extern const struct fsm process_fsm;

#define PROCESS_DRAIN_LIMIT (10 * NS_PER_S) /* for output, after the guest reported the exit */
#define PROCESS_KILL_LIMIT (20 * NS_PER_S)  /* for the guest to act on a signal */
#define PROCESS_SIGNAL_MAX 64

/* Where stdin comes from, where stdout and stderr go; "" or NULL: nowhere. */
struct stdio_paths {
    const char *in, *out, *err;
    bool terminal;
};

/* --- for clients --- */

/* What a client sees of a process; strings borrowed. */
enum process_status {
    PROCESS_UNKNOWN,
    PROCESS_CREATED,
    PROCESS_RUNNING,
    PROCESS_STOPPED,
    PROCESS_PAUSED
}; /* containerd's numbers */
struct process_view {
    const char *container_id, *exec_id, *bundle;
    struct stdio_paths stdio;
    uint32_t pid, exit_status;
    uint64_t exited_wall_ns; /* 0: not yet */
    enum process_status status;
};
void process_view(const struct process *p, struct process_view *ret);
/* Until it has ended; at once afterwards. Valid before start. Cancelled: -1, never a made-up exit.
 */
int process_wait(struct ctx *ctx, struct process *p, struct process_view *ret, struct err *err);

/* --- for its container --- */

/* exec_id "": init. Takes oci_process, of an exec; borrows c until process_forget. */
struct process *process_new(struct container *c, const char *exec_id,
                            const struct stdio_paths *stdio, json_t *oci_process);
struct process *process_ref(struct process *p);
void process_unref(struct process *p);
AUTO_DEFINE(struct process *, process_unref);
/* Its container has deleted it: closes its stdio, wakes the fibers that wait for its exit, drops
 * the container's reference. */
void process_forget(struct process *p);

enum process_state process_state(const struct process *p);
bool process_is_init(const struct process *p);
bool process_is_starting(const struct process *p);
bool process_is_alive(const struct process *p); /* it runs, or is being started */
const char *process_exec_id(const struct process *p);
uint32_t process_guest_pid(const struct process *p);
/* Its state, in an object that is open. */
void process_describe(const struct process *p, struct jsw *w);

int process_open_io(struct ctx *ctx, struct process *p, struct err *err);
void process_close_io(struct process *p);
void process_close_stdin(struct process *p);
void process_created(struct process *p);
/* Asks the guest; afterwards it is Running, its start is published and its exit watched. A failure
 * ends it. */
int process_start(struct ctx *ctx, struct process *p, struct err *err);
/* signo: 1 to 64. While it is being started: sent after that. Ended: ERR_NOT_FOUND. */
int process_signal(struct ctx *ctx, struct process *p, uint32_t signo, struct err *err);
int process_resize(struct ctx *ctx, struct process *p, uint16_t rows, uint16_t cols,
                   struct err *err);
/* Its end, however it is known; the first call counts. publish: its exit. */
void process_end(struct process *p, uint32_t status, bool published);

/* process_save.c: one that is Created, Running or Terminated. Reading: of a container that is read
 * already, in a VM that is. NULL: none. */
void process_saved(struct saved *s, uint32_t field, struct container *c, struct process **p);
