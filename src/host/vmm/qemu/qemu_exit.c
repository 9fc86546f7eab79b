/* qemu_exit.c - why QEMU ended, from what the host knows. */
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* --- the OOM killer --- */

/* "12:memory:/path" (v1) or "0::/path" (v2) of /proc/PID/cgroup becomes the file that counts. */
static bool counter_file(pid_t pid, char *path, size_t size)
{
    AUTO_FREE char *proc = str_format("/proc/%d/cgroup", pid), *text = NULL;
    const char *root = NULL, *file = NULL, *at = NULL;
    size_t len;

    if (file_read_all(proc, 64 * 1024, &text, &len) < 0)
        return false;
    char *v1 = strstr(text, ":memory:"), *v2 = strstr(text, "0::");
    if (v1) {
        at = v1 + strlen(":memory:");
        root = "/sys/fs/cgroup/memory";
        file = "memory.oom_control";
    } else if (v2) {
        at = v2 + strlen("0::");
        root = "/sys/fs/cgroup";
        file = "memory.events";
    } else {
        return false;
    }
    int n = snprintf(path, size, "%s%.*s/%s", root, (int)strcspn(at, "\n"), at, file);
    return n > 0 && (size_t)n < size;
}

static bool read_counter(const char *path, uint64_t *ret)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    if (file_read_all(path, 4096, &text, &len) < 0)
        return false;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        if (str_starts(line, "oom_kill "))
            return str_to_u64(line + strlen("oom_kill "), UINT64_MAX, ret) == 0;
    return false;
}

void oom_watch_begin(struct oom_watch *w, pid_t pid)
{
    if (!counter_file(pid, w->path, sizeof(w->path)) || !read_counter(w->path, &w->before))
        w->path[0] = '\0';
}

bool oom_watch_hit(const struct oom_watch *w)
{
    uint64_t now;

    return w->path[0] && read_counter(w->path, &now) && now > w->before;
}

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
    size_t n = w->line_len + 1;

    w->line[w->line_len] = '\0';
    w->line_len = 0;
    if (!w->line[0] || w->kvm_error[0])
        return;
    if (strstr(w->line, "warning: ")) {
        log_debug(ctx, "qemu warns", F_STR("text", w->line));
        return;
    }
    if (says_kvm_failed(w->line)) {
        memcpy(w->kvm_error, w->line, n);
        return;
    }
    size_t over = w->len + n > QEMU_WORDS_KEEP ? w->len + n - QEMU_WORDS_KEEP : 0;
    memmove(w->tail, w->tail + over, w->len - over);
    memcpy(w->tail + w->len - over, w->line, n - 1);
    w->len += n - over;
    w->tail[w->len - 1] = '\n';
    w->tail[w->len] = '\0';
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

char *qemu_words_last(const struct ctx *ctx, struct qemu_words *w)
{
    struct sbuf b = { 0 };

    take_line(ctx, w);
    if (w->kvm_error[0])
        return str_dup(w->kvm_error);

    size_t from = w->len > 200 ? w->len - 200 : 0;

    if (from > 0) {
        const char *line = strchr(w->tail + from, '\n');
        if (line && line[1])
            from = (size_t)(line + 1 - w->tail);
    }
    for (size_t i = from; i < w->len; i++) {
        if (w->tail[i] != '\n')
            sbuf_addc(&b, w->tail[i]);
        else if (i + 1 < w->len)
            sbuf_adds(&b, " / ");
    }
    return sbuf_take(&b);
}

static void say_exited(struct qemu_proc *p, struct vmm_exit *e, const char *words)
{
    int code = WEXITSTATUS(e->status);

    if (code == 0 && str_eq(p->shutdown_why, "guest-shutdown")) {
        e->powered_off = true;
        snprintf(e->why, sizeof(e->why), "the guest powered off");
    } else if (code == 0 && (p->panicked || str_eq(p->shutdown_why, "guest-panic"))) {
        e->panicked = true;
        snprintf(e->why, sizeof(e->why), "the guest kernel panicked");
    } else if (code == 0 && str_eq(p->shutdown_why, "guest-reset")) {
        e->panicked = true;
        snprintf(e->why, sizeof(e->why),
                 "the guest kernel rebooted, as it does after a panic; see its console");
    } else if (*words) {
        snprintf(e->why, sizeof(e->why), "qemu exited with status %d: %s", code, words);
    } else {
        snprintf(e->why, sizeof(e->why), "qemu exited with status %d%s%s", code,
                 p->shutdown_why[0] ? " because of " : "", p->shutdown_why);
    }
}

static void say_killed(struct qemu_proc *p, struct vmm_exit *e, const char *words)
{
    int sig = WTERMSIG(e->status);
    const char *name = sigabbrev_np(sig);

    e->oom = sig == SIGKILL && oom_watch_hit(&p->oom);
    snprintf(e->why, sizeof(e->why), "qemu was killed by signal %d (SIG%s)%s%s%s", sig,
             name ? name : "?",
             e->oom          ? " by the host's OOM killer"
             : sig == SIGSYS ? " by its sandbox"
                             : "",
             *words ? ": " : "", words);
}

/* Killed by us after a stop that nobody asked for. */
static void say_stopped(struct qemu_proc *p, struct vmm_exit *e, const char *words)
{
    e->panicked = str_eq(p->stopped, "guest-panicked");
    if (e->panicked)
        snprintf(e->why, sizeof(e->why), "the guest kernel panicked");
    else
        snprintf(e->why, sizeof(e->why), "the VM has failed: QEMU stopped it with status %s%s%s",
                 p->stopped, *words ? ": " : "", words);
}

void qemu_exit_fill(struct qemu_proc *p, int status)
{
    struct qemu *q = p->vm;
    struct vmm_exit *e = &p->exit;
    AUTO_FREE char *words = qemu_words_last(&p->ctx, &p->words);

    *e = (struct vmm_exit){ .status = status, .at_wall_ns = loop_wall(q->loop) };
    if (WIFSIGNALED(status))
        say_killed(p, e, words);
    else
        say_exited(p, e, words);
    if (p->stopped[0]) {
        say_stopped(p, e, words);
    } else if (p->given_up[0]) {
        snprintf(e->why, sizeof(e->why), "%s", p->given_up);
    } else if (q->dying || q->quitting) {
        e->requested = true;
        e->why[0] = '\0';
    }
}
