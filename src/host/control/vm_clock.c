#include "host/control/vm_clock.h"
#include "base/clock_step.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/waits.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include <inttypes.h>
#include <stdio.h>

#define FIRST_NS NS_PER_S
#define TRIES 8                  /* for one reading; the quickest counts */
#define QUICK_NS (NS_PER_MS / 2) /* there and back: it does not get better */
#define CHECK_NS (8 * NS_PER_S)
#define CHECK_DELAY (2 * NS_PER_S) /* who ends before that is not bothered */

const char *vm_clock_verdict_name(enum vm_clock_verdict s)
{
    return s == VM_CLOCK_GOOD ? "good" : s == VM_CLOCK_OFF ? "off" : "unknown";
}

/* By how much the guest's span is longer than ours; a guest may report anything. */
static int64_t ppm(uint64_t guest, uint64_t host)
{
    double rate = ((double)guest / (double)host - 1) * 1e6;

    return rate > 1e12 ? INT64_C(1000000000000) : (int64_t)rate;
}

struct vm_clock vm_clock_compare(const struct vm_clock_look *first,
                                 const struct vm_clock_look *last)
{
    struct vm_clock c = { .low_ppm = -1000000, .high_ppm = -1000000 };

    if (last->before <= first->after)
        return (struct vm_clock){ 0 };
    if (last->guest > first->guest) {
        uint64_t span = last->guest - first->guest;

        c.low_ppm = ppm(span, last->after - first->before);
        c.high_ppm = ppm(span, last->before - first->after);
    } /* else it stands still, or goes back */
    if (c.low_ppm >= -VM_CLOCK_PPM && c.high_ppm <= VM_CLOCK_PPM)
        c.verdict = VM_CLOCK_GOOD;
    else if (c.low_ppm > VM_CLOCK_PPM || c.high_ppm < -VM_CLOCK_PPM)
        c.verdict = VM_CLOCK_OFF;
    return c;
}

void vm_clock_text(const struct vm_clock *c, char buf[VM_CLOCK_TEXT])
{
    bool slow = c->low_ppm + c->high_ppm < 0;
    double least = (slow ? -(double)c->high_ppm : (double)c->low_ppm) / 1e4,
           most = (slow ? -(double)c->low_ppm : (double)c->high_ppm) / 1e4;

    if (least <= 0)
        snprintf(buf, VM_CLOCK_TEXT, "runs as the host's to within %.2f %%",
                 -least > most ? -least : most);
    else
        snprintf(buf, VM_CLOCK_TEXT, "runs %.2f … %.2f %% too %s", least, most,
                 slow ? "slow" : "fast");
}

/* --- measuring --- */

static int look(struct ctx *ctx, struct vm *vm, struct vm_clock_look *ret, struct err *err)
{
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < TRIES && best > QUICK_NS; i++) {
        struct vm_clock_look l = { .before = loop_now(vm->o.loop) };

        if (vm->p.guest->ops->read_clock(ctx, vm->p.guest, &l.guest, err) < 0)
            return -1;
        l.after = loop_now(vm->o.loop);
        if (l.after - l.before < best) {
            best = l.after - l.before;
            *ret = l;
        }
    }
    return 0;
}

/* Ends early, with an error, when the VM does. */
static int pass(struct ctx *ctx, struct vm *vm, uint64_t until, struct err *err)
{
    while (loop_now(vm->o.loop) < until) {
        struct ctx limited = ctx_with_timeout(ctx, until - loop_now(vm->o.loop));
        struct err ignored = ERR_INIT;

        if (vm->p.life.fired)
            return err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "the VM has ended");
        (void)waitq_wait(&limited, &vm->changed, WAIT_CLOCK_CHECK, &ignored);
        if (ctx_check(ctx, err) < 0)
            return -1;
    }
    return 0;
}

int vm_clock_measure(struct ctx *ctx, struct vm *vm, uint64_t limit_ns, struct vm_clock *ret,
                     struct err *err)
{
    struct ctx own = ctx_with_cancel(ctx, &vm->p.life);
    struct vm_clock_look first = { 0 }, last = { 0 };
    struct vm_clock c = { 0 };

    if (look(&own, vm, &first, err) < 0)
        return err_wrap(err, "read the guest's clock");
    for (uint64_t span = FIRST_NS; c.verdict == VM_CLOCK_UNKNOWN && span <= limit_ns; span *= 2) {
        if (pass(&own, vm, first.after + span, err) < 0 || look(&own, vm, &last, err) < 0)
            return err_wrap(err, "read the guest's clock");
        c = vm_clock_compare(&first, &last);
    }
    *ret = c;
    return 0;
}

/* --- once after the start --- */

static void check_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx own = vm_own_ctx(vm), ctx = ctx_with_cancel(&own, &vm->p.life),
               limited = ctx_with_timeout(&ctx, CHECK_DELAY + 4 * CHECK_NS);
    struct err err = ERR_INIT;
    char text[VM_CLOCK_TEXT];

    if (pass(&limited, vm, loop_now(vm->o.loop) + CHECK_DELAY, &err) < 0 ||
        vm_clock_measure(&limited, vm, CHECK_NS, &vm->clock, &err) < 0) {
        log_debug(&own, "the guest's clock was not compared", F_ERR(&err));
    } else {
        vm_clock_text(&vm->clock, text);
        if (vm->clock.verdict == VM_CLOCK_OFF)
            log_error(&own, "the guest's clock is wrong; restart the pod", F_STR("clock", text),
                      F_REASON(REASON_CLOCK_WRONG));
        else
            log_debug(&own, "the guest's clock was compared",
                      F_STR("state", vm_clock_verdict_name(vm->clock.verdict)),
                      F_STR("clock", text));
    }
    if (vm->clock.verdict != VM_CLOCK_UNKNOWN && vm->p.vmm->ops->judge) {
        char why[VM_CLOCK_TEXT + 64];

        snprintf(why, sizeof(why), "the clock of a VM that was cloned from it %s", text);
        vm->p.vmm->ops->judge(vm->p.vmm, vm->clock.verdict == VM_CLOCK_OFF ? why : NULL);
    }
    vm->clock_checking = false;
    vm_drop(vm);
}

void vm_clock_check(struct vm *vm)
{
    if (!vm->clock_checked && vm->state == VM_RUNNING)
        vm_clock_begin(vm);
}

void vm_clock_begin(struct vm *vm)
{
    vm->clock_checked = vm->clock_checking = true;
    vm_hold(vm);
    fiber_go(vm->o.loop, check_main, vm, FIBER_VM_CHECK_CLOCK "%s", vm->id);
}

struct vm_clock vm_clock(const struct vm *vm)
{
    return vm->clock;
}

/* --- setting it --- */

/* A clone knows when its VMM was started, not how long its restore took. What is set is late by
 * the way there: on a machine that is busy just then it is set again. */
static void set_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx own = vm_own_ctx(vm), limited = ctx_with_timeout(&own, VM_CLOCK_LIMIT);
    struct err err = ERR_INIT;
    SPAN(step, &limited, vm_timeline(vm), TRACK_HOST, "set clock", &err);
    uint64_t took = UINT64_MAX;

    for (int i = 0; took > VM_CLOCK_QUICK && i < VM_CLOCK_TRIES; i++) {
        uint64_t began = loop_now(vm->o.loop);

        if (vm->p.guest->ops->set_clock(step.ctx, vm->p.guest, loop_wall(vm->o.loop), &err) < 0) {
            if (!vm->p.life.fired)
                log_warn(&own, "the clone's clock may be behind", F_ERR(&err));
            break;
        }
        took = loop_now(vm->o.loop) - began;
    }
    span_end(&step);
    latch_set(&vm->clock_set);
    vm_drop(vm);
}

/* Beside everything else: only a program that runs can see it, and vm_await_clock holds it back. */
void vm_set_clock(struct vm *vm)
{
    struct vmm_info info;

    vm_info(vm, &info);
    if (!info.clone) {
        latch_set(&vm->clock_set);
        return;
    }
    vm_hold(vm);
    fiber_go(vm->o.loop, set_main, vm, "vm.set-clock %s", vm->id);
}

int vm_await_clock(struct ctx *ctx, struct vm *vm, struct err *err)
{
    return latch_wait(ctx, &vm->clock_set, "the guest's clock to be set", err);
}

static int pass_on(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, VM_CLOCK_STEP_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "set the clock", err);

    return in ? in->guest->ops->set_clock(&limited, in->guest, loop_wall(vm->o.loop), err) : -1;
}

/* The guest's clock runs by itself, but the guest does not notice when the host's clock is set. */
static void follow_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx own = vm_own_ctx(vm), ctx = ctx_with_cancel(&own, &vm->p.life);
    struct err err = ERR_INIT;
    AUTO_FD int fd = clock_step_open(&err);

    while (fd >= 0 && clock_step_wait(&ctx, fd, &err) == 0) {
        if (pass_on(&ctx, vm, &err) < 0 && !vm->p.life.fired)
            log_warn(&ctx, "the guest's clock could not be set", F_ERR(&err));
        err_clear(&err);
    }
}

void vm_follow_clock(struct vm *vm)
{
    fibers_go(&vm->fibers, vm->o.loop, follow_main, vm, FIBER_VM_CLOCK "%s", vm->o.id);
}
