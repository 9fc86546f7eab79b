/* service.h - containerd's Task service, under its v2 and v3 names, its Sandbox and Streaming
 * services; hcsshim's ShimDiag service; and lcow's own, for lcow(1) and `start`. Each call is
 * checked, given to one controller, answered. Holds no state of containers; knows whether it was
 * asked to leave.
 *
 * Life: new -> add to a server -> refuse (when leaving) -> free after the server's shutdown. Never
 * waits outside its handlers. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct Any;
struct err;
struct loop;
struct registry;
struct rpc_server;
struct service;

#define SERVICE_TASK_V2 "containerd.task.v2.Task"
#define SERVICE_TASK_V3 "containerd.task.v3.Task"
#define SERVICE_SANDBOX "containerd.runtime.sandbox.v1.Sandbox"
#define SERVICE_STREAMING "containerd.services.streaming.v1.Streaming"
#define SERVICE_DIAG "containerd.runhcs.v1.diag.ShimDiag"
#define SERVICE_LCOW "lcow.v1.Shim"
#define SERVICE_ID_MAX 76 /* bytes of a container's, exec's or namespace's name */

struct service_opts {
    struct loop *loop;
    struct registry *registry; /* borrows */
    bool stats_v2;             /* statistics in the type of cgroup v2, else of v1 */
    /* A container came or went, or Shutdown was called. May not wait. May be NULL. */
    void (*on_change)(void *arg);
    /* A container exists now: its bundle and the host pid that stands for it. May be NULL. */
    void (*on_created)(void *arg, const char *id, const char *bundle, uint32_t pid);
    /* Runtime options of a Create or CreateSandbox: takes them, or says why not. May not wait. May
     * be NULL. */
    int (*on_options)(void *arg, const struct Any *options, struct err *err);
    void *arg;
};
struct service *service_new(const struct service_opts *o);
void service_free(struct service *s);
AUTO_DEFINE(struct service *, service_free);
void service_add_to(struct service *s, struct rpc_server *server);
/* ShimDiag and lcow's own alone: to look into a VM that containerd does not know. */
void service_add_diag(struct service *s, struct rpc_server *server);

/* From now on Create answers ERR_UNAVAILABLE: we are leaving. */
void service_refuse(struct service *s);
/* How often Shutdown was called since the last Create. */
uint64_t service_asked_to_leave(const struct service *s);
/* How often a client wanted something; Inspect, which only looks, is not counted. */
uint64_t service_calls(const struct service *s);
/* No container, and none on its way or expected. */
bool service_idle(const struct service *s);
/* Containerd has given up all that is left, and nothing is on its way or expected. */
bool service_given_up(const struct service *s);
/* A Create is on its way or expected. */
bool service_busy(const struct service *s);
/* ns until a Create that `start` has announced is given up; 0: none is expected. */
uint64_t service_expects(const struct service *s);

/* [A-Za-z0-9]+([._-][A-Za-z0-9]+)*, at most SERVICE_ID_MAX bytes; what: "container id" … */
int service_check_id(const char *what, const char *id, struct err *err);

/* The types of runtime options that may reach this runtime. */
enum options_type {
    OPTIONS_NONE,    /* nothing in it for us */
    OPTIONS_RUNTIME, /* runtimeoptions.v1.Options */
    OPTIONS_RUNC,    /* clients send runc's options to every runtime */
    OPTIONS_RUNHCS,  /* hcsshim's */
};
/* By the type URL of an Any, with or without a prefix. ERR_INVALID names one that nobody sends to a
 * runtime as its options, and what is understood. */
int service_options_type(const char *type_url, enum options_type *ret, struct err *err);
