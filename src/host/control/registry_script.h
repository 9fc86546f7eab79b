/* registry_script.h - for tests: a guest that refuses or is late once, and clients that call the
 * registry at the same time. */
#pragma once
#include "harness/tap.h"
#include "host/control/registry_rig.h"

/* Refuses what matches, the first `times` times. */
struct refusal {
    uint32_t type;
    int resource, action; /* -1: any */
    unsigned times;
    enum fake_answer_how how;
    uint64_t delay_ns;
    unsigned skip; /* that many go through first */
};
static struct refusal refusal, second_refusal;

static inline bool refuses(struct refusal *f, const struct bridge_request *q)
{
    if (f->times == 0 || q->type != f->type)
        return false;
    if (q->type == BRIDGE_MODIFY_SETTINGS &&
        ((f->resource >= 0 && (int)q->modify.resource != f->resource) ||
         (f->action >= 0 && (int)q->modify.action != f->action)))
        return false;
    if (f->skip > 0) {
        f->skip--;
        return false;
    }
    f->times--;
    return true;
}

static inline struct fake_answer decide(void *arg, const struct bridge_request *q)
{
    const struct refusal *f = refuses(&refusal, q)          ? &refusal
                              : refuses(&second_refusal, q) ? &second_refusal
                                                            : NULL;

    return f ? (struct fake_answer){ f->how, f->delay_ns, BRIDGE_HR_FAIL }
             : (struct fake_answer){ FAKE_ANSWER };
}

static inline void refuse(struct rig *r, struct refusal f)
{
    refusal = f;
    r->guest_opts.decide_request = decide;
}

/* --- a call in a fiber of its own --- */

struct client {
    struct rig *r;
    struct ctx *ctx;
    const char *id, *exec;
    int ret;
    struct err err;
    struct process_view view;
    bool done;
    uint64_t at;
};

static inline void create_main(void *arg)
{
    struct client *c = arg;

    c->ret = rig_try_create(c->r, c->ctx, c->id, &c->err);
    c->done = true;
    c->at = loop_now(c->r->loop);
}

static inline void wait_main(void *arg)
{
    struct client *c = arg;

    c->ret = rig_try_wait(c->r, c->ctx, c->id, c->exec, &c->view, &c->err);
    c->done = true;
    c->at = loop_now(c->r->loop);
}

static inline void start_main(void *arg)
{
    struct client *c = arg;

    c->ret = rig_try_start(c->r, c->ctx, c->id, c->exec, &c->err);
    c->done = true;
    c->at = loop_now(c->r->loop);
}

static inline void delete_main(void *arg)
{
    struct client *c = arg;

    c->ret = rig_try_delete(c->r, c->ctx, c->id, c->exec, &c->err);
    c->done = true;
    c->at = loop_now(c->r->loop);
}

static inline void go(struct client *c, struct rig *r, struct ctx *ctx, const char *id,
                      void (*fn)(void *arg))
{
    *c = (struct client){ .r = r, .ctx = ctx, .id = id, .exec = "" };
    group_go(&r->clients, r->loop, fn, c, "client");
}

static inline void pass(struct ctx *ctx, uint64_t ns)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fiber_sleep(ctx, ns, &err), err);
}

static inline void expect_gone(struct rig *r, struct ctx *ctx, const char *id)
{
    struct err err = ERR_INIT;

    ASSERT(registry_find(r->registry, id, &err) == NULL);
    ASSERT_FAIL(rig_try_delete(r, ctx, id, "", &err), err, ERR_NOT_FOUND);
}
