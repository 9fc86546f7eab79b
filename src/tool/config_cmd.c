/* `lcow config`: the configuration in effect, as a file that could be used as one. */
#include "base/str.h"
#include "tool/tool.h"
#include <unistd.h>

static const struct args_example examples[] = {
    { "lcow config > /etc/lcow/lcow.conf", "begin a configuration file" },
    { "LCOW_CONFIG=test.conf lcow config", "what would another file mean?" },
};
static const struct args_cmd cmd = {
    .name = "config",
    .summary = "Print every setting with its value in effect and its meaning.",
    .synopsis = "[options]",
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

static int run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct args_rest rest;
    int code;

    if (!tool_begin(t, &cmd, NULL, argv, &rest, &code))
        return code;
    config_print(&t->config, &out);
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

const struct tool_command config_command = { &cmd, run };
