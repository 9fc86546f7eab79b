#include "base/err.h"
#include "base/fsm.h"
#include "fixture/fsm_verify.h"
#include "harness/tap.h"

enum { CREATED, RUNNING, STOPPED, STATE_COUNT };
enum { START, STOP, EVENT_COUNT };

static const char *const states[] = { "Created", "Running", "Stopped" };
static const char *const events[] = { "start", "stop" };
static const struct fsm_edge edges[] = {
    { CREATED, START, RUNNING },
    { RUNNING, STOP, STOPPED },
    { CREATED, STOP, STOPPED },
};
static FSM_DEFINE(machine, "vm", states, STATE_COUNT, events, EVENT_COUNT, edges);

TEST(check_allows_what_the_table_lists_and_nothing_else)
{
    for (unsigned s = 0; s < STATE_COUNT; s++) {
        for (unsigned e = 0; e < EVENT_COUNT; e++) {
            struct err err = ERR_INIT;
            bool listed = false;

            for (size_t i = 0; i < ARRAY_LEN(edges); i++)
                listed |= edges[i].from == s && edges[i].event == e;
            ASSERT_EQ(fsm_check(&machine, s, e, &err), listed ? 0 : -1);
            ASSERT_EQ(err.code, listed ? ERR_NONE : ERR_STATE);
        }
    }
}

TEST(the_refusal_names_machine_state_and_event)
{
    struct err err;

    ASSERT_FAIL(fsm_check(&machine, STOPPED, START, &err), err, ERR_STATE);
    ASSERT_MSG(err.msg, "vm is Stopped, cannot start");
}

TEST(step_follows_the_edge)
{
    unsigned state = CREATED;

    fsm_step(&machine, &state, START);
    ASSERT_EQ(state, RUNNING);
    fsm_step(&machine, &state, STOP);
    ASSERT_EQ(state, STOPPED);
}

static void illegal_step(void *arg)
{
    fsm_step(&machine, (unsigned *)arg, START);
}

TEST(step_without_an_edge_aborts)
{
    unsigned state = RUNNING;

    ASSERT_ABORTS(illegal_step, &state, "vm has no edge from Running (1) on start (0)");
}

TEST(numbers_out_of_range_have_a_name)
{
    struct err err;

    ASSERT_STR(fsm_state_name(&machine, 1), "Running");
    ASSERT_STR(fsm_state_name(&machine, 77), "?");
    ASSERT_FAIL(fsm_check(&machine, 77, 99, &err), err, ERR_STATE);
}

TEST(verify_accepts_a_sound_table)
{
    struct err err;

    ASSERT_OK(fsm_verify(&machine, &err), err);
}

TEST(verify_finds_two_edges_for_one_event)
{
    static const struct fsm_edge twice[] = { { 0, START, 1 }, { 1, STOP, 2 }, { 0, START, 2 } };
    struct fsm f = machine;
    struct err err;

    f.edges = twice;
    f.n_edges = ARRAY_LEN(twice);
    ASSERT_FAIL(fsm_verify(&f, &err), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "vm: state Created has two edges on start");
}

TEST(verify_finds_a_state_that_cannot_be_reached)
{
    static const struct fsm_edge island[] = { { 0, START, 1 }, { 2, STOP, 1 } };
    struct fsm f = machine;
    struct err err;

    f.edges = island;
    f.n_edges = ARRAY_LEN(island);
    ASSERT_FAIL(fsm_verify(&f, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "Stopped cannot be reached");
}

TEST(verify_follows_edges_in_any_order)
{
    static const struct fsm_edge backwards[] = { { 1, STOP, 2 }, { 0, START, 1 } };
    struct fsm f = machine;
    struct err err;

    f.edges = backwards;
    f.n_edges = ARRAY_LEN(backwards);
    ASSERT_OK(fsm_verify(&f, &err), err);
}

TEST(verify_finds_numbers_out_of_range)
{
    static const struct fsm_edge bad[][1] = { { { 3, 0, 0 } }, { { 0, 2, 0 } }, { { 0, 0, 3 } } };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct fsm f = machine;
        struct err err;

        f.edges = bad[i];
        f.n_edges = 1;
        ASSERT_FAIL(fsm_verify(&f, &err), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, "out of range");
    }
}

TEST(verify_finds_missing_names)
{
    static const char *const hole[] = { "a", NULL, "c" }, *const empty[] = { "a", "" };
    struct fsm f = machine;
    struct err err;

    f.states = hole;
    ASSERT_FAIL(fsm_verify(&f, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "state 1 has no name");
    f = machine;
    f.events = empty;
    ASSERT_FAIL(fsm_verify(&f, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "event 1 has no name");
    f = machine;
    f.name = NULL;
    ASSERT_FAIL(fsm_verify(&f, &err), err, ERR_INVALID);
    f = machine;
    f.n_states = 0;
    ASSERT_FAIL(fsm_verify(&f, &err), err, ERR_INVALID);
}

TEST(markdown_lists_edges_by_state)
{
    AUTO_FREE char *text = fsm_markdown(&machine);

    ASSERT_STR(text, "## vm\n\n| from | event | to |\n|---|---|---|\n"
                     "| Created | start | Running |\n"
                     "| Created | stop | Stopped |\n"
                     "| Running | stop | Stopped |\n");
}
