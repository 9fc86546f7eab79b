/* vm_priv.h - the inside of the VM controller, for vm*.c and its tests. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "base/gate.h"
#include "base/span.h"
#include "host/control/vm.h"
#include "host/control/vm_clock.h"
#include <stdint.h>

struct scratch;
struct turn;

/* Every wait of this controller that no caller bounds has its limit here. */
#define VM_START_LIMIT (120 * NS_PER_S) /* from the first listener to the negotiated bridge */
#define VM_CLOCK_LIMIT (5 * NS_PER_S)
#define VM_CLOCK_STEP_LIMIT (10 * NS_PER_S) /* to pass on that the host's clock was set */
#define VM_CLOCK_QUICK (25 * NS_PER_MS)     /* there and back */
#define VM_CLOCK_TRIES 8
#define VM_TURN_HOLD (30 * NS_PER_S)    /* at most, for a container to start */
#define VM_TURN_WORTH NS_PER_MS         /* less is not worth showing */
#define VM_WHY_LIMIT NS_PER_S           /* how the VMM ended, after its guest was lost */
#define VM_LOST_LIMIT (50 * NS_PER_MS)  /* the same, when exits wait to be published */
#define VM_KILL_LIMIT (10 * NS_PER_S)   /* until a killed VMM has ended */
#define VM_DRAIN_LIMIT NS_PER_S         /* the guest's last log lines */
#define VM_QUIET_LIMIT (10 * NS_PER_S)  /* until the woken fibers have left */
#define VM_QUIT_LIMIT (5 * NS_PER_S)    /* stop: the VMM's own orderly end */
#define VM_CLOSE_LIMIT (120 * NS_PER_S) /* until it is Gone and its fibers have ended */
#define VM_DRIVERS_LIMIT (15 * NS_PER_S)
#define VM_CGROUP_TRIES 8
#define VM_CGROUP_PAUSE (20 * NS_PER_MS) /* before the second; doubles */
#define VM_STACKS_LIMIT (5 * NS_PER_S)
#define VM_CONSOLE_TAIL 2048 /* bytes of its console, logged when it ends by itself */
#define VM_RELEASE_TRIES 6
#define VM_RELEASE_LIMIT (5 * NS_PER_S)    /* for one try */
#define VM_RELEASE_PAUSE (100 * NS_PER_MS) /* before the second; doubles */
/* From a kill until vm_wait has answered, whatever hangs. */
#define VM_END_LIMIT                                                                               \
    (VM_KILL_LIMIT + VM_DRAIN_LIMIT + 2 * VM_QUIET_LIMIT + VM_RELEASE_TRIES * VM_RELEASE_LIMIT +   \
     (VM_RELEASE_PAUSE << VM_RELEASE_TRIES))

enum vm_event {
    VM_EV_PREPARED,
    VM_EV_BOOT,
    VM_EV_UP,
    VM_EV_STOP,           /* its end was requested */
    VM_EV_ENDED,          /* the VMM, or there is none */
    VM_EV_RELEASED,       /* all that the backend owned is cleaned up */
    VM_EV_RELEASE_FAILED, /* something is not; vm_kill tries again */
    VM_EV_COUNT
};

struct vm {
    struct vm_parts p; /* first: vm_leave */
    struct vm_opts o;  /* loop only, unless it is a pod's */
    unsigned refs;
    char *id; /* the document's; NULL before vm_start */
    struct gate gate;
    enum vm_state state;
    struct waitq changed; /* woken with everything that is waited for */
    struct cancel *op;    /* of the start inside the gate, on its stack; NULL if none */
    size_t calls;         /* fibers inside the VM or its guest */

    /* The end. */
    enum vm_end end;
    char failure[256]; /* why, of VM_END_FAILED */
    enum reason failure_reason;
    struct vmm_exit vmm_exit;
    uint64_t grace_ns;
    bool reaping;           /* the one fiber that sees it to its end is at work */
    unsigned reap_failures; /* rounds */
    struct err reap_err;    /* of the last of them */
    struct vm_exit exit;

    /* Clocks. */
    struct latch clock_set; /* or given up: before that no program runs */
    bool clock_checked;     /* or under way: */
    bool clock_checking;
    struct vm_clock clock;

    void (*on_stage)(void *arg, enum vm_stage stage);
    void *on_stage_arg;

    /* Of a pod's VM. */
    struct fibers fibers;     /* that use it */
    struct err boot_err;      /* why it is of no use */
    struct latch ready;       /* booted, the scratch disk is there */
    struct timeline timeline; /* unless the VMM has one */
    struct scratch *scratch;
    struct latch scratch_made; /* or scratch_err is set */
    struct err scratch_err;
    bool memory_unsure, cpus_unsure; /* a change failed half-way: the VM may have another size */
    struct turn *turn;               /* to start; until a container has */
    struct latch first_start;
};

/* A background fiber's ctx: without a cancel, with the VM's identifier. */
struct ctx vm_own_ctx(const struct vm *vm);
/* It has failed by itself: the first failure is the one that is reported. */
void vm_set_failure(struct vm *vm, const struct err *err);
/* Starts the reaper unless it is at work. */
void vm_reap(struct vm *vm);
/* For a fiber that outlasts its caller's vm_enter. */
void vm_hold(struct vm *vm);
void vm_drop(struct vm *vm);
/* vm_boot.c: without booting it; and the fiber that sees that its guest is lost. */
struct vm *vm_of(const struct vm_opts *o);
void vm_watch_guest(struct vm *vm);
/* vm_clock.c: a clone's clock is set; that of a pod's VM follows the host's from now on. */
void vm_set_clock(struct vm *vm);
void vm_follow_clock(struct vm *vm);
void vm_clock_begin(struct vm *vm); /* vm_clock_check, whatever was before */
