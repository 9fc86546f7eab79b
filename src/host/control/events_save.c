/* events_save.c - the events that are not delivered yet. Not saved: the filter, which its owner
 * sets again; these events have passed it. */
#include "base/saved.h"
#include "base/str.h"
#include "host/control/events_priv.h"

static void mount_saved(struct saved *s, struct event_mount *m)
{
    struct strv options = { .v = (char **)m->options };

    while (options.v && options.v[options.n])
        options.n++;
    saved_str(s, 1, (char **)&m->type);
    saved_str(s, 2, (char **)&m->source);
    saved_str(s, 3, (char **)&m->target);
    saved_strv(s, 4, &options);
    m->options = (const char *const *)options.v;
}

static void event_saved(struct saved *s, struct event *e)
{
    struct event_mount *mounts = (struct event_mount *)e->rootfs;

    SAVED_ENUM(s, 1, e->kind, EVENT_KIND_COUNT);
    saved_u64(s, 2, &e->wall_ns);
    saved_str(s, 3, (char **)&e->container_id);
    saved_str(s, 4, (char **)&e->exec_id);
    saved_u32(s, 5, &e->pid);
    saved_u32(s, 6, &e->exit_status);
    saved_u64(s, 7, &e->exited_wall_ns);
    saved_str(s, 8, (char **)&e->bundle);
    saved_str(s, 9, (char **)&e->in);
    saved_str(s, 10, (char **)&e->out);
    saved_str(s, 11, (char **)&e->err);
    saved_bool(s, 12, &e->terminal);
    e->n_rootfs = saved_count(s, 13, e->n_rootfs);
    if (saved_reads(s))
        e->rootfs = mounts = mem_zalloc((e->n_rootfs + 1) * sizeof(*mounts));
    for (size_t i = 0; i < e->n_rootfs && saved_open(s, 13); i++) {
        mount_saved(s, &mounts[i]);
        saved_close(s);
    }
    if (!e->container_id || !e->exec_id || !e->bundle || !e->in || !e->out || !e->err)
        saved_fail(s, "an event is incomplete");
}

void events_saved(struct saved *s, struct events *q)
{
    saved_u64(s, 1, &q->dropped);
    for (size_t i = saved_count(s, 2, 0); i > 0; i--, q->n++)
        list_append(&q->items, &mem_new(struct item)->in_queue);
    LIST_FOR (struct item, it, &q->items, in_queue) {
        if (!saved_open(s, 2))
            return;
        event_saved(s, &it->event);
        saved_close(s);
    }
}
