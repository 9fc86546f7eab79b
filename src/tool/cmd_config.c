/* `lcow config` prints the configuration in effect as a valid file; `show` prints it with the
 * origin of each value. */
#include "tool/cmd_config.h"
#include "host/config/annotations.h"
#include "host/config/runhcs.h"

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    config_print(&t->config, NULL, true, &t->out);
    return TOOL_OK;
}

static int show(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(config_report_release) struct config_report report = { 0 };

    if (config_read(&t->config, t->opts.config, &report, err) < 0)
        return -1;
    if (report.errors.n > 0)
        return err_set(err, ERR_INVALID, "%s%s", report.errors.v[0],
                       report.errors.n > 1 ? " (and more: lcow config check)" : "");
    if (t->opts.json) {
        config_print_json(&t->config, &report, &t->out);
        sbuf_addc(&t->out, '\n');
    } else {
        config_print(&t->config, t->opts.origin ? &report : NULL, false, &t->out);
    }
    return TOOL_OK;
}

static int reference(struct ctx *ctx, struct tool *t, struct err *err)
{
    config_print_markdown(&t->out);
    annotations_print_markdown(&t->out);
    runhcs_print_markdown(&t->out);
    return TOOL_OK;
}

static const struct args_cmd show_command = {
    .name = "config show",
    .summary = "Print the settings in effect.",
    .text = "Exit code: 0; 2 if the configuration or the command line is invalid.",
    .opts = ARGS_OPTIONS({ "origin", 0, ARGS_FLAG, NULL, OPT(origin),
                           "print after each value its file and line, or \"default\"" },
                         OPT_JSON("print one JSON array on stdout instead, with origins")),
    .examples = ARGS_EXAMPLES(
        { "lcow config show --origin", "find the file that sets a value" },
        { "LCOW_CONFIG=test.conf lcow config show", "print the settings of another file" }),
    .bare = true,
    .failed = TOOL_USAGE,
    .run = show,
};
static const struct args_cmd reference_command = {
    .name = "config reference",
    .summary = "Print the reference of all settings as Markdown.",
    .synopsis = "",
    .bare = true,
    .run = reference,
};
static const struct args_cmd *const subs[] = {
    &show_command,         &config_check_command, &config_containerd_command,
    &runtimeclass_command, &reference_command,    NULL
};
const struct args_cmd config_command = {
    .name = "config",
    .summary = "Print every setting with its value in effect and its meaning.",
    .synopsis = "[show | check | containerd | runtimeclass | reference] [options]",
    .examples =
        ARGS_EXAMPLES({ "lcow config > /etc/lcow/lcow.conf", "create a configuration file" },
                      { "lcow config show --origin", "find the file that sets a value" },
                      { "lcow config check", "check it" },
                      { "lcow config containerd", "print containerd's part" },
                      { "lcow config runtimeclass", "print Kubernetes' part" }),
    .subs = subs,
    .run = run,
};
