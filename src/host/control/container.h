/* container.h - one container: its files in the VM, its document, its processes.
 *
 *     NotCreated ─► Created ─► Running ◄─► Paused ─► Stopped, or Invalid
 *
 * (docs/reference/host.md §15.1 without migration.) Life: create -> start -> … exit … -> delete. A
 * failed create leaves nothing behind; if something cannot be released, the container stays,
 * Invalid, and delete continues. delete can be repeated and continues at the step that failed.
 * Reference-counted: fibers that wait for it outlive its deletion.
 *
 * Gate: create, start, delete, freeze, update, one at a time; they wait for gate and guest
 * until ctx ends. kill, stats and list wait for the guest and take no gate. exec and all queries
 * never wait, and answer while the guest is stuck. */
#pragma once
#include "base/mem.h"
#include "host/control/process.h"
#include "oci/spec.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct container;
struct ctx;
struct err;
struct event_mount;
struct fsm;
struct jsw;
struct network_dns;
typedef struct json_t json_t;
struct pod;
struct registry;
struct saved;
struct spec;

enum container_state {
    CONTAINER_NOT_CREATED,
    CONTAINER_CREATED,
    CONTAINER_RUNNING,
    CONTAINER_PAUSED,
    CONTAINER_STOPPED,
    CONTAINER_INVALID,
    CONTAINER_STATE_COUNT
};
extern const struct fsm container_fsm;

/* --- life --- */

/* All borrowed. */
struct container_create {
    const char *id, *bundle;
    struct stdio_paths stdio;
    const struct event_mount *rootfs;
    size_t n_rootfs;
    const char *checkpoint; /* not "": ERR_UNIMPLEMENTED */
    /* Of a sandbox's own container, which clients do not see and of which nothing is published:
     * instead of the bundle's config.json; changed. And its pod's DNS, which must outlive it. */
    struct spec *spec;
    const struct network_dns *dns;
};
/* Waits: VM, files, guest. Publishes create. *ret: the caller unrefs; also after a failure, if
 * something could not be released; else NULL. */
int container_create(struct ctx *ctx, struct registry *r, const struct container_create *cc,
                     struct container **ret, struct err *err);
/* exec_id "": init. Publishes start before it returns. */
int container_start(struct ctx *ctx, struct container *c, const char *exec_id, uint32_t *ret_pid,
                    struct err *err);
struct container_exec {
    const char *exec_id;
    struct stdio_paths stdio;
    const char *process_json; /* OCI process; ERR_INVALID if NULL */
    size_t process_len;
};
/* Registers only; opens nothing. ERR_EXISTS for a used id. Publishes exec-added. */
int container_exec(struct container *c, const struct container_exec *e, struct err *err);
/* all: every process of the container; if the container holds its pod, every process of the pod.
 * Ended: ERR_NOT_FOUND (all: success). Returns without waiting for the death. Created and not
 * started: ends it (137 for SIGKILL), with its event. */
int container_kill(struct ctx *ctx, struct container *c, const char *exec_id, uint32_t signo,
                   bool all, struct err *err);
/* Every process of this container; not of its pod. */
int container_kill_alone(struct ctx *ctx, struct container *c, uint32_t signo, struct err *err);
struct container_deleted {
    uint32_t pid, exit_status;
    uint64_t exited_wall_ns;
};
/* exec_id "": the container with all it holds. Running: ERR_STATE, before anything is touched.
 * Resumable. Publishes delete last. The holder of a pod with other containers that have not ended:
 * ERR_STATE. */
int container_delete(struct ctx *ctx, struct container *c, const char *exec_id,
                     struct container_deleted *ret, struct err *err);
/* One that ends, or has ended: waits for that and deletes it. Gone already: success. */
int container_discard(struct ctx *ctx, struct container *c, struct err *err);
/* A sandbox's own, which has ended: releases it. Other containers of its pod stay. */
int container_dismiss(struct ctx *ctx, struct container *c, struct err *err);
/* Until init has ended, if it runs. Deleted meanwhile: success. */
int container_wait_end(struct ctx *ctx, struct container *c, struct err *err);
struct container *container_ref(struct container *c);
void container_unref(struct container *c);
AUTO_DEFINE(struct container *, container_unref);

/* --- while it runs --- */

int container_freeze(struct ctx *ctx, struct container *c, bool frozen, struct err *err);
int container_update(struct ctx *ctx, struct container *c, const char *resources_json, size_t len,
                     struct err *err);
/* LCOWMetrics of the guest; the last known ones once it has stopped. Caller unrefs, changes
 * nothing. */
int container_stats(struct ctx *ctx, struct container *c, json_t **ret, struct err *err);
/* Asks the guest what it uses of the scratch disk, which container_describe() then shows. */
void container_measure(struct ctx *ctx, struct container *c);

/* A process of the container, known from the guest; strings borrowed. */
struct container_listed {
    uint32_t pid; /* for clients: the anchor's for init, else CONTAINER_PID_BASE + the guest's */
    uint32_t guest_pid;  /* 0: not known */
    const char *exec_id; /* of the exec that it descends from, or is; "": init */
    const char *name;    /* printable ASCII; this and all below: "" and 0 if not known */
    uint64_t start_ns;   /* wall clock */
    uint64_t user_ns, kernel_ns, data_bytes, private_bytes, shared_bytes;
};
/* Beyond the pids of any host (GUEST_PID_MAX): clients look the pids of a list up in the host's
 * /proc and may signal them, and must find nothing there. */
#define CONTAINER_PID_BASE 1000000000u
#define CONTAINER_LIST_LIMIT (2 * NS_PER_S)
/* Init, always and first, then its other processes. Asks the guest, bounded; takes no gate. If the
 * guest does not answer, its last list, or init and the execs that run. */
void container_list(struct ctx *ctx, struct container *c,
                    void (*fn)(void *arg, const struct container_listed *l), void *arg);

/* --- queries --- */

/* What others may read. */
struct container_parts {
    char *id, *bundle; /* containerd's */
    char *guest_id;    /* registry_guest_id */
    struct pod *pod;   /* counted */
    enum container_state state;
    struct process *init; /* NULL until create got that far */
    uint32_t pid;         /* its anchor's; 0: not yet */
    char *anchor_name;    /* ledger_process_name(); NULL: the run file does not name it */
    struct spec_limits limits;
    bool listed;      /* not deleted */
    bool hidden;      /* a sandbox's own */
    bool forsaken;    /* containerd has given it up: nothing more of it is published */
    bool in_guest;    /* set before the call: true also if the guest's answer was lost */
    bool writes_host; /* through a share or a disk: the guest may hold writes back */
};
const struct container_parts *container_parts(const struct container *c);
const char *container_id(const struct container *c);
struct pod *container_pod(const struct container *c);
enum container_state container_state(const struct container *c);
bool container_has_ended(const struct container *c); /* or its create failed */
/* exec_id "" is init. NULL with ERR_NOT_FOUND. Borrowed: gone after a wait unless looked up again.
 */
struct process *container_process(struct container *c, const char *exec_id, struct err *err);
/* init, then its execs. */
void container_each(const struct container *c, void (*fn)(void *arg, const struct process_view *v),
                    void *arg);
/* All that is known of it, as an object. */
void container_describe(const struct container *c, struct jsw *w);

/* container_save.c, in a message that is open: one whose create has ended. Reading: *c is made; its
 * pod is joined, which is read already, and its fibers are started. */
void container_saved(struct saved *s, struct registry *r, struct pod *const *pods, size_t n_pods,
                     struct container **c);

/* --- what others report to it; it decides what that means --- */

/* The registry has dropped it. */
void container_forget(struct container *c);
/* containerd has given it up. */
void container_forsake(struct container *c);
/* The VM is gone. Ends what has no watcher. */
void container_vm_died(struct container *c, bool killed);
/* One of its processes has started or ended. */
void container_process_changed(struct container *c, struct process *p);
/* One of its processes is about to end with this status; lost: with the VM or the guest. Waits
 * until that may be published, bounded. */
void container_process_exits(struct ctx *ctx, struct container *c, struct process *p,
                             uint32_t status, bool lost);
