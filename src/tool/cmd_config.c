/* `lcow config`: the configuration in effect, as a file that could be used as one; `show` with
 * where each value comes from. */
#include "tool/cmd_config.h"
#include "base/err.h"
#include "host/config/annotations.h"
#include "tool/tool.h"
#include <unistd.h>

struct show_opts {
    bool origin, json;
};

static const struct args_example examples[] = {
    { "lcow config > /etc/lcow/lcow.conf", "begin a configuration file" },
    { "lcow config show --origin", "which file says so?" },
    { "lcow config check", "is anything wrong?" },
    { "lcow config containerd", "what containerd has to be told" },
    { "lcow config runtimeclass", "and Kubernetes" },
};
static const struct args_cmd cmd = {
    .name = "config",
    .summary = "Print every setting with its value in effect and its meaning.",
    .synopsis = "[show | check | containerd | runtimeclass | reference] [options]",
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

static const struct args_opt show_table[] = {
    { "origin", 0, ARGS_FLAG, NULL, offsetof(struct show_opts, origin),
      "behind each value, the file and line it comes from, or \"default\"" },
    { "json", 0, ARGS_FLAG, NULL, offsetof(struct show_opts, json),
      "print one JSON array on stdout instead, with origins" },
};
static const struct args_example show_examples[] = {
    { "lcow config show --origin", "which file says so?" },
    { "LCOW_CONFIG=test.conf lcow config show", "what would another file mean?" },
};
static const struct args_cmd show_cmd = {
    .name = "config show",
    .summary = "Print the settings in effect.",
    .synopsis = "[options]",
    .text = "Exit code: 0; 2 if the configuration or this command line is wrong.",
    .opts = show_table,
    .n_opts = ARRAY_LEN(show_table),
    .examples = show_examples,
    .n_examples = ARRAY_LEN(show_examples),
};

static const struct args_cmd reference_cmd = {
    .name = "config reference",
    .summary = "Print the reference of all settings as Markdown.",
    .synopsis = "",
};

static int run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct args_rest rest;
    int code;

    (void)ctx;
    if (!tool_begin(t, &cmd, NULL, argv, &rest, &code))
        return code;
    config_print(&t->config, &out);
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

static int show(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(config_report_release) struct config_report report = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct show_opts opts = { 0 };
    struct err err = ERR_INIT;
    struct args_rest rest;
    int code;

    (void)ctx;
    if (!tool_begin_bare(t, &show_cmd, &opts, argv, &rest, &code))
        return code;
    if (config_read(&t->config, t->globals.config, &report, &err) < 0)
        return tool_fail(TOOL_USAGE, "%s", err.msg);
    if (report.errors.n > 0)
        return tool_fail(TOOL_USAGE, "%s%s", report.errors.v[0],
                         report.errors.n > 1 ? " (and more: lcow config check)" : "");
    if (opts.json)
        config_print_json(&t->config, &report, &out);
    else
        config_print_short(&t->config, opts.origin ? &report : NULL, &out);
    if (opts.json)
        sbuf_addc(&out, '\n');
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

static int reference(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct args_rest rest;
    int code;

    (void)ctx;
    if (!tool_begin_bare(t, &reference_cmd, NULL, argv, &rest, &code))
        return code;
    config_print_markdown(&out);
    annotations_print_markdown(&out);
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

static const struct tool_command show_command = { &show_cmd, show },
                                 reference_command = { &reference_cmd, reference };
static const struct tool_command *const subs[] = { &show_command,
                                                   &config_check_command,
                                                   &config_containerd_command,
                                                   &config_runtimeclass_command,
                                                   &reference_command,
                                                   NULL };
const struct tool_command config_command = { &cmd, run, subs };
