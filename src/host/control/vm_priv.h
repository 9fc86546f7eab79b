/* vm_priv.h - the inside of the VM controller, for vm*.c and its test. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "host/control/vm.h"
#include "host/control/vm_clock.h"
#include <stdint.h>

/* Every wait of this controller that no caller bounds has its limit here. */
#define VM_START_LIMIT (120 * NS_PER_S) /* from the first listener to the negotiated bridge */
#define VM_CLOCK_LIMIT (5 * NS_PER_S)
#define VM_CLOCK_GOOD (25 * NS_PER_MS) /* there and back */
#define VM_CLOCK_TRIES 8
#define VM_WHY_LIMIT NS_PER_S          /* how the VMM ended, after its guest was lost */
#define VM_KILL_LIMIT (10 * NS_PER_S)  /* until a killed VMM is gone */
#define VM_DRAIN_LIMIT NS_PER_S        /* the guest's last log lines */
#define VM_QUIET_LIMIT (10 * NS_PER_S) /* until those who were woken have left */
#define VM_QUIT_LIMIT (5 * NS_PER_S)   /* shutdown: the VMM's own orderly end */
#define VM_STACKS_LIMIT (5 * NS_PER_S)
#define VM_LAST_WORDS 2048 /* bytes of its console, told when it ends unasked */
#define VM_RELEASE_TRIES 6
#define VM_RELEASE_LIMIT (5 * NS_PER_S)    /* for one try */
#define VM_RELEASE_PAUSE (100 * NS_PER_MS) /* before the second; doubles */
/* From a kill until vm_wait has answered, whatever hangs. */
#define VM_END_LIMIT                                                                               \
    (VM_KILL_LIMIT + VM_DRAIN_LIMIT + 2 * VM_QUIET_LIMIT + VM_RELEASE_TRIES * VM_RELEASE_LIMIT +   \
     (VM_RELEASE_PAUSE << VM_RELEASE_TRIES))

enum vm_event {
    VM_EV_CREATED,
    VM_EV_CREATE_FAILED,
    VM_EV_STARTED,
    VM_EV_START_FAILED,
    VM_EV_RELEASED,       /* gone, and all it owned is taken back */
    VM_EV_RELEASE_FAILED, /* gone or not, something could not be taken back */
    VM_EV_COUNT
};

struct vm {
    struct loop *loop;
    struct vmm *vmm;     /* owned */
    struct guest *guest; /* owned */
    char *id;            /* the document's; NULL before create */
    struct gate gate;
    enum vm_state state;
    struct cancel *op; /* the changing operation inside the gate, on its stack; NULL if none */

    /* What is known about the end. */
    bool asked;   /* a client wanted it to end, and nothing had gone wrong before */
    bool failed;  /* create or start failed by itself; why is in failure */
    bool killed;  /* no way back */
    bool started; /* the backend was told to start */
    bool gone;    /* the VMM has ended */
    bool ran;     /* was Running once */
    char failure[256];
    struct vmm_exit vmm_exit;
    struct cancel kill;  /* fired with killed */
    struct waitq gone_q; /* woken with gone */

    /* The reaper: the one fiber that sees the VM to its end. */
    enum { REAP_IDLE, REAP_WATCHING, REAP_DONE, REAP_FAILED } reap;
    struct waitq reap_q;    /* woken with REAP_DONE and REAP_FAILED */
    struct err reap_err;    /* of the last round that failed */
    unsigned reap_failures; /* rounds */
    struct vm_exit exit;

    size_t calls; /* fibers inside the VM or its guest on our behalf */
    struct waitq calls_q;
    struct latch clock_set; /* or given up: whoever runs a program waits for it */
    bool clock_checked;     /* or under way */
    struct vm_clock clock;
    bool shutting_down;
    uint64_t grace_ns;

    enum vm_stage stage;
    uint64_t started_wall_ns;
    void (*on_stage)(void *arg, enum vm_stage stage);
    void *on_stage_arg;
    void (*on_exit)(void *arg, const struct vm_exit *e);
    void *on_exit_arg;
};

/* A background fiber's ctx: nobody's cancel, the VM's identifier. */
struct ctx vm_own_ctx(const struct vm *vm, struct ctx *root);
/* Marks the VM dying, kills it, wakes all who wait on it. Repeatable. Never waits. */
void vm_kill(struct vm *vm, const char *why);
/* The first failure is the one that is told. */
void vm_note_failure(struct vm *vm, const struct err *err);
/* Starts the reaper unless it runs. */
void vm_reap(struct vm *vm);
/* One round of taking back, with its repetitions. */
int vm_release(struct ctx *ctx, struct vm *vm, struct err *err);
