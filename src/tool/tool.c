#include "tool/tool.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "host/rpc/rpc_client.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

const struct args_cmd *const tool_commands[] = {
    /* in the order of the help */
    &boot_command,       &ps_command,
    &top_command,        &inspect_command,
    &explain_command,    &logs_command,
    &events_command,     &timeline_command,
    &console_command,    &stacks_command,
    &tasks_command,      &exec_command,
    &cp_command,         &share_command,
    &volume_command,     &metrics_command,
    &overhead_command,   &report_command,
    &doctor_command,     &template_command,
    &cpugroup_command,   &upgrade_command,
    &config_command,     &gc_command,
    &completion_command, NULL
};

const struct args_opts tool_global_opts =
    ARGS_OPTIONS({ "config", 0, ARGS_STR, "FILE", OPT(config),
                   "configuration instead of " CONFIG_PATH " (also: $" CONFIG_ENV ")" },
                 { "log-level", 0, ARGS_STR, "LEVEL", OPT(log_level),
                   "log to stderr, the guest's log included: trace, debug, info, warn, error or "
                   "off (default)" });
static const struct args_opts leading_opts =
    ARGS_OPTIONS({ "version", 0, ARGS_FLAG, NULL, OPT(version), "print the version" });

void tool_print(int fd, const char *text)
{
    (void)fd_write_full(fd, text, strlen(text)); /* a failed write cannot be reported anywhere */
}

void tool_printf(int fd, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *text = str_vformat(fmt, ap);
    va_end(ap);
    tool_print(fd, text);
}

int tool_fail(int code, const char *fmt, ...)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *text = str_vformat(fmt, ap);
    va_end(ap);
    sbuf_adds(&out, "lcow: error: ");
    args_wrap(&out, text, 2, out.len);
    sbuf_addc(&out, '\n');
    tool_print(STDERR_FILENO, out.data);
    return code;
}

void tool_flush(struct tool *t)
{
    if (t->out.len > 0)
        tool_print(STDOUT_FILENO, t->out.data);
    t->out.len = 0;
}

/* ---- the shims of this host */

int tool_list(struct ctx *ctx, struct tool *t, struct err *err)
{
    if (!t->listed && shims_list(ctx, t->config.run_root, &t->shims, err) < 0)
        return -1;
    t->listed = true;
    return 0;
}

int tool_measure(struct ctx *ctx, struct tool *t, struct err *err)
{
    shims_release(&t->shims);
    t->listed = false;
    if (tool_list(ctx, t, err) < 0)
        return -1;
    shims_cost(ctx, &t->shims);
    return 0;
}

int tool_find(struct ctx *ctx, struct tool *t, const char *word, struct err *err)
{
    if (tool_list(ctx, t, err) < 0) /* all shims, since word may name a container */
        return -1;
    return shims_find(&t->shims, word, &t->shim, &t->container, err);
}

int tool_connect(struct ctx *ctx, struct tool *t, const char *word, struct err *err)
{
    if (tool_find(ctx, t, word, err) < 0 || shim_answers(t->shim, err) < 0)
        return -1;
    return shim_connect(ctx, t->shim, &t->client, err);
}

/* ---- help and errors */

static void print_help(void)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    sbuf_adds(&out, "usage: lcow COMMAND [options]\n\n"
                    "lcow runs Linux containers in utility VMs. This is the operator's tool.\n\n"
                    "commands\n");
    for (const struct args_cmd *const *c = tool_commands; *c; c++)
        args_row(&out, (*c)->name, (*c)->summary, 10);
    args_help_options("options", leading_opts, &out);
    args_help_options("options of every command", tool_global_opts, &out);
    sbuf_adds(&out, "\nexamples\n"
                    "  lcow doctor\n      check this machine and print fixes\n"
                    "  lcow boot -- uname -a\n      boot a VM, run a command in it, stop the VM\n"
                    "  lcow boot --help\n      print the help of one command\n");
    tool_print(STDOUT_FILENO, out.data);
}

static int usage_error(const char *cmd, const struct err *err)
{
    tool_fail(TOOL_USAGE, "%s", err->msg);
    tool_printf(STDERR_FILENO, "see: lcow%s%s --help\n", cmd ? " " : "", cmd ? cmd : "");
    return TOOL_USAGE;
}

/* Reads the command line and the configuration. false: lcow exits with *ret_code, and the reason
 * was printed. */
static bool begin(struct tool *t, const struct args_cmd *c, char **argv, int *ret_code)
{
    enum log_level level = LOG_OFF; /* errors are printed without the log */
    struct err err = ERR_INIT;
    int r = args_parse(c, tool_global_opts, &t->opts, argv, &t->rest, &err);

    *ret_code = TOOL_OK;
    if (r == ARGS_HELP)
        args_help(c, tool_global_opts, &t->out);
    else if (r < 0)
        *ret_code = usage_error(c->name, &err);
    else if (t->opts.log_level && log_level_parse(t->opts.log_level, &level) < 0)
        *ret_code =
            tool_fail(TOOL_USAGE, "--log-level %s: must be trace, debug, info, warn, error or off",
                      t->opts.log_level);
    if (r != 0 || *ret_code != TOOL_OK)
        return false;
    log_init(STDERR_FILENO, level, LOG_LOGFMT);
    if (!c->run)
        *ret_code =
            tool_fail(TOOL_USAGE, "the subcommand is missing; see: lcow %s --help", c->name);
    else if (!c->bare && config_load(&t->config, t->opts.config, &err) < 0)
        *ret_code = tool_fail(TOOL_USAGE, "%s", err.msg);
    else if (c->takes_id && t->rest.n != 1)
        *ret_code = tool_fail(TOOL_USAGE, "%s needs one ID; see: lcow ps", c->name);
    return *ret_code == TOOL_OK;
}

static int run(struct ctx *ctx, struct tool *t, const struct args_cmd *c, char **argv)
{
    struct err err = ERR_INIT;
    int code;

    if (!begin(t, c, argv, &code)) {
        tool_flush(t); /* the help */
        return code;
    }
    code = c->run(ctx, t, &err);
    if (code < 0)
        return tool_fail(c->failed ? c->failed : TOOL_FAILED, "%s", err.msg);
    if (t->json) {
        AUTO_FREE char *text = js_text(t->json, 0);

        sbuf_addf(&t->out, "%s\n", text);
    }
    tool_flush(t);
    return code;
}

/* ------------------------------------------------------------------ the first fiber */

struct job {
    struct tool *tool;
    const struct args_cmd *command;
    char **argv;
    int code;
};

static void run_job(void *arg)
{
    struct job *job = arg;
    struct ctx ctx = ctx_root(job->tool->loop);

    job->code = run(&ctx, job->tool, job->command, job->argv);
    rpc_client_free(TAKE_PTR(job->tool->client));
    loop_stop(job->tool->loop);
}

static void dump_fibers(void *arg, const struct signalfd_siginfo *info)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    loop_dump(arg, &out);
    tool_print(STDERR_FILENO, out.data ? out.data : "no fibers\n");
}

static int run_command(const struct tool_backend *backend, const struct args_cmd *command,
                       const struct tool_opts *globals, char **argv)
{
    struct tool t = { .backend = backend, .opts = *globals };
    struct job job = { .tool = &t, .command = command, .argv = argv, .code = TOOL_BOOT_FAILED };

    t.loop = loop_new(NULL);
    if (!t.loop)
        return tool_fail(TOOL_BOOT_FAILED, "create an event loop: %s", strerror(errno));
    config_init(&t.config);
    (void)loop_on_signal(t.loop, SIGUSR1, dump_fibers, t.loop); /* optional: for debugging only */
    fiber_go(t.loop, run_job, &job, "lcow %s", command->name);
    (void)loop_run(t.loop); /* fibers that still wait were abandoned after an error was printed */
    loop_free(t.loop);
    shims_release(&t.shims);
    config_release(&t.config);
    sbuf_release(&t.out);
    json_decref(t.json);
    return job.code;
}

/* The word after "config" in "config show". */
const char *tool_last_word(const char *name)
{
    const char *blank = strrchr(name, ' ');

    return blank ? blank + 1 : name;
}

static const struct args_cmd *find_command(const struct args_cmd *const *list, const char *name,
                                           const char *parent, struct err *err)
{
    const char *names[64] = { 0 };

    for (size_t i = 0; list[i] && i < ARRAY_LEN(names) - 1; i++) {
        names[i] = tool_last_word(list[i]->name);
        if (str_eq(name, names[i]))
            return list[i];
    }
    const char *near = str_nearest(name, names);

    err_set(err, ERR_INVALID, "unknown command '%s%s%s'%s%s%s", parent, *parent ? " " : "", name,
            near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return NULL;
}

static void name_all(const struct args_cmd *const *list, struct sbuf *out)
{
    for (size_t i = 0; list[i]; i++)
        sbuf_addf(out, "%s%s",
                  i == 0        ? ""
                  : list[i + 1] ? ", "
                                : " or ",
                  tool_last_word(list[i]->name));
}

/* The command that argv[*at] and the following words name; *at becomes the index of its last word.
 * NULL: the command is missing or unknown, and an error was printed. */
static const struct args_cmd *choose(char **argv, int *at, int *ret_code)
{
    const struct args_cmd *command, *sub = NULL;
    AUTO(sbuf_release) struct sbuf names = { 0 };
    struct err err = ERR_INIT;
    const char *word;

    command = find_command(tool_commands, argv[*at], "", &err);
    if (!command) {
        *ret_code = usage_error(NULL, &err);
        return NULL;
    }
    word = argv[*at + 1];
    if (!command->subs || (!word && command->run) || (word && *word == '-'))
        return command; /* a command without `run` only has help */
    name_all(command->subs, &names);
    if (!word)
        err_set(&err, ERR_INVALID, "the subcommand is missing: must be %s", names.data);
    else
        sub = find_command(command->subs, word, command->name, &err);
    if (!sub)
        *ret_code = usage_error(command->name, &err);
    else
        ++*at;
    return sub;
}

/* Opens closed standard descriptors, so that no file we open becomes our stdout. */
static void hold_standard_fds(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    fd_close(fd);
}

int tool_main(const struct tool_backend *backend, char **argv)
{
    struct tool_opts globals = { 0 };
    struct err err = ERR_INIT;
    int next = 0, code = TOOL_USAGE, r;

    hold_standard_fds();
    signal(SIGPIPE, SIG_IGN);
    r = args_parse_leading(leading_opts, tool_global_opts, &globals, argv, &next, &err);
    if (r < 0)
        return usage_error(NULL, &err);
    if (globals.version) {
        tool_print(STDOUT_FILENO, "lcow " LCOW_VERSION "\n");
        return TOOL_OK;
    }
    if (r == ARGS_HELP || str_eq(argv[next], "help")) {
        print_help();
        return TOOL_OK;
    }
    if (!argv[next]) {
        AUTO(sbuf_release) struct sbuf names = { 0 };

        name_all(tool_commands, &names);
        err_set(&err, ERR_INVALID, "the command is missing: must be %s", names.data);
        return usage_error(NULL, &err);
    }
    const struct args_cmd *command = choose(argv, &next, &code);

    return command ? run_command(backend, command, &globals, argv + next) : code;
}
