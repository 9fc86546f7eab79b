/* sandbox.h - containerd's Sandbox API: one VM and one pod, which are there before the first
 * container of a client and stay until the sandbox is stopped. A container of ours, which clients
 * do not see, holds the pod; on the host its anchor's pid stands for the sandbox.
 *
 *     NotCreated ─► Created ─► Ready ─► Stopped ─► ShutDown
 *
 * Life: create -> start -> … -> stop, or the end of VM, holder or anchor -> shutdown. One per shim.
 * Gate: start and shutdown, one at a time. stop enters none: it ends a start under way. create,
 * start, stop, wait, ping, stats and shutdown wait until ctx ends; the others never do. Everything
 * but create is ERR_NOT_FOUND for another id, or before create. */
#pragma once
#include "base/mem.h"
#include "host/net/net.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct fsm;
struct registry;
struct sandbox;
struct saved;

enum sandbox_state {
    SANDBOX_NONE,
    SANDBOX_CREATED,
    SANDBOX_READY,
    SANDBOX_STOPPED, /* or its start failed */
    SANDBOX_SHUT,
    SANDBOX_STATE_COUNT
};
extern const struct fsm sandbox_fsm;

/* All borrowed and copied. */
struct sandbox_create {
    const char *id, *bundle;
    const char *netns; /* of the pod on the host, CNI done; "": none */
    /* An OCI spec, of which hostname, annotations and of linux cgroupsPath, resources, sysctl and
     * namespaces are taken; nothing needs to be there. NULL: config.json of the bundle, if there
     * is one. */
    const char *spec;
    const char *const *dns_servers, *const *dns_search; /* NULL-terminated; may be NULL */
};
/* Waits for the file. Nothing is made yet. The same again: success. Another: ERR_EXISTS. */
int sandbox_create(struct ctx *ctx, struct registry *r, const struct sandbox_create *c,
                   struct err *err);

struct sandbox_view {
    enum sandbox_state state;
    uint32_t pid;             /* on the host; 0 once it is gone */
    uint32_t exit_status;     /* 0 only if its end was asked for */
    uint64_t created_wall_ns; /* of the start; 0: not yet, as the next */
    uint64_t exited_wall_ns;
};
int sandbox_view(const struct registry *r, const char *id, struct sandbox_view *ret,
                 struct err *err);
/* Waits: VM, guest, network. Ready: the same answer at once. A failure: Stopped, all released. */
int sandbox_start(struct ctx *ctx, struct registry *r, const char *id, struct sandbox_view *ret,
                  struct err *err);
/* Ends all containers and the VM and returns when the pod's network and mounts are free. grace: for
 * containers, which get a SIGTERM first; 0: none. Stopped: success. If ctx ends first, the stop
 * continues in the background. */
int sandbox_stop(struct ctx *ctx, struct registry *r, const char *id, uint64_t grace_ns,
                 struct err *err);

/* Until it is stopped, however that came; at once afterwards. */
int sandbox_wait(struct ctx *ctx, struct registry *r, const char *id, struct sandbox_view *ret,
                 struct err *err);
/* Asks the guest. ERR_STATE: it is not ready. */
int sandbox_ping(struct ctx *ctx, struct registry *r, const char *id, struct err *err);
/* Of the whole VM, as the host sees it; what only the guest knows, if it answers in time. */
struct sandbox_nic {
    char name[16];
    struct net_counters stats;
};
struct sandbox_stats {
    uint64_t cpu_ns, rss_bytes, memory_bytes; /* memory: what the guest was given */
    bool guest;                               /* it has answered: */
    uint64_t pids, oom_kills;                 /* of all containers */
    struct sandbox_nic *nics;                 /* of the pod */
    size_t n_nics;
};
/* Waits for the guest, bounded. Release *ret if 0. */
int sandbox_stats(struct ctx *ctx, struct registry *r, const char *id, struct sandbox_stats *ret,
                  struct err *err);
void sandbox_stats_release(struct sandbox_stats *s);
AUTO_VALUE(struct sandbox_stats, sandbox_stats_release);
/* Stops it if need be and forgets its containers; the shim may leave then. Repeatable; fails only
 * if something could not be released. */
int sandbox_shutdown(struct ctx *ctx, struct registry *r, const char *id, struct err *err);

/* --- for the registry and its containers --- */

/* Created and not shut down. */
bool sandbox_alive(const struct registry *r);
/* Whether a client may create this container now: there is no sandbox, or a ready one. */
int sandbox_admits(const struct registry *r, const char *id, struct err *err);
const char *sandbox_bundle(const struct registry *r); /* of the one that there is */
/* For registry_close, when the VM is being killed: until the pod is gone too. */
int sandbox_close(struct ctx *ctx, struct registry *r, struct err *err);
void sandbox_free(struct sandbox *s);
/* sandbox_save.c: the one that there is, if it is neither being started nor stopped. Reading: after
 * the containers. */
void sandbox_saved(struct saved *s, uint32_t field, struct registry *r);
