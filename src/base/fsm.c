#include "base/fsm.h"
#include "base/err.h"
#include <stdio.h>
#include <stdlib.h>

static const struct fsm_edge *find_edge(const struct fsm *f, unsigned state, unsigned event)
{
    for (size_t i = 0; i < f->n_edges; i++)
        if (f->edges[i].from == state && f->edges[i].event == event)
            return &f->edges[i];
    return NULL;
}

static const char *event_name(const struct fsm *f, unsigned event)
{
    if (event >= f->n_events || !f->events[event])
        return "?";
    return f->events[event];
}

const char *fsm_state_name(const struct fsm *f, unsigned state)
{
    if (state >= f->n_states || !f->states[state])
        return "?";
    return f->states[state];
}

int fsm_check(const struct fsm *f, unsigned state, unsigned event, struct err *err)
{
    if (find_edge(f, state, event))
        return 0;
    return err_because(err, REASON_WRONG_STATE, ERR_STATE, "%s is %s, cannot %s", f->name,
                       fsm_state_name(f, state), event_name(f, event));
}

unsigned fsm_next(const struct fsm *f, unsigned state, unsigned event)
{
    const struct fsm_edge *e = find_edge(f, state, event);

    if (!e) {
        fprintf(stderr, "bug: %s has no edge from %s (%u) on %s (%u)\n", f->name,
                fsm_state_name(f, state), state, event_name(f, event), event);
        abort();
    }
    return e->to;
}
