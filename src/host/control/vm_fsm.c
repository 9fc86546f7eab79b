/* vm_fsm.c - the VM's states: code, test and documentation at once. */
#include "base/fsm.h"
#include "base/mem.h"
#include "host/control/vm_priv.h"

static const char *const states[] = { "NotCreated", "Created", "Running", "Terminated", "Invalid" };
static const char *const events[] = {
    "be created",    "fail to be created", "start",
    "fail to start", "be released",        "fail to be released"
};
_Static_assert(ARRAY_LEN(states) == VM_STATE_COUNT, "a name for each state");
_Static_assert(ARRAY_LEN(events) == VM_EV_COUNT, "a name for each event");

static const struct fsm_edge edges[] = {
    { VM_NOT_CREATED, VM_EV_CREATED, VM_CREATED },
    { VM_NOT_CREATED, VM_EV_CREATE_FAILED, VM_NOT_CREATED },
    { VM_NOT_CREATED, VM_EV_RELEASED, VM_TERMINATED }, /* terminated while it was being created */
    { VM_NOT_CREATED, VM_EV_RELEASE_FAILED, VM_INVALID },
    { VM_CREATED, VM_EV_STARTED, VM_RUNNING },
    { VM_CREATED, VM_EV_START_FAILED, VM_INVALID },
    { VM_CREATED, VM_EV_RELEASED, VM_TERMINATED },
    { VM_CREATED, VM_EV_RELEASE_FAILED, VM_INVALID },
    { VM_RUNNING, VM_EV_RELEASED, VM_TERMINATED },
    { VM_RUNNING, VM_EV_RELEASE_FAILED, VM_INVALID },
    { VM_INVALID, VM_EV_RELEASED, VM_TERMINATED },
    { VM_INVALID, VM_EV_RELEASE_FAILED, VM_INVALID },
};

const struct fsm vm_fsm = {
    .name = "vm",
    .states = states,
    .n_states = ARRAY_LEN(states),
    .events = events,
    .n_events = ARRAY_LEN(events),
    .edges = edges,
    .n_edges = ARRAY_LEN(edges),
};
