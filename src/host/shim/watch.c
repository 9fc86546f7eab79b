#include "host/shim/watch.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "host/service/service.h"
#include <stdint.h>
#include <stdlib.h>

#define FORGOTTEN_AFTER (60 * NS_PER_S)
#define LEAVE_GRACE (3 * NS_PER_S) /* for the Shutdown that should follow the last Delete */

struct watch {
    struct watch_opts opts;
    uint64_t seen_asked, seen_calls;
    struct waitq changed;
    struct cancel life;
    struct group fibers;
};

/* The reason to leave now, or NULL; then *ret_again is when to look again (0: at a poke). */
static const char *look(struct watch *w, uint64_t *ret_again)
{
    uint64_t asked = service_asked_to_leave(w->opts.service);
    bool just_asked = asked > w->seen_asked;

    w->seen_asked = asked;
    *ret_again = service_expects(w->opts.service);
    if (!service_idle(w->opts.service))
        return NULL;
    if (just_asked)
        return "Shutdown was called and nothing is left to serve";
    *ret_again = asked ? LEAVE_GRACE : FORGOTTEN_AFTER;
    return NULL;
}

/* The same, after that time has passed without a change. */
static const char *look_late(struct watch *w)
{
    uint64_t calls = service_calls(w->opts.service);
    bool called = calls > w->seen_calls;

    w->seen_calls = calls;
    if (!service_idle(w->opts.service))
        return NULL;
    if (service_asked_to_leave(w->opts.service) > 0)
        return "the last container went after Shutdown had been called";
    if (calls == 0)
        return "nobody has ever called";
    if (!called && w->opts.bundle_gone(w->opts.arg))
        return "the bundle is gone and nobody calls";
    return NULL;
}

static void watch_main(void *arg)
{
    struct watch *w = arg;
    struct ctx root = ctx_root(w->opts.loop), ctx = ctx_with_cancel(&root, &w->life);
    const char *why;
    uint64_t again;

    while (!(why = look(w, &again))) {
        struct ctx limit = again ? ctx_with_timeout(&ctx, again) : ctx;
        struct err err = ERR_INIT;

        if (waitq_wait(&limit, &w->changed, "nothing left to serve", &err) == 0)
            continue;
        if (err.code != ERR_DEADLINE)
            return;
        if ((why = look_late(w)))
            break;
    }
    w->opts.leave(w->opts.arg, why);
}

struct watch *watch_new(const struct watch_opts *o)
{
    struct watch *w = mem_new(struct watch);

    w->opts = *o;
    waitq_init(&w->changed);
    cancel_init(&w->life, NULL);
    group_init(&w->fibers);
    group_go(&w->fibers, o->loop, watch_main, w, "watch");
    return w;
}

void watch_poke(struct watch *w)
{
    waitq_wake_all(&w->changed);
}

int watch_stop(struct ctx *ctx, struct watch *w, struct err *err)
{
    cancel_fire(&w->life, ERR_CANCELLED, "the shim ends");
    return group_wait(ctx, &w->fibers, "watch", err);
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
    cancel_release(&w->life);
    free(w);
}
