#include "host/control/vm_clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include <inttypes.h>
#include <stdio.h>

#define FIRST_NS NS_PER_S
#define TRIES 8                  /* for one reading; the quickest counts */
#define QUICK_NS (NS_PER_MS / 2) /* there and back: it does not get better */
#define CHECK_NS (8 * NS_PER_S)
#define CHECK_DELAY (2 * NS_PER_S) /* who ends before that is not bothered */

const char *vm_clock_state_name(enum vm_clock_state s)
{
    return s == VM_CLOCK_GOOD ? "good" : s == VM_CLOCK_OFF ? "off" : "unknown";
}

/* By how much the guest's span is longer than ours; a guest may tell anything. */
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
        c.state = VM_CLOCK_GOOD;
    else if (c.low_ppm > VM_CLOCK_PPM || c.high_ppm < -VM_CLOCK_PPM)
        c.state = VM_CLOCK_OFF;
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
        struct vm_clock_look l = { .before = loop_now(vm->loop) };

        if (vm->guest->ops->read_clock(ctx, vm->guest, &l.guest, err) < 0)
            return -1;
        l.after = loop_now(vm->loop);
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
    while (loop_now(vm->loop) < until) {
        struct ctx limited = ctx_with_timeout(ctx, until - loop_now(vm->loop));
        struct err ignored = ERR_INIT;

        if (vm->killed || vm->gone)
            return err_set(err, ERR_UNAVAILABLE, "the VM has ended");
        (void)waitq_wait(&limited, &vm->gone_q, "the next look at the guest's clock", &ignored);
        if (ctx_check(ctx, err) < 0)
            return -1;
    }
    return 0;
}

int vm_clock_measure(struct ctx *ctx, struct vm *vm, uint64_t limit_ns, struct vm_clock *ret,
                     struct err *err)
{
    struct ctx own = ctx_with_cancel(ctx, &vm->kill);
    struct vm_clock_look first = { 0 }, last = { 0 };
    struct vm_clock c = { 0 };

    if (look(&own, vm, &first, err) < 0)
        return err_wrap(err, "read the guest's clock");
    for (uint64_t span = FIRST_NS; c.state == VM_CLOCK_UNKNOWN && span <= limit_ns; span *= 2) {
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
    struct ctx root, own = vm_own_ctx(vm, &root), ctx = ctx_with_cancel(&own, &vm->kill),
                     limited = ctx_with_timeout(&ctx, CHECK_DELAY + 4 * CHECK_NS);
    struct err err = ERR_INIT;
    char text[VM_CLOCK_TEXT];

    if (pass(&limited, vm, loop_now(vm->loop) + CHECK_DELAY, &err) < 0 ||
        vm_clock_measure(&limited, vm, CHECK_NS, &vm->clock, &err) < 0) {
        log_debug(&own, "the guest's clock was not compared", F_ERR(&err));
    } else {
        vm_clock_text(&vm->clock, text);
        if (vm->clock.state == VM_CLOCK_OFF)
            log_error(&own, "the guest's clock is wrong; start the pod anew", F_STR("clock", text));
        else
            log_debug(&own, "the guest's clock was compared",
                      F_STR("state", vm_clock_state_name(vm->clock.state)), F_STR("clock", text));
    }
    if (vm->clock.state != VM_CLOCK_UNKNOWN && vm->vmm->ops->judge) {
        char why[VM_CLOCK_TEXT + 64];

        snprintf(why, sizeof(why), "the clock of a VM that was cloned from it %s", text);
        vm->vmm->ops->judge(vm->vmm, vm->clock.state == VM_CLOCK_OFF ? why : NULL);
    }
    vm_call_end(vm);
}

void vm_clock_check(struct vm *vm)
{
    if (vm->clock_checked || vm->state != VM_RUNNING || vm->killed || vm->gone)
        return;
    vm->clock_checked = true;
    vm->calls++;
    fiber_go(vm->loop, check_main, vm, "vm.check-clock %s", vm->id);
}

struct vm_clock vm_clock(const struct vm *vm)
{
    return vm->clock;
}
