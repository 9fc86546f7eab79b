/* sandbox_priv.h - the inside of a sandbox, for sandbox*.c and its tests. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "base/gate.h"
#include "base/str.h"
#include "host/control/sandbox.h"
#include "host/control/vm.h"
#include "host/device/network.h"

struct container;
struct spec;

/* For pod and VM, with the wait for a turn. */
#define SANDBOX_START_LIMIT (300 * NS_PER_S + VM_TURN_LIMIT)
#define SANDBOX_STOP_LIMIT (100 * NS_PER_S) /* for all of it, beyond the grace of containers */
#define SANDBOX_STATS_LIMIT (2 * NS_PER_S)  /* for the guest's part */
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
    struct network_dns dns; /* both */
    struct gate gate;
    enum sandbox_state state;
    struct container *holder; /* of its pod; counted; until it is released */
    bool starting, asked, stopping;
    uint64_t grace_ns;
    uint32_t pid, exit_status;
    uint64_t created_wall_ns, exited_wall_ns;
    struct latch ended;
    struct cancel hurry; /* fired: no more grace for containers */
};

struct sandbox *sandbox_new(struct registry *r);
/* NULL with ERR_NOT_FOUND. */
struct sandbox *sandbox_find(const struct registry *r, const char *id, struct err *err);
/* Sets the state to Stopped and wakes the fibers that wait for it. */
void sandbox_ended(struct sandbox *s, uint32_t status);
/* Inside the gate: ends the VM and releases what the pod's network and mounts hold. Repeated, it
 * continues at the step that failed. */
int sandbox_release(struct ctx *ctx, struct sandbox *s, struct err *err);
/* In a fiber of its own, until its end. */
void sandbox_watch(struct sandbox *s);
/* What the pod's container is made of. text: the client's OCI spec, perhaps {}. Caller frees. */
int sandbox_spec_parse(const struct sandbox_create *c, const char *text, size_t len,
                       struct spec **ret, struct err *err);
