#include "base/fsm.h"
#include "base/err.h"
#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>

#define FSM_MAX 256 /* states and events are bytes in an edge */

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
    return err_set(err, ERR_STATE, "%s is %s, cannot %s", f->name, fsm_state_name(f, state),
                   event_name(f, event));
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

static int verify_names(const struct fsm *f, struct err *err)
{
    if (!f->name || !f->name[0])
        return err_set(err, ERR_INVALID, "state machine has no name");
    if (f->n_states == 0 || f->n_states > FSM_MAX)
        return err_set(err, ERR_INVALID, "%s has %zu states, must be 1 to %d", f->name, f->n_states,
                       FSM_MAX);
    if (f->n_events > FSM_MAX)
        return err_set(err, ERR_INVALID, "%s has %zu events, at most %d", f->name, f->n_events,
                       FSM_MAX);
    for (size_t i = 0; i < f->n_states; i++)
        if (!f->states[i] || !f->states[i][0])
            return err_set(err, ERR_INVALID, "%s: state %zu has no name", f->name, i);
    for (size_t i = 0; i < f->n_events; i++)
        if (!f->events[i] || !f->events[i][0])
            return err_set(err, ERR_INVALID, "%s: event %zu has no name", f->name, i);
    return 0;
}

static int verify_edges(const struct fsm *f, struct err *err)
{
    for (size_t i = 0; i < f->n_edges; i++) {
        const struct fsm_edge *e = &f->edges[i];

        if (e->from >= f->n_states || e->to >= f->n_states || e->event >= f->n_events)
            return err_set(err, ERR_INVALID, "%s: edge %zu names a state or event out of range",
                           f->name, i);
        if (find_edge(f, e->from, e->event) != e)
            return err_set(err, ERR_INVALID, "%s: state %s has two edges on %s", f->name,
                           f->states[e->from], f->events[e->event]);
    }
    return 0;
}

int fsm_verify(const struct fsm *f, struct err *err)
{
    bool reached[FSM_MAX] = { true }, grew = true;

    if (verify_names(f, err) < 0 || verify_edges(f, err) < 0)
        return -1;
    while (grew) {
        grew = false;
        for (size_t i = 0; i < f->n_edges; i++)
            if (reached[f->edges[i].from] && !reached[f->edges[i].to])
                grew = reached[f->edges[i].to] = true;
    }
    for (size_t i = 0; i < f->n_states; i++)
        if (!reached[i])
            return err_set(err, ERR_INVALID, "%s: state %s cannot be reached from %s", f->name,
                           f->states[i], f->states[0]);
    return 0;
}

char *fsm_markdown(const struct fsm *f)
{
    struct sbuf b = { 0 };

    sbuf_addf(&b, "## %s\n\n| from | event | to |\n|---|---|---|\n", f->name);
    for (size_t s = 0; s < f->n_states; s++)
        for (size_t i = 0; i < f->n_edges; i++)
            if (f->edges[i].from == s)
                sbuf_addf(&b, "| %s | %s | %s |\n", fsm_state_name(f, f->edges[i].from),
                          event_name(f, f->edges[i].event), fsm_state_name(f, f->edges[i].to));
    return sbuf_take(&b);
}
