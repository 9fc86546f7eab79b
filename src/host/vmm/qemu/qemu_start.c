/* qemu_start.c - from a created VM to a running QEMU: spawn, greeting, and the proof of KVM. */
#include "base/child.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void publish(struct qemu *q, const struct vmm_exit *exit)
{
    if (q->ended.set)
        return;
    q->exit = *exit;
    fsm_step(&qemu_fsm, &q->state, QEMU_EV_ENDED);
    qlink_close(q->link, "the VM has ended");
    latch_set(&q->ended);
}

void qemu_proc_ended(struct qemu *q, struct qemu_proc *p)
{
    qemu_clone_ended(q, p);
    if (q->proc == p && !q->proving)
        publish(q, &p->exit);
    waitq_wake_all(&q->stage_q);
}

/* It ended instead of greeting: its own words are the best error, unless it is just too old to
 * understand us. */
static void explain_early_end(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct qemu_proc *p = q->proc;
    struct ctx limited = ctx_with_timeout(ctx, 2 * NS_PER_S);
    struct err version = ERR_INIT, ignored = ERR_INIT;
    char text[64];

    if (q->dying || err->code != ERR_UNAVAILABLE)
        return;
    if (latch_wait(&limited, &p->gone, "qemu's end", &ignored) < 0)
        return;
    err_set(err, ERR_UNAVAILABLE, "%s", p->exit.why);
    if (WIFEXITED(p->exit.status) && WEXITSTATUS(p->exit.status) == 1 &&
        qemu_version(ctx, q->program, text, &version) < 0 && version.code == ERR_STATE)
        *err = version;
}

static int greet(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct timeline *t = q->vmm.timeline;
    struct ctx limited = ctx_with_timeout(ctx, QEMU_GREETING_NS);
    struct qmp_version version;
    int span = timeline_begin(t, TRACK_VMM, "QMP greeting", loop_now(q->loop));
    int r = qmp_client_connect(&limited, q->proc->qmp, &version, err);

    timeline_end(t, span, loop_now(q->loop));
    if (r < 0) {
        explain_early_end(ctx, q, err);
        return -1;
    }
    q->greeted_at = loop_now(q->loop);
    snprintf(q->version, sizeof(q->version), "%u.%u.%u", version.major, version.minor,
             version.micro);
    return qemu_check_version(q->program, q->version, err);
}

static int start_once(struct ctx *ctx, struct qemu *q, struct err *err)
{
    if (qemu_proc_spawn(ctx, q, &q->proc, err) < 0)
        return -1;
    qemu_raise_stage(q, VM_STAGE_SPAWNED);
    return greet(ctx, q, err);
}

/* "CPU 0/KVM" is what QEMU calls the thread (debug-threads=on). */
static uint64_t vcpu_time(pid_t pid)
{
    AUTO_FREE char *dir = str_format("/proc/%d/task", pid);
    DIR *tasks = opendir(dir);
    uint64_t sum = 0;

    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        AUTO_FREE char *path = str_format("%s/%s/stat", dir, d->d_name), *text = NULL;
        uint64_t ns;
        size_t len;

        if (file_read_all(path, 4096, &text, &len) == 0 && strstr(text, "(CPU ") &&
            qemu_read_cpu(text, &ns) == 0)
            sum += ns;
    }
    if (tasks)
        closedir(tasks);
    return sum;
}

/* Whether the boot so far proves that KVM does not work. Anything else may be the fault of the
 * host's load or memory, or of the configuration, and is tried again by the next VM. */
static bool kvm_failed(struct qemu *q, struct accel_failure *ret)
{
    uint64_t enough =
        q->test_env && q->test_env->proof_cpu_ns ? q->test_env->proof_cpu_ns : QEMU_PROOF_CPU_NS;

    ret->at_s = loop_wall(q->loop) / NS_PER_S;
    if (q->proc->words.kvm_error[0]) {
        snprintf(ret->reason, sizeof(ret->reason), "%.159s", q->proc->words.kvm_error);
        return true;
    }
    if (q->proc->gone.set || q->console.total > 0 || vcpu_time(child_pid(q->proc->child)) < enough)
        return false;
    snprintf(ret->reason, sizeof(ret->reason),
             "the guest executed nothing: no output after %llu s of vCPU time",
             (unsigned long long)(enough / NS_PER_S));
    return true;
}

/* KVM counts only when a kernel has said something under it. Looks once a second: there is no event
 * for CPU time. */
static int prove(struct ctx *ctx, struct qemu *q, struct accel_failure *failure, struct err *err)
{
    while (q->stage < VM_STAGE_KERNEL) {
        struct ctx second = ctx_with_timeout(ctx, NS_PER_S);

        if (q->proc->gone.set)
            return err_set(err, ERR_UNAVAILABLE, "%s", q->proc->exit.why);
        if (waitq_wait(&second, &q->stage_q, "the first boot with KVM", err) == 0)
            continue;
        if (ctx_check(ctx, err) < 0)
            return err_wrap(err, "the guest kernel has printed nothing yet");
        err_clear(err);
        if (kvm_failed(q, failure))
            return err_set(err, ERR_UNAVAILABLE, "KVM failed: %s", failure->reason);
    }
    return 0;
}

/* No time or no memory is left for another. */
static bool is_hopeless(struct ctx *ctx, const struct qemu *q)
{
    struct err over = ERR_INIT;

    return ctx_check(ctx, &over) < 0 || (q->proc && q->proc->gone.set && q->proc->exit.oom);
}

/* Ends the process that failed and starts another in its place: the VM has not ended. */
static int start_again(struct ctx *ctx, struct qemu *q, struct err *err)
{
    if (q->proc) {
        qemu_proc_kill(q->proc);
        if (qemu_proc_drop(ctx, q->proc, err) < 0)
            return -1;
        q->proc = NULL;
    }
    err_clear(err);
    q->proving = false;
    return start_once(ctx, q, err);
}

static int start_proving(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct accel_failure failure = { 0 };
    int r = start_once(ctx, q, err);

    if (r == 0)
        r = prove(ctx, q, &failure, err);
    bool failed = r < 0 && q->proc && kvm_failed(q, &failure);

    if (r == 0)
        accel_remember_works(&q->accel_env);
    else if (failed)
        accel_remember_failure(&q->accel_env, &failure);
    if (r == 0 || is_hopeless(ctx, q))
        return r;
    if (q->doc.accel == VM_ACCEL_KVM || !q->doc.allow_emulation)
        return err_wrap(err, failed ? "first boot with KVM (set 'allow_emulation = true' in "
                                      "/etc/lcow/lcow.conf or give --allow-emulation to go on "
                                      "without)"
                                    : "first boot with KVM");
    log_warn(&q->life, "the first boot with KVM failed, going on with emulation", F_ERR(err));
    q->accel = (struct accel_choice){ .emulated = true };
    return start_again(ctx, q, err);
}

/* Anything that goes wrong with a clone is answered by a cold start, once; but not where there is
 * no time left, or no memory. */
static int start_clone(struct ctx *ctx, struct qemu *q, struct err *err)
{
    int r;

    q->form = QEMU_CLONE;
    q->proving = true; /* its end is not yet the VM's */
    r = start_once(ctx, q, err);
    if (r == 0)
        r = qemu_clone_restore(ctx, q, err);
    if (r == 0 || q->doc.template_draft || is_hopeless(ctx, q))
        return r;
    snprintf(q->cold_why, sizeof(q->cold_why), "%.159s", err->msg);
    log_warn(&q->life, "no clone, going on with a cold start", F_ERR(err));
    q->form = QEMU_COLD;
    q->cpu_ids = 0;
    q->grown_bytes = 0;
    return start_again(ctx, q, err);
}

/* Whatever is left of a start that failed ends now, and wait tells why. */
static void start_failed(struct qemu *q, const struct err *err)
{
    struct vmm_exit exit = { .requested = q->dying,
                             .status = 127 << 8,
                             .at_wall_ns = loop_wall(q->loop) };

    snprintf(exit.why, sizeof(exit.why), "%.255s", err->msg);
    if (!q->proc) {
        publish(q, &exit);
        return;
    }
    if (q->proc->gone.set) {
        publish(q, &q->proc->exit);
        return;
    }
    if (!q->dying)
        snprintf(q->proc->given_up, sizeof(q->proc->given_up), "%.255s", err->msg);
    qemu_proc_kill(q->proc); /* the watcher publishes */
}

int qemu_start(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct qemu *q = qemu_of(v);
    struct qemu_op op;

    if (fsm_check(&qemu_fsm, q->state, QEMU_EV_START, err) < 0)
        return -1;
    fsm_step(&qemu_fsm, &q->state, QEMU_EV_START);
    q->proving = q->accel.prove;
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = ctx_check(&inner, err);
    if (r == 0)
        r = q->proving           ? start_proving(&inner, q, err)
            : q->tpl.ram_fd >= 0 ? start_clone(&inner, q, err)
                                 : start_once(&inner, q, err);
    q->proving = false;
    if (r == 0 && q->proc->gone.set)
        r = err_set(err, ERR_UNAVAILABLE, "%s", q->proc->exit.why);
    if (r < 0) {
        start_failed(q, err);
    } else {
        fsm_step(&qemu_fsm, &q->state, QEMU_EV_STARTED);
        qlink_drop_tap(q->link);
    }
    qemu_op_end(&op);
    return r;
}
