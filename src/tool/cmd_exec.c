/* cmd_exec.c - `lcow exec`: runs a command in a container, or (--vm) in its VM outside the
 * containers, through the shim. --vm works even if crun, the container or containerd fails. */
#include "base/ctx.h"
#include "base/loop.h"
#include "tool/lib/exec.h"
#include "tool/tool.h"

/* Fills in the process for the container that word names. */
static int make_process(struct tool *t, const char *word, const char **ret_container,
                        char **ret_process, struct err *err)
{
    const char *container = t->container ? t->container : t->shim->id;
    const char *bundle = doc_text(shims_container(t->shim, container), "bundle");

    /* A sandbox's holder cannot run a command, and containerd does not know it. */
    if (!bundle[0] || (t->shim->hidden && str_eq(container, t->shim->hidden)))
        return err_set(err, ERR_NOT_FOUND,
                       "%s names a sandbox, not a container; use a container's ID, or --vm", word);
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
    .text = "With --vm, lcow needs only the VM's agent, not crun or a working container. In a "
            "container, CMD has the environment and user of the container's init.\n"
            "\n"
            "Exit code: CMD's own; 125 if lcow failed; 2 if the command line is invalid.",
    .opts = ARGS_OPTIONS(
        { "vm", 0, ARGS_FLAG, NULL, OPT(vm), "run CMD in the VM, outside its containers" },
        { "terminal", 't', ARGS_FLAG, NULL, OPT(terminal), "give CMD a terminal" },
        { "interactive", 'i', ARGS_FLAG, NULL, OPT(interactive),
          "no effect, for compatibility: stdin is always connected" },
        { "cwd", 'C', ARGS_STR, "DIR", OPT(cwd), "CMD's working directory" }),
    .failed = TOOL_BOOT_FAILED,
    .takes_command = true,
    .takes_words = true,
    .examples = ARGS_EXAMPLES({ "lcow exec -it 77b01 -- sh", "run a shell in a container" },
                              { "lcow exec --vm 4f2a9 -- dmesg", "print the guest kernel's log" },
                              { "lcow exec --vm -t 4f2a9 -- sh", "run a shell in the VM" }),
    .run = run,
};
