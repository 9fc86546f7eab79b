#include "fixture/fsm_verify.h"
#include "guest/runtime/container.h"
#include "harness/tap.h"
#include <string.h>

/* From -> event -> to; -1: refused. Written out apart from the table, so that a change of either
 * is a change of both. */
static const int8_t want[CONTAINER_STATE_COUNT][CONTAINER_EV_COUNT] = {
    /*            created failed started frozen thawed exited deleted */
    [CONTAINER_CREATING] = { 1, 5, -1, -1, -1, -1, -1 },
    [CONTAINER_CREATED] = { -1, -1, 2, -1, -1, 4, -1 },
    [CONTAINER_RUNNING] = { -1, -1, -1, 3, -1, 4, -1 },
    [CONTAINER_PAUSED] = { -1, -1, -1, -1, 2, 4, -1 },
    [CONTAINER_STOPPED] = { -1, -1, -1, -1, -1, -1, 5 },
    [CONTAINER_GONE] = { -1, -1, -1, -1, -1, -1, -1 },
};

TEST(the_table_is_whole)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fsm_verify(&container_fsm, &err), err);
}

TEST(every_pair_steps_as_listed_or_is_refused)
{
    for (unsigned s = 0; s < CONTAINER_STATE_COUNT; s++) {
        for (unsigned e = 0; e < CONTAINER_EV_COUNT; e++) {
            struct err err = ERR_INIT;
            if (want[s][e] < 0) {
                ASSERT_FAIL(fsm_check(&container_fsm, s, e, &err), err, ERR_STATE);
            } else {
                ASSERT_OK(fsm_check(&container_fsm, s, e, &err), err);
                ASSERT_EQ(fsm_next(&container_fsm, s, e), want[s][e]);
            }
        }
    }
}
