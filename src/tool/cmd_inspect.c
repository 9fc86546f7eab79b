/* cmd_inspect.c - `lcow inspect`: all that the shim of one sandbox knows. */
#include "base/ctx.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    const struct shim *s;
    const char *container;

    if (shims_list(ctx, t->config.run_root, &shims, err) < 0 ||
        shims_find(&shims, t->rest.argv[0], &s, &container, err) < 0)
        return -1;
    if (!s->doc)
        return err_set(err, s->why.code, "%s/%s: %s", s->ns, s->id, s->why.msg);
    shims_measure(ctx, &shims, s);

    AUTO_FREE char *text = js_text(s->doc, 2);

    sbuf_addf(&t->out, "%s\n", text);
    return TOOL_OK;
}

const struct args_cmd inspect_command = {
    .name = "inspect",
    .summary = "Print all that a shim knows, as JSON.",
    .synopsis = "ID",
    .text = "ID is the beginning of a sandbox's or container's id, with or without "
            "NAMESPACE/ before it. The document has the VM with the stages of its boot, its disks, "
            "shares and PCI devices with their holders, containers and execs.\n"
            "\n"
            "Exit code: 0; 1 if it is not there or does not answer; 2 if this command line is "
            "wrong.",
    .takes_words = true,
    .takes_id = true,
    .examples = ARGS_EXAMPLES(
        { "lcow inspect 4f2a9", "all that the shim of this sandbox or container knows" },
        { "lcow inspect k8s.io/4f2a9", "in that namespace of containerd" }),
    .run = run,
};
