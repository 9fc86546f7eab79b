/* world_upgrade.c - the shim is replaced by another program, as `lcow upgrade` does it: everything
 * of it ends but what the document names. The fibers of the world are those that begin with "sim."
 * or "fake.". */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/saved.h"
#include "host/control/inspect.h"
#include "host/control/settled.h"
#include "world.h"
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define GAP_MAX 64 /* numbers that are not in use: there are no more behind them */

static bool of_the_shim(void *arg, const char *name)
{
    (void)arg;
    return !str_starts(name, "sim.") && !str_starts(name, "fake.");
}

static bool look(void *arg, const char *name, const char *why)
{
    struct sbuf *busy = arg;

    if (!of_the_shim(NULL, name) || settled_at(name, why))
        return true;
    sbuf_addf(busy, "%s waits for %s", name, why ? why : "its turn");
    return false;
}

int world_settle(struct world *w, uint64_t limit_ns)
{
    struct ctx root = ctx_root(w->loop), limited = ctx_with_timeout(&root, limit_ns);
    struct err err = ERR_INIT;

    for (;;) {
        AUTO(sbuf_release) struct sbuf busy = { 0 };

        loop_each_fiber(w->loop, look, &busy);
        if (busy.len == 0)
            return 0;
        if (limit_ns == 0 || loop_wait_idle(&limited, "the shim to settle", &err) < 0) {
            world_say(w, "no upgrade: %s", busy.data);
            return -1;
        }
    }
}

/* As exec does. What a thread is closing already must not be closed twice: its number may be used
 * again. */
static void close_descriptors(void)
{
    while (fd_closing() > 0)
        sched_yield();
    for (int fd = STDERR_FILENO + 1, gap = 0; gap < GAP_MAX; fd++) {
        int flags = fcntl(fd, F_GETFD);

        gap = flags < 0 ? gap + 1 : 0;
        if (flags >= 0 && flags & FD_CLOEXEC)
            (void)close(fd);
    }
}

int world_exec(struct world *w, struct saved *writer, struct saved **ret_reader)
{
    const void *data;
    size_t len;
    struct err err = ERR_INIT;

    if (saved_finish(writer, &data, &len, &err) < 0) {
        world_say(w, "no upgrade: %s", err.msg);
        return -1;
    }
    loop_drop_fibers(w->loop, of_the_shim, NULL);
    if (saved_keep_fds(writer, true, &err) < 0 || saved_reader(data, len, ret_reader, &err) < 0)
        abort();
    close_descriptors();
    saved_hand_over(*ret_reader, writer);
    w->resumes = true;
    return 0;
}

/* Two lines that begin with the first difference. */
static void compare(struct world *w, const char *before, const char *after)
{
    size_t at = 0;

    if (str_eq(before, after))
        return;
    while (before[at] && before[at] == after[at])
        at++;
    at -= at < 40 ? at : 40;
    world_broken(w, "an upgrade changes the state:\n%.120s\n%.120s", before + at, after + at);
}

void world_resumed(struct world *w, struct saved *reader, const char *before, struct registry *r)
{
    AUTO_FREE char *after = registry_inspect(r);
    struct err err = ERR_INIT;

    w->resumes = false;
    if (saved_check(reader, &err) < 0 || saved_keep_fds(reader, false, &err) < 0)
        world_broken(w, "the next program cannot continue: %s", err.msg);
    else
        compare(w, before, after);
    world_say(w, "upgraded");
}

void world_keep(void *object)
{
    static void **all;
    static size_t n, cap;

    all = mem_grow(all, n, &cap, sizeof(*all));
    all[n++] = object;
}
