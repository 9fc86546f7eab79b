/* fsm_table.h - for tests: every pair of state and event steps as listed or is refused. */
#pragma once
#include "base/fsm.h"
#include "fixture/fsm_verify.h"
#include "harness/tap.h"

static inline const struct fsm_edge *fsm_table_edge(const struct fsm *f, unsigned s, unsigned e)
{
    for (size_t i = 0; i < f->n_edges; i++)
        if (f->edges[i].from == s && f->edges[i].event == e)
            return &f->edges[i];
    return NULL;
}

static inline void fsm_table_check(const struct fsm *f)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fsm_verify(f, &err), err);
    for (unsigned s = 0; s < f->n_states; s++) {
        for (unsigned e = 0; e < f->n_events; e++) {
            const struct fsm_edge *edge = fsm_table_edge(f, s, e);

            err_clear(&err);
            ASSERT_EQ(fsm_check(f, s, e, &err), edge ? 0 : -1);
            if (edge)
                ASSERT_EQ(fsm_next(f, s, e), edge->to);
            else
                ASSERT_EQ(err.code, ERR_STATE);
        }
    }
}
