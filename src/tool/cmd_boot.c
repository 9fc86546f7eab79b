/* cmd_boot.c - `lcow boot`: the command line, the boots one after the other, where reports go. */
#include "tool/cmd_boot.h"
#include "base/fd.h"
#include "base/loop.h"
#include "host/template/template.h"
#include "tool/lib/term.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define REPEAT_MAX 1000

struct boots {
    struct tool *tool;
    struct tool_opts *opts;
    struct image *image;
    struct boot_session like;     /* the settings of every session */
    struct boot_session *session; /* the current one; NULL between two */
    int signo;                    /* a signal that arrived between two */
};

static void on_signal(void *arg, const struct signalfd_siginfo *info)
{
    struct boots *b = arg;

    if (b->session)
        boot_session_signal(b->session, (int)info->ssi_signo);
    else if (info->ssi_signo != SIGWINCH)
        b->signo = (int)info->ssi_signo;
}

/* One boot; a failure is printed at once. */
static void boot_one(struct ctx *ctx, struct boots *b, bool cold, struct boot_result *ret)
{
    struct boot_session s = b->like;
    AUTO(sbuf_release) struct sbuf text = { 0 };

    s.cold = cold;
    b->session = &s;
    boot_session_run(ctx, &s, ret);
    b->session = NULL;
    if (s.stop.fired || ret->err.code == ERR_CANCELLED)
        b->signo = s.signo;
    if (ret->err.code != ERR_NONE) {
        if (b->signo && term_is(STDERR_FILENO))
            sbuf_addc(&text, '\n'); /* after the terminal's ^C */
        boot_report_failure(ret, &text);
        tool_print(STDERR_FILENO, text.data);
    }
}

static int write_file(const char *path, const char *text)
{
    int r = file_write(path, text, strlen(text), 0644);

    if (r < 0)
        tool_fail(0, "write %s: %s", path, strerror(-r));
    return r;
}

static int put_timeline(const struct boots *b, const struct boot_result *last)
{
    const char *path = b->opts->timeline.value;
    AUTO(sbuf_release) struct sbuf out = { 0 };

    if (!b->opts->timeline.given)
        return 0;
    boot_report_timeline(last, path && str_ends(path, ".svg"), &out);
    if (path)
        return write_file(path, out.data);
    tool_print(STDERR_FILENO, out.data);
    return 0;
}

static int put_json(const struct boots *b, const struct boot_result *results, size_t n)
{
    AUTO(json_decref) json_t *all = json_array();

    if (!b->opts->json_file.given)
        return 0;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(all, boot_report_json(&results[i], b->opts, b->image));
    AUTO_FREE char *text = js_text(b->opts->repeat ? all : json_array_get(all, 0), 0);
    AUTO_FREE char *line = str_format("%s\n", text);

    if (b->opts->json_file.value)
        return write_file(b->opts->json_file.value, line);
    /* CMD's last line may lack its newline. */
    if (results[n - 1].out.bytes > 0)
        tool_print(STDOUT_FILENO, "\n");
    tool_print(STDOUT_FILENO, line);
    return 0;
}

/* Builds the template for the second half of a --repeat if it is missing. */
static bool have_template(struct ctx *ctx, struct boots *b)
{
    AUTO(template_info_release) struct template_info info = { 0 };
    struct err err = ERR_INIT;
    bool made;

    if (tool_build_template(ctx, b->tool, &info, &made, &err) == 0)
        return true;
    tool_fail(0, "measuring cold starts only: %s", err.msg);
    return false;
}

static int boot_all(struct ctx *ctx, struct boots *b)
{
    size_t half = b->opts->repeat ? b->opts->repeat : 1, n = 0;
    bool both = b->opts->repeat && !b->opts->cold && b->tool->config.use_template &&
                b->tool->backend->template_build;
    size_t want = both ? 2 * half : half;
    struct boot_result *results = mem_zalloc(want * sizeof(*results));
    int code = 0;

    while (n < want && !b->signo) {
        if (both && n == half && !have_template(ctx, b))
            break;
        boot_one(ctx, b, b->opts->cold || (both && n < half), &results[n]);
        if (code == 0)
            code = results[n].code;
        n++;
    }
    if (n > 0) {
        if (b->opts->repeat && !b->opts->json_file.given) {
            AUTO(sbuf_release) struct sbuf out = { 0 };

            boot_report_repeat(results, n, &out);
            tool_print(STDOUT_FILENO, out.data);
        }
        if ((put_timeline(b, &results[n - 1]) < 0 || put_json(b, results, n) < 0) && code == 0)
            code = TOOL_BOOT_FAILED;
    }
    for (size_t i = 0; i < n; i++)
        boot_result_release(&results[i]);
    free(results);
    return code;
}

static void choose_command(struct boots *b, const struct args_rest *rest)
{
    static char *const shell[] = { "/bin/sh", NULL };

    b->like.terminal = b->opts->terminal;
    if (rest->n > 0) {
        b->like.argv = rest->argv;
    } else if (!b->opts->repeat && !b->opts->bench_bridge) {
        b->like.argv = shell;
        b->like.terminal = b->like.terminal || isatty(STDIN_FILENO);
    }
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGWINCH };
    struct tool_opts *o = &t->opts;
    struct boots b = { .tool = t, .opts = o, .like = { .tool = t, .opts = o } };
    int code;

    if (o->keep && o->repeat)
        return tool_fail(TOOL_USAGE, "--keep and --repeat cannot be used together");
    o->allow_emulation = o->allow_emulation || t->config.allow_emulation;
    if (!o->memory_mib)
        o->memory_mib = t->config.memory_mib;
    if (!o->cpus)
        o->cpus = t->config.cpus;
    choose_command(&b, &t->rest);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        if (loop_on_signal(t->loop, signals[i], on_signal, &b) < 0)
            return err_set(err, ERR_UNKNOWN, "cannot watch signal %d", signals[i]);
    }
    if (image_open(t->config.image_dir, &b.image, err) < 0)
        return -1;
    b.like.image = b.image;
    code = boot_all(ctx, &b);
    image_free(b.image);
    return code;
}

const struct args_cmd boot_command = {
    .name = "boot",
    .summary = "Boot a utility VM, run CMD in it, stop the VM.",
    .synopsis = "[options] [-- CMD...]",
    .text =
        "Without CMD, lcow runs a shell. stdin, stdout and stderr are connected to CMD. lcow "
        "forwards the first SIGINT or SIGTERM to CMD; the second stops the VM. SIGUSR1 prints "
        "what lcow waits for.\n"
        "\n"
        "Exit code: CMD's own (128+N if signal N killed it); 125 if lcow failed, 126 if CMD cannot "
        "be run, 127 if the VM has no program CMD, 2 if the command line is invalid.",
    .opts = ARGS_OPTIONS(
        { "allow-emulation", 0, ARGS_FLAG, NULL, OPT(allow_emulation),
          "use software emulation if KVM is not available: slow, and not a security boundary" },
        { "kvm", 0, ARGS_FLAG, NULL, OPT(kvm),
          "fail without KVM, even if the configuration allows emulation" },
        { "memory", 'm', ARGS_NUMBER, "MIB", OPT(memory_mib), "memory of the VM in MiB",
          CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX, "MiB" },
        { "cpus", 'c', ARGS_NUMBER, "N", OPT(cpus), "virtual CPUs", 1, CONFIG_CPUS_MAX, "CPUs" },
        { "cold", 0, ARGS_FLAG, NULL, OPT(cold), "boot from the image, even if a template exists" },
        { "terminal", 't', ARGS_FLAG, NULL, OPT(terminal),
          "give CMD a terminal; the default without CMD if stdin is a terminal" },
        { "keep", 'k', ARGS_FLAG, NULL, OPT(keep),
          "keep the VM running after CMD until Ctrl-C or SIGTERM; print its pid and directory" },
        { "repeat", 0, ARGS_NUMBER, "N", OPT(repeat),
          "boot N times cold, then N times from a template, which is built if it is missing; "
          "print the time of each stage per boot, and min, median, max. With --cold, only cold "
          "boots. Without CMD, nothing is run",
          1, REPEAT_MAX, "boots" },
        { "timeline", 0, ARGS_OPTIONAL, "FILE", OPT(timeline),
          "report where the time went: as text on stderr after the run, or in FILE.svg or FILE.txt "
          "(also: --timeline FILE.svg)",
          .suffixes = (const char *const[]){ ".svg", ".txt", NULL } },
        { "json", 0, ARGS_OPTIONAL, "FILE", OPT(json_file),
          "report the result as JSON in one line: the last line of stdout, after CMD's output, or "
          "in FILE. With --repeat, an array" },
        { "bench-bridge", 0, ARGS_NUMBER, "N", OPT(bench_bridge), "time N calls over the bridge", 1,
          1000000, "calls", .hidden = true }),
    .failed = TOOL_BOOT_FAILED,
    .takes_command = true,
    .examples = ARGS_EXAMPLES(
        { "lcow boot --allow-emulation -- uname -a", "run one command in a VM" },
        { "lcow boot", "run a shell in a VM; the VM stops when the shell exits" },
        { "tar c . | lcow boot -- sh -c 'tar t | wc -l'", "pass stdin and stdout through" },
        { "lcow boot --timeline boot.svg -- true", "draw where the boot's time went" },
        { "lcow boot --repeat 10 --json=boots.json", "write boot times for a program" }),
    .run = run,
};
