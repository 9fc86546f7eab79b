/* `lcow config containerd`: the stanza that the containerd found here needs, such that it can be
 * appended to the file that is there. The names of plugins and the version of the file changed with
 * containerd 2.0, which still reads a file of the older version, with the older names. */
#include "base/clock.h"
#include "base/fd.h"
#include "host/config/annotations.h"
#include "tool/cmd_config.h"
#include "tool/lib/capture.h"
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_BYTES 64 /* of a runtime */
#define SHIM_NAME "containerd-shim-lcow-v2"
#define CONTAINERD_CONFIG "/etc/containerd/config.toml"
#define CONTAINERD_CONFIG_MAX (1024 * 1024)
#define VERSION_LIMIT (10 * NS_PER_S)
#define OLD_PLUGIN "io.containerd.grpc.v1.cri"    /* in a file of version 2 */
#define NEW_PLUGIN "io.containerd.cri.v1.runtime" /* of version 3 */

static bool at_least(struct doctor_version v, unsigned major, unsigned minor)
{
    return v.major > major || (v.major == major && v.minor >= minor);
}

static void annotation_lines(const struct stanza *s, const char *key, struct sbuf *out)
{
    sbuf_addf(out, "  %s = [", key);
    for (size_t i = 0; i < s->annotations.n; i++)
        sbuf_addf(out, "%s\n    \"%s\"", i > 0 ? "," : "", s->annotations.v[i]);
    sbuf_adds(out, s->annotations.n > 0 ? "\n  ]\n" : "]\n");
}

static void runtime_lines(const struct stanza *s, struct sbuf *out)
{
    sbuf_adds(out, "  runtime_type = \"" LCOW_TYPE "\"\n");
    if (s->shim_path)
        sbuf_addf(out, "  runtime_path = \"%s\"\n", s->shim_path);
    sbuf_addf(
        out,
        "  # Annotations of pods and containers that reach the runtime: those that restrict,\n"
        "  # and those that allow_annotations and allow_devices in %s allow.\n",
        s->config_path);
    annotation_lines(s, "pod_annotations", out);
    annotation_lines(s, "container_annotations", out);
    sbuf_adds(out, "  # The host's device nodes mean nothing in a VM.\n"
                   "  privileged_without_host_devices = true\n");
}

static void options_lines(const struct stanza *s, const char *plugin, struct sbuf *out)
{
    const char *off = s->config_exists ? "" : "# ";

    if (!s->config_exists)
        sbuf_addf(out, "  # Once %s exists:\n", s->config_path);
    sbuf_addf(out,
              "  %s[plugins.\"%s\".containerd.runtimes.lcow.options]\n"
              "  %s  ConfigPath = \"%s\"\n",
              off, plugin, off, s->config_path);
}

static void version_line(const struct stanza *s, unsigned version, struct sbuf *out)
{
    if (!s->has_file)
        sbuf_addf(out, "version = %u\n", version);
    else if (s->file_version == version)
        sbuf_addf(out, "# That file says version = %u already.\n", version);
    else
        sbuf_addf(out, "# FIRST: that file must begin with this line: version = %u\n", version);
}

static void print_old(const struct stanza *s, struct sbuf *out)
{
    bool is_1 = !at_least(s->containerd, 2, 0);

    version_line(s, 2, out);
    if (is_1 && !s->has_runc)
        sbuf_adds(out, "\n"
                       "# containerd 1.x has no runc any more as soon as another runtime is named, "
                       "and without\n"
                       "# its default runtime no CRI. One is enough.\n"
                       "[plugins.\"" OLD_PLUGIN "\".containerd.runtimes.runc]\n"
                       "  runtime_type = \"io.containerd.runc.v2\"\n");
    sbuf_adds(out, "\n[plugins.\"" OLD_PLUGIN "\".containerd.runtimes.lcow]\n");
    runtime_lines(s, out);
    if (!is_1)
        sbuf_adds(out, "  sandboxer = \"podsandbox\"\n");
    else if (at_least(s->containerd, 1, 7))
        sbuf_adds(out,
                  "  # Pods as a pause container and its companions. \"shim\" is a trial in 1.7.\n"
                  "  sandbox_mode = \"podsandbox\"\n");
    options_lines(s, OLD_PLUGIN, out);
}

static void print_new(const struct stanza *s, struct sbuf *out)
{
    bool options_with_shim = at_least(s->containerd, 2, 4);

    version_line(s, 3, out);
    sbuf_adds(out, "\n[plugins.\"" NEW_PLUGIN "\".containerd.runtimes.lcow]\n");
    runtime_lines(s, out);
    sbuf_addf(out,
              "  # \"podsandbox\": a pod is a pause container and its companions.\n"
              "  # \"shim\" (2.1 and later): containerd asks the runtime for the pod itself%s\n"
              "  sandboxer = \"podsandbox\"\n",
              options_with_shim
                  ? "."
                  : ".\n"
                    "  # It works only without the options table below; give the file instead by\n"
                    "  #   [plugins.\"io.containerd.shim.v1.manager\"]\n"
                    "  #     env = [\"" CONFIG_ENV "=…\"]");
    options_lines(s, NEW_PLUGIN, out);
}

static void print_stanza(const struct stanza *s, struct sbuf *out)
{
    sbuf_addf(out, "\n# For containerd %u.%u: " CONTAINERD_CONFIG " (lcow config containerd)\n",
              s->containerd.major, s->containerd.minor);
    if (at_least(s->containerd, 2, 0) && s->file_version != 2)
        print_new(s, out);
    else
        print_old(s, out);
}

/* Appended twice, the same table would be an error, and containerd would not start. */
void stanza_print(const struct stanza *s, struct sbuf *out)
{
    AUTO(sbuf_release) struct sbuf stanza = { 0 };

    if (!s->has_lcow) {
        print_stanza(s, out);
        return;
    }
    print_stanza(s, &stanza);
    sbuf_adds(out, "# " CONTAINERD_CONFIG
                   " has a runtime lcow already; there is nothing to append. It would be:\n");
    for (const char *line = stanza.data; *line;) {
        size_t n = strcspn(line, "\n");

        sbuf_addf(out, "#%s%.*s\n", n > 0 ? " " : "", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* What follows key in a line, up to a quote or bracket; "" if it is not there. */
static void read_name(const char *line, const char *key, char ret[NAME_BYTES])
{
    const char *at = strstr(line, key);

    at = at ? at + strlen(key) + strspn(at + strlen(key), " =\"'") : "";
    (void)snprintf(ret, NAME_BYTES, "%.*s", (int)strcspn(at, "\"']"), at);
}

void stanza_read(const char *toml, struct stanza *s)
{
    char table[NAME_BYTES] = "", ours[NAME_BYTES] = "", preset[NAME_BYTES] = "";
    bool in_table = false;

    s->has_file = false;
    for (const char *line = toml; *line;) {
        size_t n = strcspn(line, "\n");
        AUTO_FREE char *copy = str_ndup(line, n);
        const char *word = copy + strspn(copy, " \t");

        copy[strcspn(copy, "#\r")] = '\0';
        in_table = in_table || *word == '[';
        s->has_file = s->has_file || *word;
        if (str_starts(word, "default_runtime_name"))
            read_name(word, "default_runtime_name", preset);
        if (strstr(word, "runtime_type") && strstr(word, LCOW_TYPE)) {
            s->has_type = true;
            s->is_default = s->is_default || (table[0] && str_eq(table, preset));
            memcpy(ours, table, sizeof(ours));
        }
        if (*word == '[') {
            read_name(word, ".runtimes.", table);
            s->has_runc = s->has_runc || strstr(word, ".runtimes.runc]");
            s->has_lcow = s->has_lcow || strstr(word, ".runtimes.lcow]");
        }
        if (!in_table)
            (void)sscanf(word, "version = %u", &s->file_version); /* else it stays */
        line += n + (line[n] == '\n');
    }
    s->is_default = s->is_default || (ours[0] && str_eq(ours, preset)); /* said behind it */
}

/* NULL: in a directory where containerd finds it by its name. Caller frees. */
static char *shim_elsewhere(void)
{
    static const char *const usual[] = { "/usr/local/sbin", "/usr/local/bin", "/usr/sbin",
                                         "/usr/bin" };
    AUTO_FREE char *exe = realpath("/proc/self/exe", NULL);

    for (size_t i = 0; i < ARRAY_LEN(usual); i++) {
        AUTO_FREE char *path = str_format("%s/" SHIM_NAME, usual[i]);

        if (access(path, X_OK) == 0)
            return NULL;
    }
    if (!exe)
        return NULL;
    AUTO_FREE char *beside = str_format("%s/" SHIM_NAME, dirname(exe));

    return access(beside, X_OK) == 0 ? TAKE_PTR(beside) : NULL;
}

static int ask(struct ctx *ctx, const char *program, struct doctor_version *ret)
{
    struct capture c = { .argv = (const char *const[]){ program, "--version", NULL },
                         .limit_ns = VERSION_LIMIT };
    AUTO_FREE char *text = NULL;
    struct err err = ERR_INIT;
    int status;

    if (capture_run(ctx, &c, &text, &status, &err) < 0)
        return tool_fail(TOOL_FAILED,
                         "%s: install containerd (Debian: apt install containerd), name it with "
                         "--containerd PATH, or say --version X.Y",
                         err.msg);
    if (status != 0 || !doctor_parse_version(text, ret))
        return tool_fail(TOOL_FAILED, "%s --version tells no version: %.80s", program, text);
    return TOOL_OK;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE char *shim = NULL, *toml = NULL;
    const char *config = getenv(CONFIG_ENV), *version = t->opts.containerd_version;
    const char *program = t->opts.containerd;
    struct stanza s = { 0 };

    if (version && program)
        return tool_fail(TOOL_USAGE, "--containerd and --version exclude each other");
    if (version && !doctor_parse_version(version, &s.containerd))
        return tool_fail(TOOL_USAGE, "--version %s: X.Y is needed, for example 2.1", version);
    if (!version && ask(ctx, program ? program : "containerd", &s.containerd) != 0)
        return TOOL_FAILED;
    if (!at_least(s.containerd, 1, 6))
        return err_set(err, ERR_INVALID,
                       "containerd %u.%u is too old: 1.6 is the oldest that works",
                       s.containerd.major, s.containerd.minor);
    toml = version ? NULL : file_text(CONTAINERD_CONFIG_MAX, CONTAINERD_CONFIG);
    if (toml)
        stanza_read(toml, &s);
    shim = shim_elsewhere();
    s.shim_path = shim;
    s.config_path = t->opts.config ? t->opts.config : config && *config ? config : CONFIG_PATH;
    s.config_exists = access(s.config_path, F_OK) == 0;
    annotations_taken(&t->config, &s.annotations);
    stanza_print(&s, &t->out);
    strv_release(&s.annotations);
    return TOOL_OK;
}

const struct args_cmd config_containerd_command = {
    .name = "config containerd",
    .summary = "Print what containerd's configuration needs, for the containerd found.",
    .text = "The stanza is to be appended to " CONTAINERD_CONFIG
            ", and fits the file that is there; then containerd is restarted. Its lists of "
            "annotations have the names that the configuration of lcow allows: print it again "
            "after a change of allow_annotations or allow_devices.\n"
            "\n"
            "Exit code: 0; 1 if no containerd was found or it is older than 1.6; 2 if this command "
            "line or the configuration is wrong.",
    .opts = ARGS_OPTIONS({ "containerd", 0, ARGS_STR, "PATH", OPT(containerd),
                           "ask this program for its version instead of the one in PATH" },
                         { "version", 0, ARGS_STR, "X.Y", OPT(containerd_version),
                           "ask nobody: print it for this version" }),
    .examples = ARGS_EXAMPLES(
        { "lcow config containerd >>" CONTAINERD_CONFIG, "for the containerd of this machine" },
        { "lcow config containerd --version 1.7", "for another one" }),
    .run = run,
};
