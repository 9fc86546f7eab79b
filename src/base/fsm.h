/* fsm.h - state machines as one edge table: code, test and documentation at once.
 * A state changes only through fsm_step. A missing edge is a bug (abort) in fsm_step and an
 * ERR_STATE to the caller in fsm_check. Ask first, act, then step. Never waits. */
#pragma once
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

/* 0 if the edge exists, else -1 and ERR_STATE: "vm is Terminated, cannot start". */
int fsm_check(const struct fsm *f, unsigned state, unsigned event, struct err *err);
/* The state the edge leads to; aborts with a message if there is none. */
unsigned fsm_next(const struct fsm *f, unsigned state, unsigned event);
#define fsm_step(f, state_ptr, event) ((void)(*(state_ptr) = fsm_next((f), *(state_ptr), (event))))

const char *fsm_state_name(const struct fsm *f, unsigned state);
/* Every (state, event) pair has at most one edge, names are complete, every state can be
 * reached from state 0. For the exhaustive check of tests. 0, or -1 and the reason. */
int fsm_verify(const struct fsm *f, struct err *err);
/* The table in Markdown, for `make fsm-docs`. Caller frees. */
char *fsm_markdown(const struct fsm *f);
