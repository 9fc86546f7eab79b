#include "host/control/forsaken.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "base/waits.h"
#include "host/control/container.h"
#include "host/control/pod.h"
#include "host/control/registry.h"
#include "host/control/run_file.h"
#include "host/control/vm.h"
#include "host/ledger/ledger.h"

#define RETRY_PAUSE (10 * NS_PER_S)
#define RETRIES_MAX 6

/* While there is a run file. */
static const char *run_dir(const struct registry *r)
{
    return ledger_dir(vm_parts(r->vm)->ledger);
}

/* A pod's holder stays until the pod's other containers have gone: containerd may still ask for
 * those, also if they have ended. */
static bool awaits_members(const struct container *c)
{
    const struct pod *pod = container_pod(c);

    return pod->holder == c && pod_other(pod, c, false);
}

static int end_forsaken(struct ctx *ctx, struct container *c, struct err *err)
{
    /* While it is being created there is no process yet: delete waits for the creation. */
    if (container_kill_alone(ctx, c, 9, err) < 0 || container_wait_end(ctx, c, err) < 0)
        return -1;
    if (container_parts(c)->listed && awaits_members(c))
        return err_because(err, REASON_WRONG_STATE, ERR_STATE, "pod %s still has containers",
                           container_id(c));
    return container_discard(ctx, c, err);
}

static void forsaken_main(void *arg)
{
    AUTO(container_unref) struct container *c = arg;
    struct registry *r = container_pod(c)->r;
    struct ctx ctx = ctx_background(r->o.loop, LK_CID, container_id(c));
    struct err err = ERR_INIT;

    for (int tries = 0; container_parts(c)->listed && !r->closing; tries++) {
        struct ctx pause = ctx_with_timeout(&ctx, RETRY_PAUSE);
        bool waits;

        err_clear(&err);
        if (end_forsaken(&ctx, c, &err) == 0)
            break;
        waits = awaits_members(c);
        if (!waits && tries == RETRIES_MAX) {
            log_error(&ctx,
                      "cannot delete a container that containerd has given up; it ends with its VM",
                      F_ERR(&err));
            break;
        }
        (void)waitq_wait(waits ? &ctx : &pause, &r->changed, WAIT_FORSAKEN, &err);
    }
    if (!container_parts(c)->listed && r->record)
        run_unforsake(run_dir(r), container_id(c));
    if (r->o.on_forsaken)
        r->o.on_forsaken(r->o.arg);
}

static struct container *find_any(const struct registry *r, const char *id)
{
    for (size_t i = 0; i < r->n_containers; i++)
        if (str_eq(container_id(r->containers[i]), id))
            return r->containers[i];
    return NULL;
}

static void end_in_fiber(struct container *c)
{
    struct registry *r = container_pod(c)->r;

    /* A sandbox's own goes with the sandbox, when nothing else is in it (forsaken_all). */
    if (!container_parts(c)->hidden)
        fibers_go(&r->fibers, r->o.loop, forsaken_main, container_ref(c), FIBER_FORSAKEN "%s",
                  container_id(c));
}

void forsaken_resume(struct registry *r)
{
    for (size_t i = 0; i < r->n_containers; i++)
        if (container_parts(r->containers[i])->forsaken)
            end_in_fiber(r->containers[i]);
}

static void forsake(void *arg, const char *id, const char *anchor)
{
    struct registry *r = arg;
    struct container *c = find_any(r, id);
    const char *known = c ? container_parts(c)->anchor_name : NULL;

    if (!c || (anchor[0] && known && !str_eq(anchor, known))) {
        run_unforsake(run_dir(r), id); /* it was deleted before we read the file */
        return;
    }
    if (container_parts(c)->forsaken)
        return;
    container_forsake(c);
    r->forsook = true;
    log_warn(NULL, "containerd has given up this container; killing it", F_STR(LK_CID, id));
    end_in_fiber(c);
}

void forsaken_obey(struct registry *r)
{
    if (r->record && !r->closing)
        run_each_forsaken(run_dir(r), forsake, r);
}

bool forsaken_is(const struct registry *r, const char *id)
{
    const struct container *c = find_any(r, id);

    return c && container_parts(c)->forsaken;
}

bool forsaken_all(const struct registry *r)
{
    for (size_t i = 0; i < r->n_containers; i++)
        if (!container_parts(r->containers[i])->hidden ||
            !container_parts(r->containers[i])->forsaken)
            return false;
    return r->forsook;
}
