/* fsm.h - state machines as one edge table: code, test and documentation at once.
 * A state changes only through fsm_step. A missing edge is a bug (abort) in fsm_step and an
 * ERR_STATE to the caller in fsm_check. Ask first, act, then step. Never waits. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

struct fsm_edge {
    uint8_t from, event, to;
};

struct fsm {
    const char *name;
    const char *const *states; /* by number */
    size_t n_states;
    const char *const *events;
    size_t n_events;
    const struct fsm_edge *edges;
    size_t n_edges;
};

/* Defines the machine `var` (const, static if that word stands before it) from its three tables.
 * The counts are the last members of the two enums: a name that is missing does not compile. */
#define FSM_DEFINE(var, label, state_names, state_count, event_names, event_count, edge_table)     \
    const struct fsm var = {                                                                       \
        .name = (label),                                                                           \
        .states = (state_names),                                                                   \
        .n_states = (state_count),                                                                 \
        .events = (event_names),                                                                   \
        .n_events = (event_count),                                                                 \
        .edges = (edge_table),                                                                     \
        .n_edges = ARRAY_LEN(edge_table),                                                          \
    };                                                                                             \
    _Static_assert(ARRAY_LEN(state_names) == (state_count), "a name for each state");              \
    _Static_assert(ARRAY_LEN(event_names) == (event_count), "a name for each event")

/* 0 if the edge exists, else -1 and ERR_STATE: "vm is Terminated, cannot start". */
int fsm_check(const struct fsm *f, unsigned state, unsigned event, struct err *err);
/* The state the edge leads to; aborts with a message if there is none. */
unsigned fsm_next(const struct fsm *f, unsigned state, unsigned event);
#define fsm_step(f, state_ptr, event) ((void)(*(state_ptr) = fsm_next((f), *(state_ptr), (event))))

const char *fsm_state_name(const struct fsm *f, unsigned state);
