/* qemu_exit.c - why QEMU ended, from what the host knows. */
#include "base/fd.h"
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

/* The last lines of its stderr on one line, without what could move a cursor. Caller frees. */
static char *last_words(const struct qemu_proc *p)
{
    struct sbuf b = { 0 };
    size_t from = p->stderr_len > 200 ? p->stderr_len - 200 : 0;

    if (from > 0) {
        const char *line = strchr(p->stderr_tail + from, '\n');
        if (line && line[1])
            from = (size_t)(line + 1 - p->stderr_tail);
    }
    for (size_t i = from; i < p->stderr_len; i++) {
        char c = p->stderr_tail[i];
        if (c == '\n')
            sbuf_adds(&b, i + 1 < p->stderr_len ? " / " : "");
        else
            sbuf_addc(&b, c >= ' ' && c <= '~' ? c : '?');
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

void qemu_exit_fill(struct qemu_proc *p, int status)
{
    struct qemu *q = p->vm;
    struct vmm_exit *e = &p->exit;
    AUTO_FREE char *words = last_words(p);

    *e = (struct vmm_exit){ .status = status, .at_wall_ns = loop_wall(q->loop) };
    if (WIFSIGNALED(status))
        say_killed(p, e, words);
    else
        say_exited(p, e, words);
    if (p->given_up[0]) {
        snprintf(e->why, sizeof(e->why), "%s", p->given_up);
    } else if (q->dying || q->quitting) {
        e->requested = true;
        e->why[0] = '\0';
    }
}
