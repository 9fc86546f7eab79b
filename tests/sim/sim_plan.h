/* sim_plan.h - what a seed means. */
#pragma once
#include "fixture/fake_guest.h"
#include "fixture/fake_vmm.h"
#include "sim.h"

#define SIM_CLIENTS_MAX 7
#define SIM_STEPS_MAX 6

enum sim_action {
    ACT_START,
    ACT_EXEC, /* and wait for the process */
    ACT_EXEC_SIGNAL,
    ACT_WAIT,
    ACT_TERMINATE,
    ACT_SHUTDOWN,
    ACT_STACKS,
    ACT_STATS,
    ACT_COUNT
};
const char *sim_action_name(enum sim_action a);

struct sim_step {
    enum sim_action action;
    uint64_t pause_ns; /* before it */
    uint64_t limit_ns; /* 0: none */
    uint64_t grace_ns; /* of a shutdown */
};

struct sim_client {
    struct sim_step steps[SIM_STEPS_MAX];
    unsigned n_steps;
    uint64_t cancel_ns; /* after its begin; 0: never */
};

struct sim_plan {
    enum sim_fault fault;
    struct fake_vmm_opts vmm;
    bool can_power_off;
    struct fake_guest_opts guest;
    struct sim_client clients[SIM_CLIENTS_MAX];
    unsigned n_clients;
    uint64_t end_ns; /* when the closer terminates the VM */
    /* Of a thousand answers of the guest: */
    unsigned silent, late, refused, poisoned;
    uint64_t answer_ns; /* usual delay, at most */
    bool rubbish_log;
    bool honest; /* no frame that may close the bridge */
};

void sim_plan_make(struct sim_plan *p, struct rng *rng, enum sim_fault fault);
