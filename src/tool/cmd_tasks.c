/* cmd_tasks.c - `lcow tasks`: the tasks of one shim, as ShimDiag tells them. */
#include "api/shimdiag.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"

#define TASKS_LIMIT (5 * NS_PER_S)

static void put_json(const Diag__TasksResponse *resp, struct jsw *w)
{
    jsw_arr(w, NULL);
    for (size_t i = 0; i < resp->n_tasks; i++) {
        const Diag__Task *task = resp->tasks[i];

        jsw_obj(w, NULL);
        jsw_str(w, "id", task->id);
        jsw_arr(w, "execs");
        for (size_t k = 0; k < task->n_execs; k++) {
            jsw_obj(w, NULL);
            jsw_str(w, "id", task->execs[k]->id);
            jsw_str(w, "state", task->execs[k]->state);
            jsw_end_obj(w);
        }
        jsw_end_arr(w);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
}

static void put_text(const Diag__TasksResponse *resp, struct sbuf *out)
{
    for (size_t i = 0; i < resp->n_tasks; i++) {
        const Diag__Task *task = resp->tasks[i];

        sbuf_addf(out, "%s\n", task->id);
        for (size_t k = 0; k < task->n_execs; k++)
            sbuf_addf(out, "  +%s  %s\n", task->execs[k]->id, task->execs[k]->state);
    }
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, TASKS_LIMIT);
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO(pb_free) Diag__TasksResponse *resp = NULL;
    Diag__TasksRequest req = DIAG__TASKS_REQUEST__INIT;
    const struct tool_json *o = t->opts;

    req.execs = true;
    if (shim_of(&limited, t->config.run_root, t->rest.argv[0], &client, err) < 0 ||
        shim_call(&limited, client, 0, &diag__shim_diag__descriptor, "DiagTasks", &req,
                  (void **)&resp, err) < 0)
        return -1;
    if (o->json)
        put_json(resp, &t->json);
    else
        put_text(resp, &t->out);
    return TOOL_OK;
}

const struct args_cmd tasks_command = {
    .name = "tasks",
    .summary = "Print the tasks of one shim, with their execs.",
    .synopsis = "[options] ID",
    .text =
        "What ShimDiag's DiagTasks answers, for those who know hcsshim's shimdiag. `lcow ps -e` "
        "shows more.\n"
        "\n"
        "Exit code: 0; 1 if the shim is not there or does not answer; 2 if this command line "
        "is wrong.",
    .opts = TOOL_JSON_OPTS("print one JSON array on stdout instead"),
    .opts_size = sizeof(struct tool_json),
    .takes_words = true,
    .takes_id = true,
    .examples = ARGS_EXAMPLES({ "lcow tasks 4f2a9", "tasks and execs, as the shim knows them" }),
    .run = run,
};
