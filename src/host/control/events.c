#include "host/control/events.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/str.h"
#include "base/waits.h"
#include "host/control/events_priv.h"
#include <stdlib.h>

/* Beyond this, what may repeat without end (paused, resumed, oom) makes room for what may not. */
#define EVENTS_SOFT_LIMIT 2048

const char *event_name(enum event_kind kind)
{
    static const char *const names[EVENT_KIND_COUNT] = {
        [EVENT_CREATE] = "create",
        [EVENT_START] = "start",
        [EVENT_EXEC_ADDED] = "exec-added",
        [EVENT_EXEC_STARTED] = "exec-started",
        [EVENT_OOM] = "oom",
        [EVENT_EXIT] = "exit",
        [EVENT_DELETE] = "delete",
        [EVENT_PAUSED] = "paused",
        [EVENT_RESUMED] = "resumed",
    };

    return names[kind];
}

struct events *events_new(void)
{
    struct events *q = mem_new(struct events);

    list_init(&q->items);
    waitq_init(&q->changed);
    return q;
}

static const char *own(const char *s)
{
    return str_dup(s ? s : "");
}

static struct event_mount *mounts_copy(const struct event_mount *from, size_t n)
{
    struct event_mount *to = mem_zalloc(n * sizeof(*to));

    for (size_t i = 0; i < n; i++) {
        struct strv options = { 0 };

        for (const char *const *o = from[i].options; o && *o; o++)
            strv_add(&options, *o);
        to[i] = (struct event_mount){ own(from[i].type), own(from[i].source), own(from[i].target),
                                      (const char *const *)options.v };
    }
    return to;
}

static void mounts_free(const struct event_mount *mounts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free((char *)mounts[i].type);
        free((char *)mounts[i].source);
        free((char *)mounts[i].target);
        for (const char *const *o = mounts[i].options; o && *o; o++)
            free((char *)*o);
        free((void *)mounts[i].options);
    }
    free((void *)mounts);
}

static void item_free(struct events *q, struct item *it)
{
    struct event *e = &it->event;

    list_remove(&it->in_queue);
    q->n--;
    free((char *)e->container_id);
    free((char *)e->exec_id);
    free((char *)e->bundle);
    free((char *)e->in);
    free((char *)e->out);
    free((char *)e->err);
    mounts_free(e->rootfs, e->n_rootfs);
    free(it);
}

void events_free(struct events *q)
{
    if (!q)
        return;
    LIST_EACH (&q->items, pos)
        item_free(q, LIST_ENTRY(pos, struct item, in_queue));
    free(q);
}

static bool repeatable(enum event_kind kind)
{
    return kind == EVENT_PAUSED || kind == EVENT_RESUMED || kind == EVENT_OOM;
}

/* The oldest that may go, but not the head: its reader may be looking at it. */
static bool make_room(struct events *q)
{
    LIST_EACH (&q->items, pos) {
        struct item *it = LIST_ENTRY(pos, struct item, in_queue);

        if (pos != q->items.next && repeatable(it->event.kind)) {
            item_free(q, it);
            q->dropped++;
            return true;
        }
    }
    return false;
}

void events_filter(struct events *q, bool (*fn)(void *arg, const struct event *e), void *arg)
{
    q->filter = fn;
    q->filter_arg = arg;
}

void events_push(struct events *q, const struct event *e)
{
    if (q->filter && !q->filter(q->filter_arg, e))
        return;
    if (q->n >= EVENTS_SOFT_LIMIT && !make_room(q) && repeatable(e->kind)) {
        q->dropped++;
        return;
    }

    struct item *it = mem_new(struct item);

    it->event = *e;
    it->event.container_id = own(e->container_id);
    it->event.exec_id = own(e->exec_id);
    it->event.bundle = own(e->bundle);
    it->event.in = own(e->in);
    it->event.out = own(e->out);
    it->event.err = own(e->err);
    it->event.rootfs = mounts_copy(e->rootfs, e->n_rootfs);
    list_append(&q->items, &it->in_queue);
    q->n++;
    waitq_wake_all(&q->changed);
}

int events_next(struct ctx *ctx, struct events *q, const struct event **ret, struct err *err)
{
    while (list_empty(&q->items))
        if (waitq_wait(ctx, &q->changed, WAIT_EVENT, err) < 0)
            return -1;
    *ret = &LIST_FIRST(&q->items, struct item, in_queue)->event;
    return 0;
}

void events_done(struct events *q)
{
    item_free(q, LIST_FIRST(&q->items, struct item, in_queue));
    waitq_wake_all(&q->changed);
}

void events_give_up(struct events *q)
{
    q->dropped++;
    events_done(q);
}

size_t events_pending(const struct events *q)
{
    return q->n;
}

uint64_t events_dropped(const struct events *q)
{
    return q->dropped;
}

int events_flush(struct ctx *ctx, struct events *q, struct err *err)
{
    while (q->n > 0)
        if (waitq_wait(ctx, &q->changed, "events to be published", err) < 0)
            return -1;
    return 0;
}
