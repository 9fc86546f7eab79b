/* cmd_gc.c - `lcow gc`: cleans up what dead owners left, from their ledgers, scratch disks that no
 * ledger names, and layer images that are not needed. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "host/control/run_file.h"
#include "host/files/layers.h"
#include "host/files/scratch.h"
#include "host/ledger/ledger.h"
#include "tool/tool.h"
#include <string.h>
#include <unistd.h>

#define ONE_VM_LIMIT (30 * NS_PER_S)
#define OWNER_PAUSE (20 * NS_PER_MS)
#define LAYERS_LIMIT (NS_PER_S)

struct gc {
    struct ctx *ctx;
    const struct tool_opts *opts;
    json_t *items;    /* for --json */
    const char *name; /* of the current VM */
    const char *layer_dir;
    struct strv would; /* directories that a dry run has printed */
    size_t n_items, n_dead, n_alive, n_given_up, n_failed;
};

static void say_error(struct gc *g, const char *what)
{
    g->n_failed++;
    tool_fail(0, "%s: %s", g->name, what);
}

static void on_item(void *arg, const struct ledger_record *rec, int taken, const char *result)
{
    struct gc *g = arg;

    /* Not printed, so that a dry run prints the same lines as a real run. */
    if (taken == 0)
        return;
    if (taken < 0 && !g->opts->json) { /* the failure is counted for the whole VM */
        tool_fail(0, "%s: %s %s: %s", g->name, ledger_kind_name(rec->kind), rec->what, result);
        return;
    }
    g->n_items++;
    if (g->opts->dry_run && rec->kind == LEDGER_DIR)
        strv_add(&g->would, rec->what);
    if (g->opts->json)
        json_array_append_new(g->items,
                              json_pack("{so ss so so}", "vm", doc_string(g->name), "kind",
                                        ledger_kind_name(rec->kind), "what", doc_string(rec->what),
                                        "result", doc_string(result)));
    else
        tool_printf(STDOUT_FILENO, "%s %s %s\n", g->name, ledger_kind_name(rec->kind), rec->what);
}

/* Returns 1 if the shim is dead now, 0 if it keeps running. */
static int end_given_up(struct ctx *ctx, struct gc *g, const struct run_file *n, struct err *err)
{
    AUTO_FD int pidfd = -1;
    pid_t pid = 0;
    int there;

    g->n_given_up++;
    if (!g->opts->force || g->opts->dry_run || !n->process[0]) {
        tool_printf(STDERR_FILENO,
                    "lcow: containerd has given up %s: the bundles of its containers are gone, but "
                    "its shim, process %d, is running%s\n",
                    g->name, (int)n->pid,
                    n->process[0]
                        ? "; it should exit within 60 s; if it does not, run lcow gc --force"
                        : "; stop that process, then run lcow gc");
        return 0;
    }
    there = ledger_process_open(n->process, &pid, &pidfd, err);
    if (there < 0 || (there > 0 && ledger_process_kill(ctx, pid, pidfd, err) < 0))
        return -1;
    if (there > 0)
        on_item(g, &(struct ledger_record){ .kind = LEDGER_PROCESS, .what = n->process }, 1,
                "killed");
    if (str_starts(n->address, "unix://"))
        (void)unlink(
            n->address +
            strlen("unix://")); /* a failure is harmless: the next shim replaces the socket */
    return 1;
}

/* Returns 1 if the owner is dead now, 0 if it keeps running. */
static int on_alive(struct ctx *ctx, struct gc *g, const struct leftover *l, struct err *err)
{
    AUTO(run_file_release) struct run_file run = { 0 };
    bool given_up = false;

    /* An owner without a run file is not a shim. */
    if (run_file_read(l->dir, &run, err) == 0 &&
        run_given_up(ctx, l->dir, &run, &given_up, err) < 0)
        return -1;
    err_clear(err);
    if (given_up)
        return end_given_up(ctx, g, &run, err);
    g->n_alive++;
    tool_printf(STDERR_FILENO, "lcow: skipping %s: it is in use\n", l->name);
    return 0;
}

/* A child between fork and exec may briefly hold the lock on a killed shim's ledger. */
static int reclaim(struct ctx *ctx, struct gc *g, const struct leftover *l, struct err *err)
{
    struct err late = ERR_INIT;
    int r;

    while ((r = ledger_reclaim(ctx, l->dir, g->opts->dry_run, on_item, g, err)) < 0 && l->alive &&
           err->code == ERR_STATE && fiber_sleep(ctx, OWNER_PAUSE, &late) == 0)
        err_clear(err);
    return r;
}

static int on_leftover(void *arg, const struct leftover *l)
{
    struct gc *g = arg;
    struct ctx limited = ctx_with_timeout(g->ctx, ONE_VM_LIMIT);
    struct err err = ERR_INIT;

    g->name = l->name;
    if (l->err) {
        say_error(g, l->err->msg);
        return 0;
    }
    if (l->alive) {
        int ended = on_alive(&limited, g, l, &err);

        if (ended < 0)
            say_error(g, err.msg);
        if (ended <= 0)
            return 0;
    }
    g->n_dead++;
    if (reclaim(&limited, g, l, &err) < 0)
        say_error(g, err.msg);
    return 0;
}

/* Removes scratch disks that no running VM uses and no ledger names, because a reboot deleted the
 * ledgers. A dry run has already printed those that the ledgers of dead VMs name. */
static void on_scratch(void *arg, const char *name, const char *path, int taken, const char *result)
{
    struct gc *g = arg;
    const struct ledger_record rec = { .kind = LEDGER_DIR, .what = path };

    for (size_t i = 0; i < g->would.n; i++)
        if (str_eq(g->would.v[i], path))
            return;
    g->name = name;
    g->n_dead++;
    on_item(g, &rec, taken, result);
}

static void on_layer(void *arg, const char *name, const char *why)
{
    struct gc *g = arg;
    AUTO_FREE char *path = str_format("%s/%s", g->layer_dir, name);
    const struct ledger_record rec = { .kind = LEDGER_DIR, .what = path };

    g->name = "layers";
    g->n_dead++;
    on_item(g, &rec, 1, why);
}

/* Layer images: what killed builders left, and what `lcow layers prune` removes. A builder that
 * runs has done so itself. */
static int prune_layers(struct gc *g, const struct config *config, struct err *err)
{
    struct ctx limited = ctx_with_timeout(g->ctx, LAYERS_LIMIT);
    const struct layers_opts o = { .dir = config->layer_dir,
                                   .max_mib = config->layer_images_max_mib,
                                   .now_ns = loop_wall(g->ctx->loop) };
    AUTO_FD int lock = -1;

    g->layer_dir = config->layer_dir;
    if (layers_lock(&limited, o.dir, &lock, err) < 0)
        return err->code == ERR_NOT_FOUND || err->code == ERR_DEADLINE ? 0 : -1;
    return layers_prune(&o, g->opts->dry_run, on_layer, g, err);
}

static void say_sum(const struct gc *g, struct tool *t)
{
    if (g->opts->json) {
        t->json =
            json_pack("{so sb sI sI sI sI}", "items", g->items, "dry_run", g->opts->dry_run, "vms",
                      (json_int_t)g->n_dead, "in_use", (json_int_t)g->n_alive, "given_up",
                      (json_int_t)g->n_given_up, "failed", (json_int_t)g->n_failed);
    } else if (g->n_dead == 0) {
        tool_print(STDERR_FILENO, "lcow: nothing to clean up\n");
    } else {
        tool_printf(STDERR_FILENO, "lcow: %zu item%s of %zu VM%s %s\n", g->n_items,
                    g->n_items == 1 ? "" : "s", g->n_dead, g->n_dead == 1 ? "" : "s",
                    g->opts->dry_run ? "would be cleaned up" : "cleaned up");
    }
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct gc g = { .ctx = ctx, .opts = &t->opts, .items = t->opts.json ? json_array() : NULL };

    if (leftovers_walk(t->config.run_root, on_leftover, &g, err) < 0) {
        g.name = t->config.run_root;
        say_error(&g, err->msg);
    }
    if (scratch_sweep(t->config.scratch_dir, g.opts->dry_run, on_scratch, &g, err) < 0) {
        g.name = t->config.scratch_dir;
        say_error(&g, err->msg);
    }
    if (prune_layers(&g, &t->config, err) < 0) {
        g.name = t->config.layer_dir;
        say_error(&g, err->msg);
    }
    say_sum(&g, t);
    strv_release(&g.would);
    return g.n_failed > 0 ? TOOL_FAILED : TOOL_OK;
}

const struct args_cmd gc_command = {
    .name = "gc",
    .summary = "Clean up what crashed programs left behind.",
    .text = "Prints one line for each item: VM, kind, name. VMs whose owner is running are skipped "
            "and named on stderr. If containerd has given up all containers of a running shim "
            "(their bundles are gone), lcow reports that. Such a shim exits after 60 s unless it "
            "is stuck. With --force, lcow kills the shim and cleans up its VM. Layer images that "
            "'lcow layers prune' would remove are items of 'layers'.",
    .exits = "1 if something could not be cleaned up (run it again)",
    .opts = ARGS_OPTIONS({ "dry-run", 'n', ARGS_FLAG, NULL, OPT(dry_run),
                           "print the same lines, but change nothing" },
                         { "force", 'f', ARGS_FLAG, NULL, OPT(force),
                           "also kill shims whose containers containerd has given up" },
                         OPT_JSON("print one JSON object on stdout instead")),
    .examples = ARGS_EXAMPLES(
        { "lcow gc --dry-run", "print what a crash left behind" }, { "lcow gc", "clean it up" },
        { "lcow gc --force", "also kill shims that containerd has given up" }),
    .run = run,
};
