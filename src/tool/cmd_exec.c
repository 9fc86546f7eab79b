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
static const struct args_example examples[] = {
    { "lcow exec -it 77b01 -- sh", "a shell in a container" },
    { "lcow exec --vm 4f2a9 -- dmesg", "the guest kernel's own words" },
    { "lcow exec --vm -t 4f2a9 -- sh", "a shell in the VM" },
};
static const struct args_cmd cmd = {
    .name = "exec",
    .summary = "Run CMD in a container, or in its VM.",
    .synopsis = "[--vm] [options] ID -- CMD...",
    .text =
        "With --vm it does not need crun or the containers of the VM to work, only its agent. In a "
        "container CMD has the environment and user of the container's own process.\n"
        "\n"
        "Exit code: CMD's own; 125 if lcow failed; 2 if this command line is wrong.",
    .opts = opts_table,
    .n_opts = ARRAY_LEN(opts_table),
    .takes_command = true,
    .takes_words = true,
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

/* The shim of word's container, and what is to run there. */
static int find_task(struct ctx *ctx, struct tool *t, const char *word, const struct exec_opts *o,
                     char *const *argv, struct rpc_client **ret_client, char **ret_container,
                     char **ret_process, struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    const struct shim *s;
    const char *container;

    if (shims_list(t->config.run_root, &shims, err) < 0)
        return -1;
    shims_ask(ctx, &shims);
    if (shims_find(&shims, word, &s, &container, err) < 0 || shim_answers(s, err) < 0)
        return -1;

    const json_t *found = shims_container(s, container ? container : s->id);
    const char *bundle = json_string_value(json_object_get(found, "bundle"));

    if (!found || !bundle)
        return err_set(err, ERR_NOT_FOUND,
                       "%s has no container of that name: give a container's ID, or --vm", word);
    *ret_container = str_dup(container ? container : s->id);
    if (exec_task_process(bundle, argv, o->cwd, o->terminal, ret_process, err) < 0)
        return -1;
    return shim_connect(ctx, s, ret_client, err);
}

static int exec_in_container(struct ctx *ctx, struct tool *t, const char *word,
                             const struct exec_opts *o, char *const *argv, int *ret_code,
                             struct err *err)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO_FREE char *container = NULL, *process = NULL;
    uint32_t random;

    if (find_task(ctx, t, word, o, argv, &client, &container, &process, err) < 0)
        return -1;
    loop_rand(ctx->loop, &random, sizeof(random));

    AUTO_FREE char *id = str_format("lcow-%08x", random);
    const struct exec_task task = { .client = client,
                                    .container = container,
                                    .exec_id = id,
                                    .process = process,
                                    .terminal = o->terminal };
    const struct exec_what what = { .task = &task, .terminal = o->terminal, .fds = { 0, 1, 2 } };

    return exec_run(ctx, client, &what, ret_code, err);
}

static int exec_in_vm(struct ctx *ctx, struct tool *t, const char *word, const struct exec_opts *o,
                      char *const *argv, int *ret_code, struct err *err)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    const struct exec_what what = {
        .argv = argv, .cwd = o->cwd, .terminal = o->terminal, .fds = { 0, 1, 2 }
    };

    if (shim_of(ctx, t->config.run_root, word, &client, err) < 0)
        return -1;
    return exec_run(ctx, client, &what, ret_code, err);
}

static int run(struct ctx *ctx, struct tool *t, char **argv)
{
    struct exec_opts o = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code, r;

    if (!tool_begin(t, &cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n < 2)
        return tool_fail(TOOL_USAGE, "exec needs an ID and a command: lcow exec ID -- CMD");
    r = (o.vm ? exec_in_vm : exec_in_container)(ctx, t, rest.argv[0], &o, rest.argv + 1, &code,
                                                &err);
    return r < 0 ? tool_fail(TOOL_BOOT_FAILED, "%s", err.msg) : code;
}

const struct tool_command exec_command = { .cmd = &cmd, .run = run };
