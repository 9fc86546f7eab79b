/* cmd_exec.c - `lcow exec`: a command in a container, or (--vm) in its VM, outside the containers,
 * by way of its shim. The latter works although crun, the container or containerd does not. */
#include "base/ctx.h"
#include "base/loop.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/exec.h"
#include "tool/lib/exec_task.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <stdlib.h>

struct exec_opts {
    bool vm, terminal, interactive;
    const char *cwd;
};

#define AT(f) offsetof(struct exec_opts, f)
static const struct args_opt opts_table[] = {
    { "vm", 0, ARGS_FLAG, NULL, AT(vm), "in the VM itself, outside its containers" },
    { "terminal", 't', ARGS_FLAG, NULL, AT(terminal), "give CMD a terminal" },
    { "interactive", 'i', ARGS_FLAG, NULL, AT(interactive),
      "for those who are used to it: stdin is always handed on" },
    { "cwd", 'C', ARGS_STR, "DIR", AT(cwd), "CMD's working directory" },
};

/* The shim of word's container, and what is to run there. */
static int find_task(struct ctx *ctx, struct tool *t, struct rpc_client **ret_client,
                     char **ret_container, char **ret_process, struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    const struct exec_opts *o = t->opts;
    const char *word = t->rest.argv[0], *container;
    const struct shim *s;

    if (shims_list(ctx, t->config.run_root, &shims, err) < 0 ||
        shims_find(&shims, word, &s, &container, err) < 0 || shim_answers(s, err) < 0)
        return -1;
    *ret_container = str_dup(container ? container : s->id);

    const char *bundle = doc_text(shims_container(s, *ret_container), "bundle");

    if (!bundle[0])
        return err_set(err, ERR_NOT_FOUND,
                       "%s has no container of that name: give a container's ID, or --vm", word);
    if (exec_task_process(bundle, t->rest.argv + 1, o->cwd, o->terminal, ret_process, err) < 0)
        return -1;
    return shim_connect(ctx, s, ret_client, err);
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO_FREE char *container = NULL, *process = NULL, *id = NULL;
    const struct exec_opts *o = t->opts;
    uint32_t random;
    int code;

    if (t->rest.n < 2)
        return tool_fail(TOOL_USAGE, "exec needs an ID and a command: lcow exec ID -- CMD");
    if ((o->vm ? shim_of(ctx, t->config.run_root, t->rest.argv[0], &client, err)
               : find_task(ctx, t, &client, &container, &process, err)) < 0)
        return -1;
    loop_rand(ctx->loop, &random, sizeof(random));
    id = str_format("lcow-%08x", random);

    const struct exec_task task = { .client = client,
                                    .container = container,
                                    .exec_id = id,
                                    .process = process,
                                    .terminal = o->terminal };
    const struct exec_what what = { .task = o->vm ? NULL : &task,
                                    .argv = t->rest.argv + 1,
                                    .cwd = o->cwd,
                                    .terminal = o->terminal,
                                    .fds = { 0, 1, 2 } };

    return exec_run(ctx, client, &what, &code, err) < 0 ? -1 : code;
}

const struct args_cmd exec_command = {
    .name = "exec",
    .summary = "Run CMD in a container, or in its VM.",
    .synopsis = "[--vm] [options] ID -- CMD...",
    .text =
        "With --vm it does not need crun or the containers of the VM to work, only its agent. In a "
        "container CMD has the environment and user of the container's own process.\n"
        "\n"
        "Exit code: CMD's own; 125 if lcow failed; 2 if this command line is wrong.",
    .opts = ARGS_TABLE(opts_table),
    .opts_size = sizeof(struct exec_opts),
    .failed = TOOL_BOOT_FAILED,
    .takes_command = true,
    .takes_words = true,
    .examples = ARGS_EXAMPLES({ "lcow exec -it 77b01 -- sh", "a shell in a container" },
                              { "lcow exec --vm 4f2a9 -- dmesg", "the guest kernel's own words" },
                              { "lcow exec --vm -t 4f2a9 -- sh", "a shell in the VM" }),
    .run = run,
};
