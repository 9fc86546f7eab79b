/* forsaken.c - containers that containerd has given up, by the notes that `delete` leaves beside
 * the VM's ledger (run_note.h): the shim kills and deletes them. */
#include "base/log.h"
#include "host/control/registry_priv.h"
#include "host/control/run_note.h"
#include "host/control/sandbox_priv.h"
#include "host/ledger/ledger.h"
#include <stdlib.h>

#define RETRY_PAUSE (10 * NS_PER_S)
#define RETRIES_MAX 6

/* While there is a note. */
static const char *run_dir(const struct registry *r)
{
    return ledger_dir(vm_parts(r->vm)->ledger);
}

void container_note_anchor(struct container *c)
{
    if (!c->r->o.address)
        return;
    free(c->anchor_name);
    c->anchor_name = ledger_process_name((pid_t)c->pid);
    if (!c->anchor_name)
        c->anchor_name = str_dup("");
    registry_update_note(c->r);
}

/* A pod's first container stays until the pod's other containers have gone: containerd may
 * still ask for those, also if they have ended. */
static bool awaits_members(const struct container *c)
{
    LIST_EACH (&c->r->containers, pos) {
        const struct container *other = LIST_ENTRY(pos, struct container, node);

        if (other != c && c->kind == SPEC_SANDBOX && str_eq(other->pod_id, c->id))
            return true;
    }
    return false;
}

static int end_forsaken(struct ctx *ctx, struct container *c, struct err *err)
{
    struct registry_deleted ignored;
    struct process_view view;

    /* While it is being created there is no process yet: delete waits for the creation. */
    if (c->init && container_kill(ctx, c, "", 9, true, err) < 0 && err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err);
    if (c->init && c->init->state == PROCESS_ST_RUNNING &&
        process_wait(ctx, c->init, &view, err) < 0 && err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err);
    if (!c->listed)
        return 0;
    if (awaits_members(c))
        return err_set(err, ERR_STATE, "pod %s still has containers", c->id);
    return registry_delete(ctx, c->r, c->id, "", &ignored, err);
}

static void forsaken_main(void *arg)
{
    AUTO(container_unref) struct container *c = arg;
    struct registry *r = c->r;
    struct ctx root = ctx_root(r->o.loop), ctx = ctx_with_id(&root, "cid", c->id);
    struct err err = ERR_INIT;

    for (int tries = 0; c->listed && !r->closing; tries++) {
        struct ctx pause = ctx_with_timeout(&ctx, RETRY_PAUSE);
        bool waits;

        err_clear(&err);
        if (end_forsaken(&ctx, c, &err) == 0 || err.code == ERR_NOT_FOUND)
            break;
        waits = awaits_members(c);
        if (!waits && tries == RETRIES_MAX) {
            log_error(&ctx,
                      "a container that containerd has given up cannot be deleted; it goes "
                      "with its VM",
                      F_ERR(&err));
            break;
        }
        (void)waitq_wait(waits ? &ctx : &pause, &r->changed, "to delete a forsaken container",
                         &err);
    }
    if (!c->listed && r->note)
        run_unforsake(run_dir(r), c->id);
    if (r->o.on_forsaken)
        r->o.on_forsaken(r->o.arg);
}

static struct container *find_any(struct registry *r, const char *id)
{
    LIST_EACH (&r->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, node);

        if (str_eq(c->id, id))
            return c;
    }
    return NULL;
}

static void forsake(void *arg, const char *id, const char *anchor)
{
    struct registry *r = arg;
    struct container *c = find_any(r, id);

    if (!c || (anchor[0] && c->anchor_name && !str_eq(anchor, c->anchor_name))) {
        run_unforsake(run_dir(r), id); /* it went before we read the note */
        return;
    }
    if (c->forsaken)
        return;
    c->forsaken = r->forsook = true;
    log_warn(NULL, "containerd has given this container up; ending it", F_STR("cid", id));
    /* A sandbox's own goes with the sandbox, when nothing else is in it (registry_given_up). */
    if (!c->hidden)
        group_go(&r->fibers, r->o.loop, forsaken_main, container_ref(c), "forsaken %s", c->id);
}

void registry_obey(struct registry *r)
{
    if (r->note && !r->closing)
        run_each_forsaken(run_dir(r), forsake, r);
}

bool registry_is_forsaken(struct registry *r, const char *id)
{
    const struct container *c = find_any(r, id);

    return c && c->forsaken;
}

bool registry_given_up(const struct registry *r)
{
    LIST_EACH (&r->containers, pos) {
        const struct container *c = LIST_ENTRY(pos, struct container, node);

        if (!c->hidden || !c->forsaken)
            return false;
    }
    return r->forsook;
}

void registry_bundles(const struct registry *r, struct strv *ret)
{
    LIST_EACH (&r->containers, pos)
        strv_add(ret, LIST_ENTRY(pos, struct container, node)->bundle);
    if (r->sandbox)
        strv_add(ret, r->sandbox->bundle);
    if (r->o.bundle)
        strv_add(ret, r->o.bundle);
}
