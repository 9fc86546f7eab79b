#include "host/vmm/qemu/qemu_priv.h"

#include <stdlib.h>
#include <string.h>

/* How a part is made, removed and named. */
static const struct {
    const char *make, *remove, *key;
} parts[] = {
    [PLUG_FD] = { "getfd", "closefd", "fdname" },
    [PLUG_FDSET] = { "add-fd", "remove-fd", "fdset-id" },
    [PLUG_FILE] = { "blockdev-add", "blockdev-del", "node-name" },
    [PLUG_NODE] = { "blockdev-add", "blockdev-del", "node-name" },
    [PLUG_NETDEV] = { "netdev_add", "netdev_del", "id" },
    [PLUG_DEVICE] = { "device_add", "device_del", "id" },
};
_Static_assert(ARRAY_LEN(parts) == PLUG_PART_COUNT, "a row for each part");

/* --- one part --- */

char *plug_fd_name(const struct plug *p, unsigned n)
{
    return str_format("%s%s-%u", p->kind->names[PLUG_FD], p->id, n);
}

/* The same name makes a part and removes it. Of several descriptors: the last. */
static json_t *name_of(const struct plug *p, enum plug_part part)
{
    if (part == PLUG_FD && p->kind->many_fds) {
        AUTO_FREE char *name = plug_fd_name(p, p->number - 1);

        return json_pack("{ss}", parts[part].key, name);
    }
    if (part == PLUG_FDSET)
        return json_pack("{si}", parts[part].key, (int)(p->kind->fdset_base + p->number));
    return json_pack("{ss+}", parts[part].key, p->kind->names[part], p->id);
}

char *plug_fdset(const struct plug *p)
{
    return str_format("/dev/fdset/%u", p->kind->fdset_base + p->number);
}

int plug_make(struct ctx *ctx, struct qemu *q, struct plug *p, enum plug_part part, int fd,
              json_t *args, struct err *err)
{
    if (part == PLUG_FD && p->kind->many_fds)
        p->number++;

    json_t *all = name_of(p, part);

    json_object_update(all, args);
    json_decref(args);
    p->parts |= 1u << part;
    if (qmp_client_call_fd(ctx, q->proc->qmp, parts[part].make, fd, all, NULL, err) < 0)
        return -1;
    if (part != PLUG_FD)
        p->parts &= ~(1u << PLUG_FD);
    return 0;
}

/* What is not there counts as removed. 1: QEMU has to hear from the guest first. */
static int ask_remove(struct ctx *ctx, struct qemu *q, struct plug *p, enum plug_part part,
                      struct err *err)
{
    if (qmp_client_call(ctx, q->proc->qmp, parts[part].remove, name_of(p, part), NULL, err) == 0)
        return part == PLUG_DEVICE;
    if (err->code == ERR_NOT_FOUND)
        return 0;
    /* Asked before, and still under way there. */
    return part == PLUG_DEVICE && err->code == ERR_STATE ? 1 : -1;
}

/* Of several, the last comes first. */
static int close_fds(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err)
{
    for (; p->number > 0; p->number--)
        if (ask_remove(ctx, q, p, PLUG_FD, err) < 0)
            return -1;
    return 0;
}

/* 1: the guest keeps it. */
static int remove_device(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err)
{
    for (unsigned i = 0; !p->kind->release_tries || i < p->kind->release_tries; i++) {
        p->deleted = false;
        int r = ask_remove(ctx, q, p, PLUG_DEVICE, err);
        if (r <= 0)
            return r;
        struct ctx limited = ctx_with_timeout(ctx, p->kind->release_ns);

        for (r = 0; !p->deleted && r == 0;)
            r = waitq_wait(&limited, &p->deleted_q, "qemu: a device to be removed", err);
        if (p->deleted)
            return 0;
        if (err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0)
            return -1;
    }
    return 1;
}

/* --- all parts --- */

int plug_unmake(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err)
{
    for (unsigned part = PLUG_PART_COUNT; part-- > 0;) {
        if (!(p->parts >> part & 1))
            continue;
        bool several = part == PLUG_FD && p->kind->many_fds;
        int r = part == PLUG_DEVICE ? remove_device(ctx, q, p, err)
                : several           ? close_fds(ctx, q, p, err)
                                    : ask_remove(ctx, q, p, part, err);
        if (r < 0)
            return -1;
        err_clear(err);
        if (r > 0)
            return p->kind->on_kept ? p->kind->on_kept(ctx, q, p, err) : 0;
        p->parts &= ~(1u << part);
    }
    return 0;
}

static void drop(struct plug *p)
{
    list_remove(&p->node);
    free((char *)p->id);
    free((char *)p->label);
    free(p);
}

/* Drops the record, too, when nothing is left. */
static int take_back(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err)
{
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);

    p->inside = true;
    p->attached = false;
    int r = qemu_is_gone(q) ? 0 : plug_unmake(&inner, q, p, err);
    p->inside = false;
    if (qemu_is_gone(q)) {
        r = 0;
        p->parts = 0;
    }
    if (r == 0 && p->parts) {
        p->deserted = true;
        log_warn(&q->life, p->kind->kept, F_STR("device", p->label));
    } else if (r == 0) {
        drop(p);
    }
    return r;
}

static void undo(struct qemu *q, struct plug *p)
{
    struct ctx limited = ctx_with_timeout(&q->root, p->kind->undo_ns);
    struct err err = ERR_INIT;

    if (take_back(&limited, q, p, &err) < 0)
        log_warn(
            &q->life,
            "rolling back a device that was not added is incomplete; the next use continues it",
            F_STR("kind", p->kind->what), F_STR("device", p->label), F_ERR(&err));
}

void plug_sweep(struct ctx *ctx, struct qemu *q)
{
    LIST_FOR (struct plug, p, &q->plugs, node) {
        struct err err = ERR_INIT;

        if (!p->deserted || !p->deleted || p->inside)
            continue;
        p->deserted = false;
        p->parts &= ~(1u << PLUG_DEVICE);
        if (take_back(ctx, q, p, &err) < 0) {
            p->deserted = true;
            log_warn(&q->life, "removing a device is incomplete; retrying at its next use",
                     F_STR("kind", p->kind->what), F_STR("device", p->label), F_ERR(&err));
        }
        return; /* the list may have changed while we waited */
    }
}

/* --- records --- */

struct plug *plug_find(struct qemu *q, const struct plug_kind *kind, const char *id)
{
    LIST_FOR (struct plug, p, &q->plugs, node)
        if (p->kind == kind && str_eq(p->id, id))
            return p;
    return NULL;
}

void qemu_plug_deleted(struct qemu *q, const char *device)
{
    LIST_FOR (struct plug, p, &q->plugs, node) {
        const char *name = p->kind->names[PLUG_DEVICE];

        if (!str_starts(device, name) || !str_eq(p->id, device + strlen(name)))
            continue;
        p->deleted = true; /* also of one that we had given up: plug_sweep removes the rest */
        waitq_wake_all(&p->deleted_q);
    }
}

void qemu_plugs_forget(struct qemu *q)
{
    while (!list_empty(&q->plugs))
        drop(LIST_FIRST(&q->plugs, struct plug, node));
    q->n_controllers = 0;
    q->has_spare = q->has_iommu = q->has_throttle = false;
}

int plug_add(struct ctx *ctx, struct qemu *q, const struct plug *what,
             int (*make)(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                         struct err *err),
             const void *arg, struct err *err)
{
    struct plug *p = mem_new(struct plug);

    *p = *what;
    p->id = str_dup(what->id);
    p->label = str_dup(what->label);
    p->inside = true;
    waitq_init(&p->deleted_q);
    list_append(&q->plugs, &p->node);
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = make(&inner, q, p, arg, err);
    p->inside = false;
    p->attached = r == 0;
    if (r < 0)
        undo(q, p);
    return r;
}

int plug_remove(struct ctx *ctx, struct qemu *q, const struct plug_kind *kind, const char *id,
                struct err *err)
{
    plug_sweep(ctx, q);
    struct plug *p = plug_find(q, kind, id);
    if (!p || p->deserted)
        return 0;
    AUTO_FREE char *label = str_dup(p->label);
    if (p->inside)
        return err_set(err, ERR_STATE, "%s %s: another request is changing it", kind->what, label);
    if (take_back(ctx, q, p, err) < 0)
        return err_wrap(err, "remove %s %s", kind->what, label);
    return 0;
}
