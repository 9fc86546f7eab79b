/* cmd_upgrade.c - `lcow upgrade`: running shims continue as the program that is installed now. */
#include "api/lcow.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "host/rpc/rpc_client.h"
#include "tool/tool.h"
#include <stdlib.h>

/* Longer than all limits of the shim: the check of the program, the wait until it is settled, the
 * resume. */
#define UPGRADE_LIMIT (60 * NS_PER_S)
#define UPGRADE_AT_ONCE 8

/* One shim and how it went. */
struct one {
    struct tool *t;
    const struct shim *shim;
    Lcow__UpgradeResponse *resp; /* NULL: failed */
    struct err err;
};

struct all {
    struct ctx *ctx;
    struct one *v;
    size_t n, next;
    struct fibers fibers;
};

static void upgrade_one(struct ctx *ctx, struct one *o)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    Lcow__UpgradeRequest req = LCOW__UPGRADE_REQUEST__INIT;
    const struct tool_opts *opts = &o->t->opts;

    req.program = opts->program ? opts->program : "";
    req.dry_run = opts->dry_run;
    loop_rand(ctx->loop, &req.token, sizeof(req.token));
    if (shim_connect(ctx, o->shim, &client, &o->err) == 0)
        (void)shim_call(ctx, client, UPGRADE_LIMIT, &lcow__shim__descriptor, "Upgrade", &req,
                        (void **)&o->resp, &o->err);
    if (o->resp && o->resp->error[0]) {
        (void)err_because(&o->err, reason_parse(o->resp->reason), ERR_STATE, "%s", o->resp->error);
        pb_free(TAKE_PTR(o->resp));
    }
}

static void worker(void *arg)
{
    struct all *a = arg;

    while (a->next < a->n)
        upgrade_one(a->ctx, &a->v[a->next++]);
}

static void show(struct tool *t, const struct one *o)
{
    const char *to = o->resp ? o->resp->to : "", *from = o->resp ? o->resp->from : o->shim->version;
    double pause_ms = o->resp ? (double)o->resp->pause_ns / NS_PER_MS : 0;

    if (t->json) {
        json_t *error =
            o->resp ? json_null()
                    : json_pack("{so so}", "reason", doc_string(reason_name(err_reason(&o->err))),
                                "message", doc_string(o->err.msg));

        json_array_append_new(
            t->json, json_pack("{so so sb so so sf so}", "namespace", doc_string(o->shim->ns),
                               "sandbox", doc_string(o->shim->id), "upgraded",
                               o->resp && !t->opts.dry_run, "from", doc_string(from), "to",
                               doc_string(to), "pause_ms", pause_ms, "error", error));
    } else if (!o->resp) {
        (void)tool_fail(TOOL_FAILED, "%s/%s: %s", o->shim->ns, o->shim->id, o->err.msg);
    } else if (t->opts.dry_run) {
        sbuf_addf(&t->out, "%s/%s: can be upgraded from %s to %s\n", o->shim->ns, o->shim->id, from,
                  to);
    } else {
        sbuf_addf(&t->out, "%s/%s: upgraded from %s to %s in %.0f ms\n", o->shim->ns, o->shim->id,
                  from, to, pause_ms);
    }
}

/* For the package's script: what the setting says. False: there is nothing to upgrade. */
static bool after_install(struct tool *t, struct all *a)
{
    size_t behind = 0;

    for (size_t i = 0; i < a->n; i++) /* keeps those that are behind */
        if (shim_is_behind(a->v[i].shim))
            a->v[behind++] = a->v[i];
    a->n = behind;
    if (behind > 0 && !t->config.auto_upgrade)
        sbuf_addf(&t->out,
                  "lcow: %zu running shim%s of another version; to upgrade them under their pods: "
                  "lcow upgrade --all\n",
                  behind, behind == 1 ? " is" : "s are");
    return behind > 0 && t->config.auto_upgrade;
}

/* Those that the words name, or all. */
static int choose(struct ctx *ctx, struct tool *t, struct all *a, struct err *err)
{
    if (tool_list(ctx, t, err) < 0)
        return -1;
    a->v = mem_zalloc((t->shims.n + (size_t)t->rest.n + 1) * sizeof(*a->v));
    for (size_t i = 0; (t->opts.all || t->opts.after_install) && i < t->shims.n; i++)
        a->v[a->n++] = (struct one){ .t = t, .shim = &t->shims.v[i], .err = ERR_INIT };
    for (int i = 0; i < t->rest.n; i++) {
        if (tool_find(ctx, t, t->rest.argv[i], err) < 0)
            return -1;
        a->v[a->n++] = (struct one){ .t = t, .shim = t->shim, .err = ERR_INIT };
    }
    return 0;
}

static int upgrade(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct all a = { .ctx = ctx };
    struct err ignored = ERR_INIT;
    int r = TOOL_OK;

    if ((t->opts.all || t->opts.after_install) == (t->rest.n > 0))
        return tool_fail(TOOL_USAGE, "upgrade needs IDs, or --all");
    r = choose(ctx, t, &a, err);
    if (r < 0 || (t->opts.after_install && !after_install(t, &a))) {
        free(a.v);
        return r;
    }
    fibers_init(&a.fibers);
    for (size_t i = 0; i < a.n && i < UPGRADE_AT_ONCE; i++)
        fibers_go(&a.fibers, t->loop, worker, &a, "upgrade %zu", i);
    (void)fibers_wait(ctx, &a.fibers, "upgrades", &ignored); /* each has a limit of its own */
    t->json = t->opts.json ? json_array() : NULL;
    for (size_t i = 0; i < a.n; i++) {
        r = a.v[i].resp ? r : TOOL_FAILED;
        show(t, &a.v[i]);
        pb_free(a.v[i].resp);
    }
    free(a.v);
    return r;
}

const struct args_cmd upgrade_command = {
    .name = "upgrade",
    .summary = "Upgrade running shims to the installed version.",
    .synopsis = "ID… | --all [options]",
    .text = "Pods keep running; their output and containerd's calls wait for some milliseconds. If "
            "the installed program cannot continue a shim, the previous one does, and nothing "
            "changes. The agent in the VM stays as it is.",
    .exits = "1 if a shim was not upgraded",
    .takes_words = true,
    .opts = ARGS_OPTIONS(
        { "all", 0, ARGS_FLAG, NULL, OPT(all), "every shim of this host" },
        { "after-install", 0, ARGS_FLAG, NULL, OPT(after_install),
          "for the package: upgrade shims of other versions if the setting "
          "upgrade is auto, otherwise print how many there are" },
        { "program", 0, ARGS_STR, "PATH", OPT(program),
          "continue as this program instead of the installed one" },
        { "dry-run", 0, ARGS_FLAG, NULL, OPT(dry_run), "only print whether it is possible now" },
        OPT_JSON("print one JSON value on stdout instead")),
    .examples =
        ARGS_EXAMPLES({ "lcow upgrade --all", "after the packages were upgraded" },
                      { "lcow upgrade --dry-run 4f2a9", "whether this one can be upgraded" }),
    .run = upgrade,
};
