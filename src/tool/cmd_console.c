/* cmd_console.c - `lcow console`: the last lines that a VM printed. */
#include "api/lcow.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "host/rpc/rpc_client.h"
#include "tool/cmd_report.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"

#define CONSOLE_LIMIT (5 * NS_PER_S)

int console_put(struct ctx *ctx, struct rpc_client *client, struct sbuf *out, struct err *err)
{
    AUTO(pb_free) Lcow__ConsoleResponse *resp = NULL;
    Lcow__ConsoleRequest req = LCOW__CONSOLE_REQUEST__INIT;

    if (shim_call(ctx, client, CONSOLE_LIMIT, &lcow__shim__descriptor, "Console", &req,
                  (void **)&resp, err) < 0)
        return -1;
    sbuf_adds(out, resp->text);
    return 0;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;

    if (shim_of(ctx, t->config.run_root, t->rest.argv[0], &client, err) < 0)
        return -1;
    return console_put(ctx, client, &t->out, err);
}

const struct args_cmd console_command = {
    .name = "console",
    .summary = "Print the last lines of a VM's console.",
    .synopsis = "ID",
    .text =
        "The shim keeps them: this works while the VM is stopped or hangs. The console takes no "
        "input; for a shell in the VM see: lcow exec --vm -t ID -- sh\n"
        "\n"
        "Exit code: 0; 1 if the shim is not there or does not answer; 2 if this command line "
        "is wrong.",
    .takes_words = true,
    .takes_id = true,
    .examples =
        ARGS_EXAMPLES({ "lcow console 4f2a9", "the last that firmware, kernel and agent printed" }),
    .run = run,
};
