/* cmd_stacks.c - `lcow stacks`: what every fiber of a shim and its guest waits for. */
#include "api/shimdiag.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "host/rpc/rpc_client.h"
#include "tool/cmd_report.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <stdlib.h>
#include <string.h>

#define STACKS_LIMIT (10 * NS_PER_S)

/* The guest's own words, line by line. */
static void put_safely(struct sbuf *out, const char *text)
{
    AUTO_FREE char *copy = str_dup(text);

    for (char *rest = copy, *line; (line = strsep(&rest, "\n"));) {
        AUTO_FREE char *safe = str_printable(line);

        sbuf_addf(out, "%s\n", safe);
    }
}

int stacks_put(struct ctx *ctx, struct rpc_client *client, struct sbuf *out, struct jsw *w,
               struct err *err)
{
    AUTO(pb_free) Diag__StacksResponse *resp = NULL;
    Diag__StacksRequest req = DIAG__STACKS_REQUEST__INIT;

    if (shim_call(ctx, client, STACKS_LIMIT, &diag__shim_diag__descriptor, "DiagStacks", &req,
                  (void **)&resp, err) < 0)
        return -1;
    if (!w) {
        sbuf_addf(out, "shim\n%s\nguest\n", resp->stacks);
        put_safely(out, resp->guest_stacks);
        return 0;
    }
    jsw_obj(w, NULL);
    jsw_str(w, "shim", resp->stacks);
    jsw_str(w, "guest", resp->guest_stacks);
    jsw_end_obj(w);
    return 0;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    const struct tool_json *o = t->opts;

    if (shim_of(ctx, t->config.run_root, t->rest.argv[0], &client, err) < 0)
        return -1;
    return stacks_put(ctx, client, &t->out, o->json ? &t->json : NULL, err);
}

const struct args_cmd stacks_command = {
    .name = "stacks",
    .summary = "Print what every fiber of a shim and its guest waits for.",
    .synopsis = "[options] ID",
    .text = "A guest that does not answer within five seconds does not keep the shim's own part "
            "back.\n"
            "\n"
            "Exit code: 0; 1 if the shim is not there or does not answer; 2 if this command line "
            "is wrong.",
    .opts = TOOL_JSON_OPTS("print one JSON object on stdout instead"),
    .opts_size = sizeof(struct tool_json),
    .takes_words = true,
    .takes_id = true,
    .examples = ARGS_EXAMPLES(
        { "lcow stacks 4f2a9", "what does everybody in this shim and its VM wait for?" }),
    .run = run,
};
