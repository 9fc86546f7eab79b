/* vm.h - the VM controller: one utility VM from its document to its exit.
 *
 * Life: new -> create -> start -> (exec, stacks, stats …) -> terminate or exit by itself -> free.
 * Gate: create and start, one at a time. Queries never wait and answer while anything is stuck.
 * terminate enters no gate: it marks the VM dying and kills it; whoever waits on the VM or its
 * guest wakes with ERR_UNAVAILABLE. A VM that dies never yields exit 0. Exit is told once. */
#pragma once
#include "base/mem.h"
#include "host/vmm/vmm.h"

struct ctx;
struct err;
struct fsm;
struct guest;
struct loop;
struct stream;
struct timeline;
struct vm;
struct vm_process;

enum vm_state { /* names and meaning: reference/host.md §8.1, without migration */
                VM_NOT_CREATED,
                VM_CREATED,
                VM_RUNNING,
                VM_TERMINATED,
                VM_INVALID, /* a start failed: only terminate is useful */
                VM_STATE_COUNT
};
extern const struct fsm vm_fsm;

struct vm_exit {
    bool requested; /* terminate or an orderly power-off */
    bool oom;
    uint32_t code; /* 0 only if requested; else 137 for a killed VMM, 255 otherwise */
    uint64_t started_wall_ns, exited_wall_ns;
    enum vm_stage stage; /* the last one reached */
    char why[256];
};

/* Takes vmm and guest. Caller frees. */
struct vm *vm_new(struct loop *loop, struct vmm *vmm, struct guest *guest);
/* Only after terminate or exit has been seen through (vm_wait). */
void vm_free(struct vm *vm);
AUTO_DEFINE(struct vm *, vm_free);

/* Waits. A failure leaves NotCreated and nothing behind: it may be tried again. */
int vm_create(struct ctx *ctx, struct vm *vm, const struct vm_doc *doc, struct err *err);
/* Waits until the bridge is negotiated; Running already: success at once. Any failure: Invalid,
 * and the VM is already being killed; its error names the last stage reached. */
int vm_start(struct ctx *ctx, struct vm *vm, struct err *err);
/* Kills without asking the guest; waits (bounded by ctx) until all is taken back. Repeatable;
 * NotCreated and Terminated: success. If ctx ends first the work goes on behind it. */
int vm_terminate(struct ctx *ctx, struct vm *vm, struct err *err);
/* Orderly: asks the guest to power off, then escalates to vm_terminate when grace_ns is over. */
int vm_shutdown(struct ctx *ctx, struct vm *vm, uint64_t grace_ns, struct err *err);
/* Until the VM is gone and all it owned is taken back. NotCreated: ERR_STATE. */
int vm_wait(struct ctx *ctx, struct vm *vm, struct vm_exit *ret, struct err *err);

/* Until the VMM itself has ended, long before all is taken back; *ret_killed: by a signal, ours or
 * another's. At once if there is none any more. */
int vm_wait_gone(struct ctx *ctx, struct vm *vm, bool *ret_killed, struct err *err);

/* Why it ended, if nobody asked for it: "qemu was killed by signal 9 (SIGKILL)". "" otherwise, and
 * while it is not known. Never waits. */
const char *vm_gone_why(const struct vm *vm);

/* Was it the host's OOM killer? False while it is not known. Never waits. */
bool vm_gone_by_oom(const struct vm *vm);

/* Around each call that other controllers make to the VM's backend or guest: what the VM owned is
 * taken back when all are out. begin: ERR_STATE, or ERR_UNAVAILABLE while it is dying. */
int vm_call_begin(struct vm *vm, const char *what, struct err *err);
void vm_call_end(struct vm *vm);

/* Before a program runs in it: a clone's clock is behind until then. Waits until ctx ends; the
 * caller is inside a call (vm_call_begin). */
int vm_await_clock(struct ctx *ctx, struct vm *vm, struct err *err);

/* Queries: never wait. */
enum vm_state vm_state(const struct vm *vm);
const char *vm_state_name(enum vm_state s);
enum vm_stage vm_stage(const struct vm *vm);
/* ERR_STATE unless Terminated. */
int vm_exit_status(const struct vm *vm, struct vm_exit *ret, struct err *err);
uint64_t vm_started_at(const struct vm *vm); /* wall ns; 0 if it never ran */
struct timeline *vm_timeline(struct vm *vm);
void vm_info(struct vm *vm, struct vmm_info *ret);
/* The console's last lines: the end of an error report. */
void vm_console_tail(struct vm *vm, size_t max, struct sbuf *out);

/* Called on every stage reached, from the loop; may not wait. */
void vm_on_stage(struct vm *vm, void (*fn)(void *arg, enum vm_stage stage), void *arg);
/* Called once in the VM's life, on the step to Terminated, when all it owned is taken back; may
 * not wait. */
void vm_on_exit(struct vm *vm, void (*fn)(void *arg, const struct vm_exit *e), void *arg);

/* A process in the VM itself, outside containers. terminal with stderr: ERR_INVALID. */
struct vm_exec {
    const char *const *argv;
    const char *const *env;
    const char *cwd; /* NULL: "/" */
    bool terminal;
    uint16_t rows, cols; /* 0: leave */
    bool want_stdin, want_stdout, want_stderr;
};
int vm_exec(struct ctx *ctx, struct vm *vm, const struct vm_exec *e, struct vm_process **ret,
            struct err *err);
uint32_t vm_process_pid(const struct vm_process *p);
/* Borrowed streams; take gives one away (the caller then frees it, which closes it). */
struct stream *vm_process_take_stream(struct vm_process *p, int fd /* 0, 1, 2 */);
/* 0 … 255, also 128 + signal. A VM that dies first: ERR_UNAVAILABLE, never 0. */
int vm_process_wait(struct ctx *ctx, struct vm_process *p, uint32_t *ret_code, struct err *err);
int vm_process_signal(struct ctx *ctx, struct vm_process *p, int signo, struct err *err);
int vm_process_resize(struct ctx *ctx, struct vm_process *p, uint16_t rows, uint16_t cols,
                      struct err *err);
void vm_process_free(struct vm_process *p);
AUTO_DEFINE(struct vm_process *, vm_process_free);

int vm_dump_stacks(struct ctx *ctx, struct vm *vm, char **ret_text, struct err *err);
int vm_stats(struct ctx *ctx, struct vm *vm, struct vmm_stats *ret, struct err *err);
