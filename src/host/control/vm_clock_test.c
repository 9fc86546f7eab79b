/* vm_clock_test.c - the guest's clock against the host's: bounds, what they tell, and the one check
 * after a start. */
#include "fixture/vm_fixture.h"
#include "host/control/vm_clock.h"
#include "proto/bridge.h"
#include <string.h>

static struct vm_clock compare(uint64_t span_us, int64_t off_ppm, uint64_t trip_us)
{
    uint64_t span = span_us * NS_PER_US, trip = trip_us * NS_PER_US;
    struct vm_clock_look first = { 1000, 77, 1000 + trip }, last;

    last.before = first.before + span;
    last.after = last.before + trip;
    last.guest = first.guest + span + (uint64_t)((int64_t)span / 1000000 * off_ppm);
    return vm_clock_compare(&first, &last);
}

TEST(bounds_tell_a_good_clock_from_a_wrong_one)
{
    ASSERT_EQ(compare(1000000, 0, 100).verdict, VM_CLOCK_GOOD);
    ASSERT_EQ(compare(1000000, 500, 100).verdict, VM_CLOCK_GOOD);
    ASSERT_EQ(compare(1000000, -500, 100).verdict, VM_CLOCK_GOOD);
    ASSERT_EQ(compare(1000000, 10000, 100).verdict, VM_CLOCK_OFF);
    ASSERT_EQ(compare(1000000, -10000, 100).verdict, VM_CLOCK_OFF);
    ASSERT_EQ(compare(1000000, 26380000, 100).verdict, VM_CLOCK_OFF); /* 84 MHz for 2300 */
    ASSERT_EQ(compare(1000000, -1000000, 100).verdict, VM_CLOCK_OFF); /* it stands still */
}

TEST(slow_answers_make_wide_bounds_and_no_false_alarm)
{
    struct vm_clock c = compare(1000000, 0, 50000);

    ASSERT_EQ(c.verdict, VM_CLOCK_UNKNOWN);
    ASSERT(c.low_ppm < 0 && c.high_ppm > 0);
    ASSERT(c.high_ppm - c.low_ppm > VM_CLOCK_CLOSE_PPM);
    /* Even then a clock that is wrong by a factor shows, and a longer look shows 1 %. */
    ASSERT_EQ(compare(1000000, 26380000, 50000).verdict, VM_CLOCK_OFF);
    ASSERT_EQ(compare(16000000, 10000, 50000).verdict, VM_CLOCK_OFF);
    ASSERT_EQ(compare(64000000, 0, 20000).verdict, VM_CLOCK_GOOD);
}

TEST(a_clock_that_goes_back_is_wrong_and_one_look_is_not_enough)
{
    struct vm_clock_look first = { 1000, 5000, 1010 }, back = { 1000000000, 4000, 1000000010 },
                         same = { 1005, 5005, 1015 }, wild = { 1000000000, UINT64_MAX, 1000000010 };

    ASSERT_EQ(vm_clock_compare(&first, &back).verdict, VM_CLOCK_OFF);
    ASSERT_EQ(vm_clock_compare(&first, &same).verdict, VM_CLOCK_UNKNOWN);
    ASSERT_EQ(vm_clock_compare(&first, &wild).verdict, VM_CLOCK_OFF);
}

TEST(what_is_wrong_is_said_in_percent)
{
    struct vm_clock fast = { VM_CLOCK_OFF, 9500, 10500 }, slow = { VM_CLOCK_OFF, -964000, -963000 };
    char text[VM_CLOCK_TEXT];

    vm_clock_text(&fast, text);
    ASSERT_STR(text, "runs 0.95 … 1.05 % too fast");
    vm_clock_text(&slow, text);
    ASSERT_STR(text, "runs 96.30 … 96.40 % too slow");
    vm_clock_text(&(struct vm_clock){ VM_CLOCK_GOOD, -700, 400 }, text);
    ASSERT_STR(text, "runs as the host's to within 0.07 %");
}

/* Runs the check and returns what was reported to the VM's backend. */
static struct fake_facts checked(struct fixture *r, struct ctx *ctx, struct vm_clock *ret)
{
    struct ctx patient = ctx_root(ctx->loop);
    struct fake_facts facts;
    struct err err = ERR_INIT;

    fixture_start(r, ctx);
    vm_clock_check(r->vm);
    vm_clock_check(r->vm); /* once is enough */
    ASSERT_OK(fiber_sleep(&patient, 60 * NS_PER_S, &err), err);
    *ret = vm_clock(r->vm);
    fake_vmm_facts(r->vmm, &facts);
    return facts;
}

TEST_VIRTUAL(a_right_clock_is_compared_once_and_then_never_again)
{
    struct fake_guest_facts guest = { 0 };
    struct fixture r = { .guest_opts = { .facts = &guest } };
    struct vm_clock c;
    struct fake_facts facts = checked(&r, ctx, &c);
    struct ctx patient = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    ASSERT_EQ(c.verdict, VM_CLOCK_GOOD);
    ASSERT_EQ(facts.judged, 1);
    ASSERT_STR(facts.judged_why, "");
    ASSERT_EQ(guest.clock_reads, 2);
    ASSERT_OK(fiber_sleep(&patient, 24 * 3600 * NS_PER_S, &err), err);
    ASSERT_EQ(guest.clock_reads, 2);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_wrong_clock_is_found_and_reported_to_the_backend)
{
    struct fixture r = { .guest_opts = { .clock_ppm = 10000 } };
    struct vm_clock c;
    uint64_t before = log_failures(REASON_CLOCK_WRONG);
    struct fake_facts facts = checked(&r, ctx, &c);

    ASSERT_EQ(c.verdict, VM_CLOCK_OFF);
    ASSERT_EQ(log_failures(REASON_CLOCK_WRONG), before + 1);
    ASSERT_EQ(facts.judged, 1);
    ASSERT_HAS(facts.judged_why, "1.00 % too fast");
    fixture_finish(&r, ctx);
}

static struct fake_answer slow_answers(void *arg, uint32_t type)
{
    return type == BRIDGE_GET_PROPERTIES ? (struct fake_answer){ .delay_ns = *(uint64_t *)arg }
                                         : (struct fake_answer){ 0 };
}

TEST_VIRTUAL(a_busy_machine_does_not_make_a_clock_wrong)
{
    uint64_t delay = 40 * NS_PER_MS;
    struct fixture r = { .guest_opts = { .decide = slow_answers, .decide_arg = &delay } };
    struct vm_clock c;
    struct fake_facts facts = checked(&r, ctx, &c);

    ASSERT_EQ(c.verdict, VM_CLOCK_UNKNOWN);
    ASSERT_EQ(facts.judged, 0);
    fixture_finish(&r, ctx);
}

static struct fake_answer no_answers(void *arg, uint32_t type)
{
    return type == BRIDGE_GET_PROPERTIES
               ? (struct fake_answer){ .how = FAKE_REFUSE, .hr = BRIDGE_HR_NOT_IMPLEMENTED }
               : (struct fake_answer){ 0 };
}

TEST_VIRTUAL(a_guest_that_does_not_tell_its_clock_is_left_alone)
{
    struct fixture r = { .guest_opts = { .decide = no_answers } };
    struct vm_clock c;
    struct fake_facts facts = checked(&r, ctx, &c);

    ASSERT_EQ(c.verdict, VM_CLOCK_UNKNOWN);
    ASSERT_EQ(facts.judged, 0);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(the_check_does_not_hold_up_the_end_of_its_vm)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;
    uint64_t began;

    fixture_start(&r, ctx);
    vm_clock_check(r.vm);
    ASSERT_OK(fiber_sleep(ctx, 2200 * NS_PER_MS, &err), err); /* between its two looks */
    began = loop_now(ctx->loop);
    fake_vmm_die(r.vmm, FAKE_POWERED_OFF);
    ASSERT_OK(vm_wait(ctx, r.vm, &r.exit, &err), err);
    ASSERT(loop_now(ctx->loop) - began < 100 * NS_PER_MS);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(measuring_ends_at_its_limit)
{
    uint64_t delay = 400 * NS_PER_MS;
    struct fixture r = { .guest_opts = { .decide = slow_answers, .decide_arg = &delay } };
    struct ctx patient = ctx_root(ctx->loop);
    struct vm_clock c = { 0 };
    struct err err = ERR_INIT;
    uint64_t began;

    fixture_start(&r, ctx);
    began = loop_now(ctx->loop);
    const struct vm_parts *in = vm_enter(r.vm, "look", &err);

    ASSERT(in != NULL);
    ASSERT_OK(vm_clock_measure(&patient, r.vm, 16 * NS_PER_S, &c, &err), err);
    vm_leave(in);
    ASSERT(loop_now(ctx->loop) - began < 30 * NS_PER_S);
    ASSERT_EQ(c.verdict, VM_CLOCK_UNKNOWN);
    ASSERT(c.high_ppm - c.low_ppm > VM_CLOCK_CLOSE_PPM);
    fixture_finish(&r, ctx);
}
