/* qlink_save.c - the link in saved state. Its namespace lives as long as the listener's descriptor.
 * Not saved: the rate of its warnings. */
#include "base/saved.h"
#include "host/vmm/qemu/qlink_priv.h"

static void used_saved(struct saved *s, struct qlink *l)
{
    size_t n = saved_count(s, 6, l->n_used);

    for (size_t i = 0; i < n && saved_open(s, 6); i++) {
        if (saved_reads(s)) {
            l->used = mem_grow(l->used, l->n_used, &l->cap_used, sizeof(*l->used));
            l->used[l->n_used++] = (struct qlink_range){ 0 };
        }
        saved_u32(s, 1, &l->used[i].first);
        saved_u32(s, 2, &l->used[i].last);
        saved_close(s);
    }
}

/* Their descriptors are saved by the streams' owners, and keep their numbers. */
static void given_saved(struct saved *s, struct qlink *l)
{
    size_t n = saved_count(s, 7, l->n_given);

    for (size_t i = 0; i < n && saved_open(s, 7); i++) {
        if (saved_reads(s)) {
            l->given = mem_grow(l->given, l->n_given, &l->cap_given, sizeof(*l->given));
            l->given[l->n_given++] = (struct qlink_given){ .fd = -1 };
        }
        saved_int(s, 1, &l->given[i].fd);
        saved_u64(s, 2, &l->given[i].cookie);
        saved_close(s);
    }
}

static void leave_open(struct qlink *l, uint32_t port)
{
    l->left_open = mem_grow(l->left_open, l->n_left_open, &l->cap_left_open, sizeof(*l->left_open));
    l->left_open[l->n_left_open++] = port;
}

static void open_saved(struct saved *s, uint32_t port)
{
    saved_open(s, 8);
    saved_u32(s, 1, &port);
    saved_close(s);
}

static void ports_saved(struct saved *s, struct qlink *l)
{
    if (!saved_reads(s)) {
        LIST_FOR (const struct vmm_listener, v, &l->listeners, node)
            open_saved(s, v->port);
        for (size_t i = 0; i < l->n_left_open; i++)
            open_saved(s, l->left_open[i]);
        return;
    }
    for (uint32_t port = 0; saved_open(s, 8); saved_close(s)) {
        saved_u32(s, 1, &port);
        leave_open(l, port);
    }
}

static void check_idle(const struct qlink *l, struct saved *s)
{
    if (l->closed)
        saved_fail(s, "the link to the guest: %s", l->why);
    if (l->unsaid > 0)
        saved_fail(s, "the guest is opening a connection");
    LIST_FOR (const struct vmm_listener, v, &l->listeners, node)
        if (v->stream)
            saved_fail(s, "port %u of the guest is being opened", v->port);
}

void qlink_saved(struct saved *s, uint32_t field, const struct qlink_opts *opts,
                 struct qlink **link)
{
    bool reads = saved_reads(s);
    struct qlink *l = reads ? NULL : *link;
    struct err err = ERR_INIT;

    if (!saved_open(s, field))
        return;
    if (reads)
        *link = l = qlink_make(opts);
    else
        check_idle(l, s);
    saved_fd(s, 1, "the link's device", &l->device);
    saved_fd(s, 2, "the link's listener", &l->listener);
    saved_bytes(s, 3, l->token, sizeof(l->token));
    saved_u32(s, 4, &l->cid);
    saved_u32(s, 5, &l->port);
    used_saved(s, l);
    given_saved(s, l);
    ports_saved(s, l);
    saved_u64(s, 9, &l->dials.full_at_ns);
    saved_bool(s, 10, &l->o.vsock);
    saved_close(s);
    if (reads && l->listener < 0)
        saved_fail(s, "the link has no listener");
    if (reads && saved_check(s, &err) == 0)
        qlink_run(l);
}
