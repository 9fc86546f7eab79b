/* cmd_exec.c - `lcow exec`: a command in a container, or (--vm) in its VM, outside the containers,
 * by way of its shim. The latter works although crun, the container or containerd does not. */
#include "base/ctx.h"
#include "base/loop.h"
#include "tool/lib/exec.h"
#include "tool/tool.h"

/* The process that is to run in the container that word means. */
static int make_process(struct tool *t, const char *word, const char **ret_container,
                        char **ret_process, struct err *err)
{
    const char *container = t->container ? t->container : t->shim->id;
    const char *bundle = doc_text(shims_container(t->shim, container), "bundle");

    /* The one that holds a sandbox has no command, and containerd does not know it. */
    if (!bundle[0] || (t->shim->hidden && str_eq(container, t->shim->hidden)))
        return err_set(err, ERR_NOT_FOUND,
                       "%s has no container of that name: give a container's ID, or --vm", word);
    *ret_container = container;
    return exec_process(bundle, t->rest.argv + 1, t->opts.cwd, t->opts.terminal, ret_process, err);
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct exec_what what = { .argv = t->rest.argv + 1,
                              .cwd = t->opts.cwd,
                              .terminal = t->opts.terminal,
                              .fds = { 0, 1, 2 } };
    AUTO_FREE char *process = NULL;
    uint32_t random;
    int code;

    if (t->rest.n < 2)
        return tool_fail(TOOL_USAGE, "exec needs an ID and a command: lcow exec ID -- CMD");
    if (tool_connect(ctx, t, t->rest.argv[0], err) < 0 ||
        (!t->opts.vm && make_process(t, t->rest.argv[0], &what.container, &process, err) < 0))
        return -1;
    loop_rand(ctx->loop, &random, sizeof(random));
    AUTO_FREE char *id = str_format("lcow-%08x", random);
    what.exec_id = id;
    what.process = process;
    return exec_run(ctx, t->client, &what, &code, err) < 0 ? -1 : code;
}

const struct args_cmd exec_command = {
    .name = "exec",
    .summary = "Run CMD in a container, or in its VM.",
    .synopsis = "[--vm] [options] ID -- CMD...",
    .text = "With --vm it does not need crun or the containers of the VM to work, only its agent. "
            "In a container CMD has the environment and user of the container's own process.\n"
            "\n"
            "Exit code: CMD's own; 125 if lcow failed; 2 if this command line is wrong.",
    .opts = ARGS_OPTIONS(
        { "vm", 0, ARGS_FLAG, NULL, OPT(vm), "in the VM itself, outside its containers" },
        { "terminal", 't', ARGS_FLAG, NULL, OPT(terminal), "give CMD a terminal" },
        { "interactive", 'i', ARGS_FLAG, NULL, OPT(interactive),
          "for those who are used to it: stdin is always handed on" },
        { "cwd", 'C', ARGS_STR, "DIR", OPT(cwd), "CMD's working directory" }),
    .failed = TOOL_BOOT_FAILED,
    .takes_command = true,
    .takes_words = true,
    .examples = ARGS_EXAMPLES({ "lcow exec -it 77b01 -- sh", "a shell in a container" },
                              { "lcow exec --vm 4f2a9 -- dmesg", "the guest kernel's own words" },
                              { "lcow exec --vm -t 4f2a9 -- sh", "a shell in the VM" }),
    .run = run,
};
