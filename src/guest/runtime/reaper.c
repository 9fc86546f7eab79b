#include "guest/runtime/reaper.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A zombie that two sweeps in a row find without a pidfd is a stranger. */
#define SETTLE_NS (1 * NS_PER_S)
#define CHILDREN_MAX (1u << 20)

struct pids {
    pid_t *v;
    size_t n, cap;
};

struct reaper {
    struct loop *loop;
    bool sweeping;
    struct pids seen; /* strangers at the last sweep */
};

static void pids_add(struct pids *p, pid_t pid)
{
    p->v = mem_grow(p->v, p->n, &p->cap, sizeof(p->v[0]));
    p->v[p->n++] = pid;
}

static bool pids_has(const struct pids *p, pid_t pid)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->v[i] == pid)
            return true;
    return false;
}

static bool is_zombie(pid_t pid)
{
    AUTO_FREE char *text = file_text(4096, "/proc/%d/stat", pid);
    const char *paren = text ? strrchr(text, ')') : NULL;

    return paren && str_starts(paren, ") Z");
}

static void list_zombies(struct pids *ret)
{
    AUTO_FREE char *text = file_text(CHILDREN_MAX, "/proc/self/task/%d/children", getpid());

    for (char *at = text; at && *at;) {
        pid_t pid = (pid_t)strtol(at, &at, 10);
        at += strspn(at, " \n");
        if (pid <= 0)
            break;
        if (is_zombie(pid))
            pids_add(ret, pid);
    }
}

/* The pids that this process has pidfds of. */
static void list_known(struct pids *ret)
{
    AUTO(closedir) DIR *dir = opendir("/proc/self/fdinfo");

    for (struct dirent *e; dir && (e = readdir(dir));) {
        AUTO_FREE char *text = file_text(4096, "/proc/self/fdinfo/%s", e->d_name);
        const char *pid = text ? strstr(text, "\nPid:") : NULL;
        if (pid)
            pids_add(ret, (pid_t)strtol(pid + strlen("\nPid:"), NULL, 10));
    }
}

/* Reaps the strangers of last time, remembers those of this time. True: look again. */
static bool sweep(struct reaper *r)
{
    struct pids zombies = { 0 }, known = { 0 }, strangers = { 0 };

    list_zombies(&zombies);
    if (zombies.n > 0)
        list_known(&known);
    for (size_t i = 0; i < zombies.n; i++) {
        siginfo_t info;
        if (pids_has(&known, zombies.v[i]))
            continue;
        if (!pids_has(&r->seen, zombies.v[i]))
            pids_add(&strangers, zombies.v[i]);
        else if (waitid(P_PID, (id_t)zombies.v[i], &info, WEXITED | WNOHANG) == 0)
            log_debug(NULL, "reaped a child process that no code waits for",
                      F_I(LK_PID, zombies.v[i]));
    }
    free(zombies.v);
    free(known.v);
    free(r->seen.v);
    r->seen = strangers;
    return strangers.n > 0;
}

static void sweep_fiber(void *arg)
{
    struct reaper *r = arg;
    struct ctx ctx = ctx_root(r->loop);
    struct err ignored = ERR_INIT;

    do {
        (void)fiber_sleep(&ctx, SETTLE_NS, &ignored);
    } while (sweep(r));
    r->sweeping = false;
}

static void on_child(void *arg, const struct signalfd_siginfo *info)
{
    struct reaper *r = arg;

    if (r->sweeping)
        return;
    r->sweeping = true;
    fiber_go(r->loop, sweep_fiber, r, "reaper");
}

int reaper_new(struct loop *loop, struct reaper **ret, struct err *err)
{
    struct reaper *r;

    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        return err_sys(err, errno, "become a subreaper");
    r = mem_new(struct reaper);
    r->loop = loop;
    int e = loop_on_signal(loop, SIGCHLD, on_child, r);
    if (e < 0) {
        free(r);
        return err_sys(err, -e, "watch SIGCHLD");
    }
    *ret = r;
    return 0;
}

void reaper_free(struct reaper *r)
{
    if (r)
        free(r->seen.v);
    free(r);
}
