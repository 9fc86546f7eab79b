/* container.h - the containers of the VM: created, started, waited for, deleted, through crun
 * (docs/reference/gcs-protocol.md §4.10, §4.11, §5). Life of one: create -> start -> (exit) ->
 * delete; a failed create leaves nothing. A failed delete keeps the container; a repeated one
 * continues where it stopped.
 *
 * Changing calls on one container run one after another; execs and queries run at any time. All
 * that take a ctx may wait. */
#pragma once
#include "base/fsm.h"
#include "base/mem.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct container;
struct containers;
struct crun;
struct ctx;
struct dialer;
struct err;
struct loop;
struct nets;
struct ps_entry;
struct stdio_ports;

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
#define CONTAINER_EXECS_MAX                                                                        \
    1024 /* of one container, with exited ones that no wait has reported yet */

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
/* Gives back what is kept only for speed. */
void containers_trim(struct containers *cs);
AUTO_DEFINE(struct containers *, containers_free);
/* SIGTERM to all inits; waits until they have exited and their output is drained, or ctx ends. */
int containers_stop(struct ctx *ctx, struct containers *cs, struct err *err);
/* *ret_used: a container lives in this bundle. Waits for a container that is being created: its
 * layers must not be removed while crun works on them. */
int containers_look_at_bundle(struct ctx *ctx, struct containers *cs, const char *bundle,
                              bool *ret_used, struct err *err);
/* ERR_NOT_FOUND; ERR_ABORTED: it is still being created. Caller unrefs. */
struct container *containers_get(const struct containers *cs, const char *id, struct err *err);
struct container *container_ref(struct container *c);
void container_unref(struct container *c);
AUTO_DEFINE(struct container *, container_unref);

struct container_config {
    const char *id, *activity_id;
    const char *bundle_path, *scratch_path; /* "": none */
    json_t *spec;                           /* rewritten in place */
    bool privileged;
    bool holder; /* a pod's first process, by holder.h instead of crun */
};
/* ERR_EXISTS, ERR_INVALID (the document, or an invalid id); ERR_NOT_FOUND, ERR_PERMISSION: the
 * command; else what crun said. */
int container_create(struct ctx *ctx, struct containers *cs, const struct container_config *config,
                     struct err *err);
/* Starts the init that create made. */
int container_start(struct ctx *ctx, struct container *c, const struct stdio_ports *io,
                    uint32_t *ret_pid, struct err *err);
/* process: an OCI process, rewritten in place. */
int container_exec(struct ctx *ctx, struct container *c, json_t *process,
                   const struct stdio_ports *io, uint32_t *ret_pid, struct err *err);

/* As process_wait(). An exec is forgotten when this succeeds; init stays until the container is
 * deleted. If *ret_init, the caller gives a reference on c to container_answered() when the answer
 * has been sent or was lost. */
int container_wait(struct ctx *ctx, struct container *c, uint32_t pid, uint32_t timeout_ms,
                   uint32_t *ret_code, bool *ret_init, struct err *err);
void container_answered(void *container, bool sent);
/* As process_signal() and process_resize(). */
int container_signal(struct container *c, uint32_t pid, int signo, struct err *err);
int container_resize(struct container *c, uint32_t pid, uint16_t rows, uint16_t cols,
                     struct err *err);
/* SIGTERM or SIGKILL to init. ERR_UNAVAILABLE: it does not run. Never waits. */
int container_shutdown(struct container *c, bool forced, struct err *err);

/* All processes in its cgroup and below, by pid; leaders are its execs, and 0 stands for init.
 * Yields to other fibers if there are many. Caller frees. */
void container_list(const struct container *c, struct ps_entry **ret, size_t *ret_n);
/* Caller frees. Never waits. The files stay open for the next call, until containers_trim(). */
int container_stats(struct container *c, bool totals, char **ret_json, struct err *err);
/* Where it writes on the scratch disk, or "". Borrows. */
const char *container_scratch(const struct container *c);
/* Waits until the OOM killer has killed in the container, if that was not reported yet (true), or
 * until it has stopped. The caller gives a reference on c to container_oom_answered(). */
int container_wait_oom(struct ctx *ctx, struct container *c, bool *ret_oom, struct err *err);
void container_oom_answered(void *container, bool sent);

int container_update(struct ctx *ctx, struct container *c, const json_t *resources,
                     struct err *err);
int container_freeze(struct ctx *ctx, struct container *c, bool frozen, struct err *err);
/* Waits until it is created, if it is being. ERR_STATE: it runs. */
int container_delete(struct ctx *ctx, struct containers *cs, const char *id, struct err *err);
