#include "base/err.h"
#include "harness/fsm_table.h"
#include "harness/tap.h"
#include "host/device/reservations.h"

struct thing {
    int other;
    struct reserved held;
    bool freed;
};

static void free_thing(struct reserved *t)
{
    CONTAINER_OF(t, struct thing, held)->freed = true;
}

TEST(a_thing_goes_with_its_last_reservation)
{
    struct thing a = { 0 }, b = { 0 };
    struct reservations r;
    struct err err = ERR_INIT;

    reservations_init(&r, "toy", free_thing);
    uint64_t one = reservations_take(&r, &a.held), two = reservations_take(&r, &a.held),
             other = reservations_take(&r, &b.held);
    ASSERT_EQ(a.held.refs, 2);
    ASSERT(reservations_find(&r, two, &err) == &a.held);
    ASSERT(reservations_find(&r, other, &err) == &b.held);
    reservations_drop(&r, one);
    reservations_drop(&r, one); /* unknown by now: the other's count stays */
    ASSERT(!a.freed && a.held.refs == 1);
    ASSERT(!reservations_find(&r, one, &err));
    ASSERT_EQ(err.code, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "unknown toy reservation 1");
    reservations_drop(&r, two);
    ASSERT(a.freed && !b.freed);
    ASSERT(reservations_take(&r, &b.held) > other); /* no id is used twice */
    reservations_release(&r);
    ASSERT(b.freed);
}

TEST(a_thing_that_is_being_released_is_found_but_not_used)
{
    struct thing a = { 0 };
    struct reservations r;
    struct err err = ERR_INIT;

    reservations_init(&r, "toy", free_thing);
    uint64_t id = reservations_take(&r, &a.held);
    ASSERT(reservations_use(&r, id, &err) == &a.held);
    a.held.leaving = true;
    ASSERT(reservations_find(&r, id, &err) == &a.held);
    ASSERT(!reservations_use(&r, id, &err));
    ASSERT_EQ(err.code, ERR_STATE);
    err_clear(&err);
    ASSERT(!reservations_use(&r, id + 1, &err));
    ASSERT_EQ(err.code, ERR_NOT_FOUND);
    reservations_release(&r);
}

TEST(a_mount_steps_as_listed_or_is_refused)
{
    fsm_table_check(&part_fsm);
}
