/* qemu_exit.c - why QEMU stopped the VM or exited, from what the host knows. If lcow did not ask
 * for a stop, the VM has failed: its vCPUs do not run again, so everything that waits for the guest
 * would wait without limit. */
#include "host/vmm/qemu/qemu_priv.h"
#include "proto/qmp.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define STATUS_NS (5 * NS_PER_S)

/* --- words --- */

/* What QEMU prints when KVM_RUN fails or returns what it cannot go on from; registers follow. */
static bool says_kvm_failed(const char *line)
{
    static const char *const words[] = { "kvm run failed", "KVM internal error",
                                         "KVM: entry failed", "KVM: exception ",
                                         "KVM: unknown exit" };

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strstr(line, words[i]))
            return true;
    return false;
}

static void take_line(const struct ctx *ctx, struct qemu_words *w)
{
    size_t n = w->line_len, have = strlen(w->tail);

    w->line[n] = '\0';
    w->line_len = 0;
    if (n == 0 || w->kvm_error[0])
        return;
    if (strstr(w->line, "warning: ")) {
        log_debug(ctx, "warning of QEMU", F_STR("text", w->line));
        return;
    }
    if (says_kvm_failed(w->line)) {
        memcpy(w->kvm_error, w->line, n + 1);
        return;
    }
    while (have > 0 && have + strlen(QEMU_WORDS_BETWEEN) + n > QEMU_WORDS_KEEP) {
        const char *next = strstr(w->tail, QEMU_WORDS_BETWEEN);
        const char *rest = next ? next + strlen(QEMU_WORDS_BETWEEN) : "";

        have = strlen(rest);
        memmove(w->tail, rest, have + 1);
    }
    snprintf(w->tail + have, sizeof(w->tail) - have, "%s%s", have ? QEMU_WORDS_BETWEEN : "",
             w->line);
}

void qemu_words_feed(const struct ctx *ctx, struct qemu_words *w, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (data[i] == '\n')
            take_line(ctx, w);
        else if (w->line_len < QEMU_WORDS_LINE)
            w->line[w->line_len++] = data[i] >= ' ' && data[i] <= '~' ? data[i] : '?';
    }
}

const char *qemu_words_last(const struct ctx *ctx, struct qemu_words *w)
{
    take_line(ctx, w);
    return w->kvm_error[0] ? w->kvm_error : w->tail;
}

/* --- an exit --- */

#define WHY(e, ...) ((void)snprintf((e)->why, sizeof((e)->why), __VA_ARGS__))

/* An orderly exit, by the reason of the SHUTDOWN event. */
static const struct {
    const char *reason;
    bool panicked, powered_off;
    enum reason means;
    const char *why;
} ends[] = {
    { "guest-shutdown", false, true, REASON_VM_ENDED, "the guest powered off" },
    { "guest-panic", true, false, REASON_GUEST_PANIC, "the guest kernel panicked" },
    { "guest-reset", false, false, REASON_GUEST_RESET,
      "the guest reset its VM without a kernel panic: a reboot in the guest, or a triple fault" },
};

static void say_exited(struct qemu_proc *p, struct vmm_exit *e, const char *words)
{
    /* After a panic the kernel reboots (panic=-1), which QEMU reports as a reset. */
    bool panicked = p->panicked || p->vm->console.panicked;
    const char *reason =
        panicked && !str_eq(p->shutdown_why, "guest-shutdown") ? "guest-panic" : p->shutdown_why;
    int code = WEXITSTATUS(e->status);

    for (size_t i = 0; code == 0 && i < ARRAY_LEN(ends); i++)
        if (str_eq(reason, ends[i].reason)) {
            e->panicked = ends[i].panicked;
            e->powered_off = ends[i].powered_off;
            e->reason = ends[i].means;
            WHY(e, "%s", ends[i].why);
            return;
        }
    e->reason = REASON_QEMU_FAILED;
    if (*words)
        WHY(e, "qemu exited with status %d: %s", code, words);
    else
        WHY(e, "qemu exited with status %d%s%s", code, *reason ? " because of " : "", reason);
}

static void say_killed(struct qemu_proc *p, struct vmm_exit *e, const char *words)
{
    int sig = WTERMSIG(e->status);
    const char *name = sigabbrev_np(sig);
    AUTO_FREE char *oom = NULL;

    e->oom = sig == SIGKILL && oom_watch_hit(&p->oom, &oom);
    e->reason = e->oom ? REASON_HOST_OOM : sig == SIGSYS ? REASON_QEMU_SECCOMP : REASON_QEMU_KILLED;
    if (e->oom)
        WHY(e,
            "qemu was killed by signal 9 (SIGKILL) by the host's OOM killer: %s%sa memory limit of "
            "the pod must also hold the VM's overhead (of its RuntimeClass; see lcow overhead)",
            oom, *oom ? "; " : "");
    else
        WHY(e, "qemu was killed by signal %d (SIG%s)%s%s%s", sig, name ? name : "?",
            sig == SIGSYS ? " by its sandbox" : "", *words ? ": " : "", words);
}

/* Killed by us after a stop that lcow did not request. */
static void say_stopped(struct qemu_proc *p, struct vmm_exit *e, const char *words)
{
    e->panicked = str_eq(p->stopped, "guest-panicked");
    e->reason = e->panicked             ? REASON_GUEST_PANIC
                : p->words.kvm_error[0] ? REASON_KVM_FAILED
                                        : REASON_VM_STOPPED;
    if (e->panicked)
        WHY(e, "the guest kernel panicked");
    else
        WHY(e, "the VM has failed: QEMU stopped it with status %s%s%s", p->stopped,
            *words ? ": " : "", words);
}

void qemu_exit_fill(struct qemu_proc *p, int status)
{
    struct qemu *q = p->vm;
    struct vmm_exit *e = &p->exit;
    const char *words = qemu_words_last(&p->ctx, &p->words);

    *e = (struct vmm_exit){ .status = status, .at_wall_ns = loop_wall(q->loop) };
    if (WIFSIGNALED(status))
        say_killed(p, e, words);
    else
        say_exited(p, e, words);
    if (p->stopped[0]) {
        say_stopped(p, e, words);
    } else if (p->given_up[0]) {
        WHY(e, "%s", p->given_up);
        e->reason = p->given_up_reason;
    } else if (q->dying || q->quitting) {
        e->requested = true;
        e->why[0] = '\0';
        e->reason = REASON_NONE;
    }
}

/* --- a stop --- */

/* The end of a template's save, the beginning of a clone; or it runs again already. Any other
 * status is a failure, also one that a newer QEMU has and we do not know. */
static bool is_expected(enum qemu_form form, const char *status)
{
    static const struct {
        const char *status;
        enum qemu_form form;
    } expected[] = { { "finish-migrate", QEMU_TEMPLATE }, { "postmigrate", QEMU_TEMPLATE },
                     { "save-vm", QEMU_TEMPLATE },        { "inmigrate", QEMU_CLONE },
                     { "prelaunch", QEMU_CLONE },         { "restore-vm", QEMU_CLONE } };

    for (size_t i = 0; i < ARRAY_LEN(expected); i++)
        if (form == expected[i].form && str_eq(status, expected[i].status))
            return true;
    return str_eq(status, "running");
}

/* False: it has exited, and its exit says why. */
static bool look_once(struct qemu_proc *p)
{
    struct ctx limited = ctx_with_timeout(&p->ctx, STATUS_NS);
    AUTO(qmp_message_release) struct qmp_message m = { 0 };
    struct err err = ERR_INIT;
    const char *status = NULL;
    unsigned resumed = p->resumed;

    if (qmp_client_call(&limited, p->qmp, "query-status", NULL, &m, &err) == 0)
        (void)js_str(m.data, "status", &status, &err); /* missing: unknown */
    else if (err.code == ERR_UNAVAILABLE)
        return false;
    /* A client that ends the VM has asked for this stop, too. */
    if (p->resumed != resumed || p->vm->dying || p->vm->quitting ||
        (status && is_expected(p->vm->form, status)))
        return true;

    AUTO_FREE char *plain = str_printable(status ? status : "unknown");

    log_debug(&p->ctx, "QEMU stopped the VM, killing it", F_STR("status", plain), F_ERR(&err));
    snprintf(p->stopped, sizeof(p->stopped), "%s", plain);
    qemu_proc_kill(p);
    return false;
}

static void look(void *arg)
{
    struct qemu_proc *p = arg;
    unsigned seen;

    do
        seen = p->stops;
    while (look_once(p) && p->stops != seen);
    p->looking = false;
}

void qemu_stopped(struct qemu_proc *p)
{
    p->stops++;
    if (p->looking)
        return; /* it looks again */
    p->looking = true;
    fibers_go(&p->readers, p->vm->loop, look, p, "qemu stopped");
}
