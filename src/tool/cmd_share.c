/* cmd_share.c - `lcow share`: a directory or file of the host, shown in a VM. */
#include "api/shimdiag.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <stdlib.h>

#define SHARE_LIMIT (30 * NS_PER_S)

struct share_opts {
    bool writable;
};
static const struct args_opt share_table[] = {
    { "writable", 'w', ARGS_FLAG, NULL, offsetof(struct share_opts, writable),
      "the VM may change it" },
};

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, SHARE_LIMIT);
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO(pb_free) Diag__ShareResponse *resp = NULL;
    Diag__ShareRequest req = DIAG__SHARE_REQUEST__INIT;
    const struct share_opts *o = t->opts;
    char **words = t->rest.argv;

    if (t->rest.n < 2 || t->rest.n > 3)
        return tool_fail(TOOL_USAGE, "share needs ID, HOST_PATH and perhaps VM_PATH");

    AUTO_FREE char *path = realpath(words[1], NULL); /* the shim is in another directory */

    if (!path)
        return err_set(err, ERR_NOT_FOUND, "%s is not there", words[1]);
    req.host_path = path;
    req.uvm_path = t->rest.n == 3 ? words[2] : "";
    req.read_only = !o->writable;
    if (shim_of(&limited, t->config.run_root, words[0], &client, err) < 0 ||
        shim_call(&limited, client, 0, &diag__shim_diag__descriptor, "DiagShare", &req,
                  (void **)&resp, err) < 0)
        return -1;
    sbuf_addf(&t->out, "%s\n", resp->uvm_path);
    return TOOL_OK;
}

const struct args_cmd share_command = {
    .name = "share",
    .summary = "Show a directory or file of the host in a VM.",
    .synopsis = "[options] ID HOST_PATH [VM_PATH]",
    .text = "It is seen in the VM itself, not in its containers, until the VM ends. Prints the "
            "path in the VM.\n"
            "\n"
            "Exit code: 0; 1 if it failed; 2 if this command line is wrong.",
    .opts = ARGS_TABLE(share_table),
    .opts_size = sizeof(struct share_opts),
    .takes_words = true,
    .examples =
        ARGS_EXAMPLES({ "lcow share 4f2a9 /opt/tools /mnt/tools", "tools of the host, in the VM" },
                      { "lcow share -w 4f2a9 /tmp/dumps", "somewhere; prints where" }),
    .run = run,
};
