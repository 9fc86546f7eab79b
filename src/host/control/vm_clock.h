/* vm_clock.h - does the guest's clock run as ours does? Two readings of it, a second or more apart,
 * each between two readings of ours: that gives bounds, not an estimate. A busy machine makes them
 * wider, so the second reading is repeated later and later until they decide, or a limit is
 * reached. They are never wrong. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct vm;

/* What a clock may be off by: 0.1 %. Bounds closer than VM_CLOCK_CLOSE_PPM show one that is off by
 * 1 % or more for sure. */
#define VM_CLOCK_PPM 1000
#define VM_CLOCK_CLOSE_PPM 8000

struct vm_clock_look {
    uint64_t before, guest, after; /* ns; ours, the guest's, ours again */
};

enum vm_clock_verdict { VM_CLOCK_UNKNOWN, VM_CLOCK_GOOD, VM_CLOCK_OFF };
struct vm_clock {
    enum vm_clock_verdict verdict;
    int64_t low_ppm, high_ppm; /* too fast by at least, by at most; both 0: never measured */
};
const char *vm_clock_verdict_name(enum vm_clock_verdict s); /* "unknown", "good", "off" */

/* Pure. GOOD if all of the bounds are within VM_CLOCK_PPM, OFF if none, else UNKNOWN. */
struct vm_clock vm_clock_compare(const struct vm_clock_look *first,
                                 const struct vm_clock_look *last);
/* "runs 0.95 … 1.05 % too fast", "runs as the host's to within 0.07 %". */
#define VM_CLOCK_TEXT 96
void vm_clock_text(const struct vm_clock *c, char buf[VM_CLOCK_TEXT]);

/* Waits for at least a second, at most limit_ns and the calls under way. Fails if the guest does
 * not report its clock. The caller is inside a call (vm_enter). */
int vm_clock_measure(struct ctx *ctx, struct vm *vm, uint64_t limit_ns, struct vm_clock *ret,
                     struct err *err);

/* Measures once in the life of the VM, in the background, beginning two seconds from now; logs it
 * if the clock is off, and reports it to the backend. Never waits. Nothing stays of it. */
void vm_clock_check(struct vm *vm);
/* What that has found. */
struct vm_clock vm_clock(const struct vm *vm);
