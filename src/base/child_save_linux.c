/* child_save_linux.c - a child in saved state. exec changes neither the process nor its children:
 * the child is still ours, and so are its exit status and the signal that ends it with us. Not
 * saved: what it was started with, and children that were killed and not yet reaped (they stay
 * zombies until the shim exits). */
#include "base/child_priv.h"
#include "base/saved.h"
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

/* The end may have come during the exec: the pidfd shows it as soon as it is watched. */
static void resume(struct saved *s, struct child *c)
{
    siginfo_t info = { 0 };
    int r = 0;

    if (waitid(P_PIDFD, (id_t)c->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        r = -errno;
    if (r == 0)
        r = child_watch(c);
    if (r < 0)
        saved_fail(s, "process %d: %s", (int)c->pid, strerror(-r));
}

void child_saved(struct saved *s, uint32_t field, struct loop *loop, struct child **child)
{
    bool reads = saved_reads(s);
    struct child *c = reads ? NULL : *child;
    int pid;

    if (reads)
        *child = NULL;
    if ((!reads && !c) || !saved_open(s, field))
        return;
    if (reads)
        *child = c = child_new(loop, 0, -1);
    pid = c->pid;
    saved_int(s, 1, &pid);
    saved_fd(s, 2, "a process", &c->pidfd);
    saved_bool(s, 3, &c->done.set);
    saved_int(s, 4, &c->status);
    saved_close(s);
    c->pid = pid;
    if (reads && !c->done.set)
        resume(s, c);
}
