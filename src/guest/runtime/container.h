/* container.h - the containers of the VM: created, started, waited for, deleted, through crun
 * (gcs-protocol.md §4.10, §4.11, §5). Life of one: create -> start -> (exit) -> delete; a failed
 * create leaves nothing. A failed delete keeps the container and goes on where it stopped when it
 * is repeated.
 *
 * Calls that name an unknown id: ERR_NOT_FOUND (ask containers_knows first to tell that from an
 * unknown pid); one that is still being created: ERR_ABORTED. Changing calls of one container
 * follow each other; execs and queries run at any time. All may wait unless said otherwise. */
#pragma once
#include "base/fsm.h"
#include "base/mem.h"
#include "guest/runtime/task.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct container;
struct containers;
struct nets;

enum container_state {
    CONTAINER_CREATING,
    CONTAINER_CREATED,
    CONTAINER_RUNNING,
    CONTAINER_PAUSED,
    CONTAINER_STOPPED,
    CONTAINER_GONE,
    CONTAINER_STATE_COUNT
};
enum container_event {
    CONTAINER_EV_CREATED,
    CONTAINER_EV_FAILED,
    CONTAINER_EV_STARTED,
    CONTAINER_EV_FROZEN,
    CONTAINER_EV_THAWED,
    CONTAINER_EV_EXITED,
    CONTAINER_EV_DELETED,
    CONTAINER_EV_COUNT
};
extern const struct fsm container_fsm;

#define CONTAINERS_MAX 1024
#define CONTAINER_EXECS_MAX 1024 /* of one container, exited and not yet asked for included */

enum container_end { CONTAINER_END_UNEXPECTED, CONTAINER_END_GRACEFUL, CONTAINER_END_FORCED };

struct containers_opts {
    struct loop *loop;
    struct dialer *dialer; /* borrows */
    struct nets *nets;     /* borrows; NULL: every container has a network of its own */
    struct crun *crun;     /* takes; NULL: made for the first container */
    /* Once per container, after the answer to a wait on its init went out. May not wait. */
    void (*notify)(void *arg, const char *id, const char *activity_id, enum container_end end);
    void *arg;
};
/* Caller frees. */
struct containers *containers_new(const struct containers_opts *opts);
/* Kills what runs and waits (bounded by the kernel) until it is reaped. Files stay. */
void containers_free(struct containers *cs);
AUTO_DEFINE(struct containers *, containers_free);
/* SIGTERM or SIGKILL to all inits; waits until they have exited and their output is drained, or ctx
 * ends. */
int containers_stop_all(struct ctx *ctx, struct containers *cs, bool forced, struct err *err);
bool containers_knows(const struct containers *cs, const char *id);
bool containers_has_bundle(const struct containers *cs, const char *bundle);

struct container_config {
    const char *id, *activity_id;
    const char *bundle_path, *scratch_path; /* "": none */
    const json_t *spec;
    bool privileged;
};
/* ERR_EXISTS, ERR_INVALID (the document, an id that is no name); ERR_NOT_FOUND, ERR_PERMISSION: the
 * command; else what crun said. */
int container_create(struct ctx *ctx, struct containers *cs, const struct container_config *config,
                     struct err *err);
/* Starts the init that create made. */
int container_start(struct ctx *ctx, struct containers *cs, const char *id,
                    const struct task_stdio *io, uint32_t *ret_pid, struct err *err);
/* process: an OCI process. */
int container_exec(struct ctx *ctx, struct containers *cs, const char *id, const json_t *process,
                   const struct task_stdio *io, uint32_t *ret_pid, struct err *err);

/* An exec is forgotten when this succeeds; init stays until the container is deleted. For init
 * *ret_init is the container, to be given to container_answered() when the answer has gone out or
 * was lost; else NULL. ERR_DEADLINE after timeout_ms; UINT32_MAX: for ever. */
int container_wait(struct ctx *ctx, struct containers *cs, const char *id, uint32_t pid,
                   uint32_t timeout_ms, uint32_t *ret_code, struct container **ret_init,
                   struct err *err);
void container_answered(struct container *c, bool sent);
/* Neither waits. */
int container_signal(struct containers *cs, const char *id, uint32_t pid, int signo,
                     struct err *err);
int container_resize(struct containers *cs, const char *id, uint32_t pid, uint16_t rows,
                     uint16_t cols, struct err *err);
/* SIGTERM or SIGKILL to init. ERR_UNAVAILABLE: it does not run. Never waits. */
int container_shutdown(struct containers *cs, const char *id, bool forced, struct err *err);

/* Caller frees. Neither waits. */
int container_pids(struct containers *cs, const char *id, uint32_t **ret, size_t *ret_n,
                   struct err *err);
int container_stats(struct containers *cs, const char *id, char **ret_json, struct err *err);
/* Where it writes on the scratch disk, or "". Caller frees. */
char *container_scratch(struct containers *cs, const char *id);
/* Until the kernel killed somebody in it for want of memory that was not told before (true), or it
 * has stopped. As with container_wait, *ret_held goes to container_oom_answered(). */
int container_wait_oom(struct ctx *ctx, struct containers *cs, const char *id, bool *ret_oom,
                       struct container **ret_held, struct err *err);
void container_oom_answered(struct container *c, bool sent);

int container_update(struct ctx *ctx, struct containers *cs, const char *id,
                     const json_t *resources, struct err *err);
int container_freeze(struct ctx *ctx, struct containers *cs, const char *id, bool frozen,
                     struct err *err);
/* ERR_STATE: it runs. */
int container_delete(struct ctx *ctx, struct containers *cs, const char *id, struct err *err);
