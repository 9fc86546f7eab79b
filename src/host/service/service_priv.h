/* service_priv.h - what the files of the services share. */
#pragma once
#include "base/ctx.h"
#include "base/json.h"
#include "base/list.h"
#include "host/control/registry.h"
#include "host/service/service.h"

struct container;
struct process;

struct service {
    struct service_opts opts;
    const struct rpc_server *server; /* borrows */
    bool refusing;
    unsigned creating;
    unsigned expected;       /* creates that were announced */
    uint64_t expected_until; /* how long the shim waits for them */
    uint64_t asked_to_leave;
    struct list diag_runs; /* of diag.c */
};

/* Checks the id, finds the container. NULL: ERR_INVALID or ERR_NOT_FOUND. */
struct container *service_container(struct service *s, const char *id, struct err *err);
/* The same with one of its processes; exec_id "" is init. */
struct process *service_process(struct service *s, const char *id, const char *exec_id,
                                struct container **ret_container, struct err *err);
void service_changed(struct service *s);
/* `start` has announced a Create; a Create or CreateSandbox has arrived. */
void service_expect(struct service *s);
void service_came(struct service *s);
/* Checks the type of the runtime options of a Create or CreateSandbox, and applies them. */
int service_take_options(struct service *s, const struct Any *options, struct err *err);

#define SERVICE_METHOD(method, fn, Req, Resp, ...)                                                 \
    RPC_METHOD(method, fn, struct service, Req, Resp, __VA_ARGS__)
/* For a query: its failure changes nothing, and clients repeat it. */
#define MINOR .may_be_gone = true, .minor = true
void service_add_task(struct service *s, struct rpc_server *server);
void service_add_sandbox(struct service *s, struct rpc_server *server);
void service_add_streaming(struct service *s, struct rpc_server *server);

/* sandbox.c: CRI sends a PodSandboxConfig and puts no config.json into the bundle; others send
 * nothing and do. */
typedef struct CreateSandboxRequest CreateSandboxRequest;
struct pod_config {
    char *json;                             /* NULL: the bundle's config.json, if there is one */
    const char **dns_servers, **dns_search; /* NULL-terminated, or NULL */
    void *config;                           /* owns what these point to */
};

/* ERR_INVALID: options of an unsupported type or that do not decode; settings that a VM cannot
 * have: the host's network, PID or IPC namespace. */
int pod_config_read(const CreateSandboxRequest *req, struct pod_config *ret, struct err *err);
void pod_config_release(struct pod_config *s);
AUTO_VALUE(struct pod_config, pod_config_release);

/* stats.c: the guest's numbers (LCOWMetrics: cgroup v1 names as JSON) as containerd's messages. The
 * guest is hostile: a value that is not a number is refused, a missing one is zero; messages that
 * ctr and CRI read without checking are always present. Caller owns *ret. */
typedef struct Any Any;
int stats_from_guest(const json_t *metrics, bool v2, Any **ret, struct err *err);
