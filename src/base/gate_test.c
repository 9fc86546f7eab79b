/* gate_test.c - one fiber at a time, in order, and every waiter gets its turn or an error. */
#include "base/clock.h"
#include "base/gate.h"
#include "base/loop.h"
#include "base/str.h"
#include "fixture/loop_fixture.h"
#include "harness/tap.h"
#include <string.h>

struct fixture {
    struct ctx *ctx;
    struct gate gate;
    int inside, most_inside;
    struct sbuf order;
};

static void enter_and_stay(void *arg)
{
    struct fixture *f = arg;
    struct err err = ERR_INIT;
    AUTO(gate_leave) struct gate *held = gate_enter(&f->gate, f->ctx, "test.op", &err);

    if (!held)
        return;
    sbuf_adds(&f->order, fiber_name(fiber_self(f->ctx->loop)));
    if (++f->inside > f->most_inside)
        f->most_inside = f->inside;
    (void)fiber_sleep(f->ctx, NS_PER_MS, &err);
    f->inside--;
}

TEST_VIRTUAL(a_gate_admits_one_and_in_order)
{
    struct fixture f = { .ctx = ctx };
    AUTO(sbuf_release) struct sbuf order = { 0 };
    struct err err = ERR_INIT;

    gate_init(&f.gate, "test");
    for (int i = 0; i < 5; i++)
        fiber_go(ctx->loop, enter_and_stay, &f, "%d", i);
    ASSERT_OK(fiber_sleep(ctx, 100 * NS_PER_MS, &err), err);
    order = f.order;
    ASSERT_EQ(f.most_inside, 1);
    ASSERT_STR(order.data, "01234");
    ASSERT(f.gate.holder == NULL);
}

TEST_VIRTUAL(a_newcomer_does_not_overtake_a_woken_waiter)
{
    struct fixture f = { .ctx = ctx };
    AUTO(sbuf_release) struct sbuf order = { 0 };
    struct err err = ERR_INIT;
    struct gate *held;

    gate_init(&f.gate, "test");
    held = gate_enter(&f.gate, ctx, "test.first", &err);
    ASSERT(held);
    fiber_go(ctx->loop, enter_and_stay, &f, "w");
    fiber_yield(ctx->loop);
    gate_leave(held);
    held = gate_enter(&f.gate, ctx, "test.newcomer", &err); /* runs before "w" does */
    ASSERT(held);
    order = f.order;
    ASSERT_STR(order.data, "w");
    gate_leave(held);
}

TEST_VIRTUAL(a_deadline_names_the_holder_of_the_gate)
{
    struct gate g;
    struct err err = ERR_INIT;
    struct ctx soon = ctx_with_timeout(ctx, NS_PER_S);

    gate_init(&g, "vm");
    ASSERT(gate_enter(&g, ctx, "vm.start", &err));
    ASSERT(!gate_enter(&g, &soon, "vm.create", &err));
    ASSERT_EQ(err.code, ERR_DEADLINE);
    ASSERT_HAS(err.msg, "vm.create");
    ASSERT_MSG_HAS(err.msg, "busy with vm.start");
    gate_leave(&g);
    ASSERT(gate_enter(&g, ctx, "vm.create", &err));
    gate_leave(&g);
}

struct late {
    struct fixture *f;
    struct cancel cancel;
    bool got;
};

static void enter_cancelled(void *arg)
{
    struct late *l = arg;
    struct ctx c = ctx_with_cancel(l->f->ctx, &l->cancel);
    struct err err = ERR_INIT;
    struct gate *held = gate_enter(&l->f->gate, &c, "test.late", &err);

    if (held) {
        l->got = true;
        gate_leave(held);
    }
}

TEST_VIRTUAL(a_hand_over_to_a_cancelled_waiter_is_passed_on)
{
    struct fixture f = { .ctx = ctx };
    struct late first = { .f = &f }, second = { .f = &f };
    struct err err = ERR_INIT;

    gate_init(&f.gate, "test");
    cancel_init(&first.cancel, NULL);
    cancel_init(&second.cancel, NULL);
    ASSERT(gate_enter(&f.gate, ctx, "test.first", &err));
    fiber_go(ctx->loop, enter_cancelled, &first, "first");
    fiber_go(ctx->loop, enter_cancelled, &second, "second");
    fiber_yield(ctx->loop);
    gate_leave(&f.gate);                                      /* handed to first … */
    cancel_fire(&first.cancel, ERR_CANCELLED, "client gone"); /* … which ends at that moment */
    fiber_yield(ctx->loop);
    fiber_yield(ctx->loop);
    ASSERT(!first.got);
    ASSERT(second.got);
    ASSERT(f.gate.holder == NULL);
}
