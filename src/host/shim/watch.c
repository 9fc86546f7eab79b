#include "host/shim/watch.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/saved.h"
#include "base/waits.h"
#include "host/service/service.h"
#include <stdint.h>
#include <stdlib.h>

#define FORGOTTEN_AFTER (60 * NS_PER_S)
#define LEAVE_GRACE (3 * NS_PER_S) /* for the Shutdown that should follow the last Delete */

struct watch {
    struct watch_opts opts;
    uint64_t seen_asked, seen_calls;
    bool alone; /* no client is connected */
    uint64_t alone_since, alone_calls;
    struct waitq changed;
    struct cancel life;
    struct fibers fibers;
};

/* ns until the bundles are checked, because no client has called for long enough; 0: a client is
 * connected. Monitoring, whose calls are not counted, does not extend the time. */
static uint64_t alone_left(struct watch *w)
{
    uint64_t now = loop_now(w->opts.loop), calls = service_calls(w->opts.service), gone;

    if (w->opts.clients(w->opts.arg) > 0) {
        w->alone = false;
        return 0;
    }
    if (!w->alone || w->alone_calls != calls)
        w->alone_since = now;
    w->alone = true;
    w->alone_calls = calls;
    gone = now - w->alone_since;
    return gone < FORGOTTEN_AFTER ? FORGOTTEN_AFTER - gone : 1;
}

/* Why to exit now, or WATCH_STAYS; then *ret_again is the time of the next check (0: at a poke). */
static enum watch_end look(struct watch *w, uint64_t *ret_again)
{
    uint64_t asked = service_asked_to_leave(w->opts.service);
    bool just_asked = asked > w->seen_asked;

    w->seen_asked = asked;
    if (service_given_up(w->opts.service))
        return WATCH_GIVEN_UP;
    if (!service_idle(w->opts.service)) {
        *ret_again = service_expects(w->opts.service);
        if (*ret_again == 0)
            *ret_again = alone_left(w);
        return WATCH_STAYS;
    }
    if (just_asked)
        return WATCH_SHUTDOWN;
    *ret_again = asked ? LEAVE_GRACE : FORGOTTEN_AFTER;
    return WATCH_STAYS;
}

/* With containers, but without clients. */
static enum watch_end look_alone(struct ctx *ctx, struct watch *w)
{
    if (service_busy(w->opts.service) || alone_left(w) != 1)
        return WATCH_STAYS;
    if (w->opts.bundles_gone(ctx, w->opts.arg) && alone_left(w) == 1 &&
        !service_busy(w->opts.service))
        return WATCH_BUNDLES_GONE;
    w->alone_since = loop_now(w->opts.loop); /* containerd may be back before the next check */
    return WATCH_STAYS;
}

/* The same, after that time has passed without a change. */
static enum watch_end look_late(struct ctx *ctx, struct watch *w)
{
    uint64_t calls = service_calls(w->opts.service);
    bool called = calls > w->seen_calls;

    w->seen_calls = calls;
    if (!service_idle(w->opts.service))
        return look_alone(ctx, w);
    if (service_asked_to_leave(w->opts.service) > 0)
        return WATCH_EARLY_SHUTDOWN;
    if (calls == 0)
        return WATCH_NEVER_CALLED;
    if (!called && w->opts.bundles_gone(ctx, w->opts.arg) && service_idle(w->opts.service) &&
        service_calls(w->opts.service) == calls)
        return WATCH_BUNDLE_GONE;
    return WATCH_STAYS;
}

static void watch_main(void *arg)
{
    struct watch *w = arg;
    struct ctx ctx = ctx_until(w->opts.loop, &w->life);
    enum watch_end why;
    uint64_t again;

    while (!(why = look(w, &again))) {
        struct ctx limit = again ? ctx_with_timeout(&ctx, again) : ctx;
        struct err err = ERR_INIT;

        if (waitq_wait(&limit, &w->changed, WAIT_IDLE, &err) == 0)
            continue;
        if (err.code != ERR_DEADLINE)
            return;
        if ((why = look_late(&ctx, w)))
            break;
    }
    w->opts.leave(w->opts.arg, why);
}

const char *watch_end_text(enum watch_end why)
{
    static const char *const texts[WATCH_END_COUNT] = {
        [WATCH_GIVEN_UP] = "containerd has given up all containers",
        [WATCH_SHUTDOWN] = "Shutdown was called and nothing is left to serve",
        [WATCH_EARLY_SHUTDOWN] = "the last container was deleted after an early Shutdown",
        [WATCH_NEVER_CALLED] = "no client has ever called",
        [WATCH_BUNDLE_GONE] = "the bundle is gone and no client calls",
        [WATCH_BUNDLES_GONE] = "all bundles are gone and no client calls",
    };

    return why < WATCH_END_COUNT && texts[why] ? texts[why] : "unknown";
}

struct watch *watch_new(const struct watch_opts *o)
{
    struct watch *w = mem_new(struct watch);

    w->opts = *o;
    waitq_init(&w->changed);
    cancel_init(&w->life, NULL);
    fibers_init(&w->fibers);
    fibers_go(&w->fibers, o->loop, watch_main, w, FIBER_WATCH);
    return w;
}

void watch_poke(struct watch *w)
{
    waitq_wake_all(&w->changed);
}

int watch_stop(struct ctx *ctx, struct watch *w, struct err *err)
{
    cancel_fire(&w->life, ERR_CANCELLED, "the shim is exiting");
    return fibers_wait(ctx, &w->fibers, "watch", err);
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
    cancel_release(&w->life);
    free(w);
}

void watch_saved(struct saved *s, struct watch *w)
{
    saved_u64(s, 1, &w->seen_asked);
    saved_u64(s, 2, &w->seen_calls);
    saved_bool(s, 3, &w->alone);
    saved_u64(s, 4, &w->alone_since);
    saved_u64(s, 5, &w->alone_calls);
}
