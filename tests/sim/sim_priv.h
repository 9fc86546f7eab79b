/* sim_priv.h - a schedule while it runs. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/span.h"
#include "host/control/vm.h"
#include "sim_plan.h"

struct loop;

struct sim {
    struct sim_plan plan;
    struct rng rng; /* decisions on the way */
    char dir[256];
    struct loop *loop;
    struct timeline timeline;
    struct vmm *vmm;
    struct guest *guest;
    struct vm *vm; /* NULL once freed */
    struct fibers clients;
    struct cancel cancels[SIM_CLIENTS_MAX];
    char log[600];
    struct cli_result *result;

    /* What was seen. */
    enum vm_state state;
    enum vm_stage stage;
    bool exited;
    struct vm_exit exit;
    uint64_t exit_ns;
    bool ended_by_client;    /* somebody called terminate or shutdown */
    bool connected;          /* the bridge, when we last looked */
    uint64_t lost_ns;        /* since when we know that it is lost */
    uint64_t shutdown_by_ns; /* the first shutdown must have reached the kill by then */
};

void sim_say(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The first one counts. */
void sim_broken(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Looks at everything that can be looked at without waiting. */
void sim_look(struct sim *s);

/* One call of a client, from begin to end. */
struct sim_call {
    struct sim *sim;
    unsigned client;
    enum sim_action action;
    const char *name;
    bool limited; /* its ctx can end before the VM */
    bool guest;   /* waits on the guest */
    uint64_t grace_ns;
    uint64_t began_ns;
    enum vm_state state; /* at the beginning */
    bool doomed;         /* the VM was being terminated already */
};
void sim_call_begin(struct sim_call *c);
/* r and err: what it returned. Checks the laws for calls. */
void sim_call_end(struct sim_call *c, int r, const struct err *err);

/* sim_client.c: fibers */
struct sim_fiber {
    struct sim *sim;
    unsigned client;
};
void sim_client_main(void *arg);    /* struct sim_fiber */
void sim_canceller_main(void *arg); /* struct sim_fiber */
