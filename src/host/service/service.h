/* service.h - containerd's Task service, under its v2 and v3 names, its Sandbox and Streaming
 * services; hcsshim's ShimDiag service; and lcow's own, for lcow(1) and `start`. A handler checks
 * the call, calls one controller and answers. Holds no state of containers; records whether
 * Shutdown was called.
 *
 * Life: new -> add to a server -> refuse (when leaving) -> free after the server's shutdown. Never
 * waits outside its handlers. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct Any;
struct ctx;
struct err;
struct loop;
struct registry;
struct rpc_server;
struct saved;
struct service;

#define SERVICE_TASK_V2 "containerd.task.v2.Task"
#define SERVICE_TASK_V3 "containerd.task.v3.Task"
#define SERVICE_SANDBOX "containerd.runtime.sandbox.v1.Sandbox"
#define SERVICE_STREAMING "containerd.services.streaming.v1.Streaming"
#define SERVICE_DIAG "containerd.runhcs.v1.diag.ShimDiag"
#define SERVICE_LCOW "lcow.v1.Shim"
#define SERVICE_ID_MAX 76 /* bytes of a container's, exec's or namespace's name */

/* Upgrade (api/lcow.proto): the request, and the answer. */
struct service_upgrade {
    const char *program;
    bool dry_run;
    uint64_t token;
    char *ret_from, *ret_to; /* to an array of SERVICE_VERSION_SIZE */
    uint64_t *ret_pause_ns;
};
#define SERVICE_VERSION_SIZE 64

struct service_opts {
    struct loop *loop;
    struct registry *registry; /* borrows */
    bool stats_v2;             /* statistics in the type of cgroup v2, else of v1 */
    /* A container was created or deleted, or Shutdown was called. Must not wait. May be NULL. */
    void (*on_change)(void *arg);
    /* A container was created: its bundle and the host pid that represents it. May be NULL. */
    void (*on_created)(void *arg, const char *id, const char *bundle, uint32_t pid);
    /* Applies the runtime options of a Create or CreateSandbox, or fails. Must not wait. May be
     * NULL. */
    int (*on_options)(void *arg, const struct Any *options, struct err *err);
    /* Upgrade. Waits. NULL: unsupported. */
    int (*on_upgrade)(struct ctx *ctx, void *arg, const struct service_upgrade *u, struct err *err);
    void *arg;
};
struct service *service_new(const struct service_opts *o);
void service_free(struct service *s);
AUTO_DEFINE(struct service *, service_free);
void service_add_to(struct service *s, struct rpc_server *server);
/* Adds only ShimDiag and lcow's own service, for a VM that containerd does not know. */
void service_add_diag(struct service *s, struct rpc_server *server);

/* What it has counted, for saved.h. */
void service_saved(struct saved *sv, struct service *s);

/* From now on, Create answers ERR_UNAVAILABLE: the shim is shutting down. */
void service_refuse(struct service *s);
/* How often Shutdown was called since the last Create. */
uint64_t service_asked_to_leave(const struct service *s);
/* The number of calls; Inspect, which monitoring uses, is not counted. */
uint64_t service_calls(const struct service *s);
/* True if there is no container, and no Create is in progress or expected. */
bool service_idle(const struct service *s);
/* True if containerd has given up all containers, and no Create is in progress or expected. */
bool service_given_up(const struct service *s);
/* True if a Create is in progress or expected. */
bool service_busy(const struct service *s);
/* ns until the shim stops waiting for a Create that `start` announced; 0: none is expected. */
uint64_t service_expects(const struct service *s);

/* [A-Za-z0-9]+([._-][A-Za-z0-9]+)*, at most SERVICE_ID_MAX bytes; what: "container id" … */
int service_check_id(const char *what, const char *id, struct err *err);

/* The types of runtime options that may reach this runtime. */
enum options_type {
    OPTIONS_NONE,    /* nothing that this runtime uses */
    OPTIONS_RUNTIME, /* runtimeoptions.v1.Options */
    OPTIONS_RUNC,    /* clients send runc's options to every runtime */
    OPTIONS_RUNHCS,  /* hcsshim's */
};
/* By the type URL of an Any, with or without a prefix. ERR_INVALID names an unsupported type and
 * the supported ones. */
int service_options_type(const char *type_url, enum options_type *ret, struct err *err);
