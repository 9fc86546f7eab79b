/* sandbox_priv.h - the inside of a sandbox, for sandbox*.c, the registry and their tests. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/str.h"
#include "host/control/sandbox.h"

struct container;
struct spec;

#define SANDBOX_STOP_LIMIT (100 * NS_PER_S) /* for all of it, beyond the grace of containers */
#define SANDBOX_STATS_LIMIT                                                                        \
    (2 * NS_PER_S) /* for the guest's part: whoever asks has others to ask */
#define SANDBOX_PING_LIMIT (5 * NS_PER_S)

enum sandbox_event {
    SANDBOX_EV_CREATED,
    SANDBOX_EV_STARTED,
    SANDBOX_EV_STOPPED,
    SANDBOX_EV_SHUT,
    SANDBOX_EV_COUNT
};

struct sandbox {
    struct registry *r;
    char *id, *bundle, *netns;
    struct spec *spec;
    struct strv dns_servers, dns_search;
    struct gate gate;
    enum sandbox_state state;
    struct container *pod; /* counted; until it is taken back */
    bool starting, asked, stopping;
    uint64_t grace_ns;
    uint32_t pid, exit_status;
    uint64_t created_wall_ns, exited_wall_ns;
    struct latch ended;
    struct cancel hurry; /* fired: no more grace for containers */
};

void sandbox_free(struct sandbox *s);
/* NULL with ERR_NOT_FOUND. */
struct sandbox *sandbox_find(const struct registry *r, const char *id, struct err *err);
/* A background fiber's ctx: nobody's cancel. */
struct ctx sandbox_ctx(const struct sandbox *s, struct ctx *root);
/* Stopped, told to whoever waits. */
int sandbox_kill_vm(struct ctx *ctx, struct sandbox *s, struct err *err);
void sandbox_ended(struct sandbox *s, uint32_t status);
/* Inside the gate: everything that lives in the pod's network and mounts. Goes on where it
 * stopped. */
int sandbox_take_back(struct ctx *ctx, struct sandbox *s, struct err *err);
/* In a fiber of its own, until its end. */
void sandbox_watch(struct sandbox *s);
/* For registry_close, when the VM is being killed: until the pod is gone too. */
int sandbox_close(struct ctx *ctx, struct registry *r, struct err *err);
/* What the pod's container is made of. text: the client's OCI spec, perhaps {}. Caller frees. */
int sandbox_spec_parse(const struct sandbox_create *c, const char *text, size_t len,
                       struct spec **ret, struct err *err);
