/* `lcow config containerd` prints the stanza for the installed containerd, in a form that can be
 * appended to the existing file. containerd 2.0 changed the names of plugins and the version of the
 * file; it still reads a file of the older version with the older names. */
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
        "  # Annotations of pods and containers that containerd passes to the runtime: those that\n"
        "  # restrict, and those that allow_annotations and allow_devices in %s allow.\n",
        s->config_path);
    annotation_lines(s, "pod_annotations", out);
    annotation_lines(s, "container_annotations", out);
    sbuf_adds(out, "  # The host's device nodes do not exist in a VM.\n"
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
        sbuf_addf(out, "# That file already has version = %u.\n", version);
    else
        sbuf_addf(out, "# FIRST: that file must begin with this line: version = %u\n", version);
}

static void print_old(const struct stanza *s, struct sbuf *out)
{
    bool is_1 = !at_least(s->containerd, 2, 0);

    version_line(s, 2, out);
    if (is_1 && !s->has_runc)
        sbuf_adds(out,
                  "\n"
                  "# If the file names a runtime, containerd 1.x no longer adds runc, and "
                  "without runc,\n"
                  "# its default runtime, the CRI plugin does not start. Keep one such table.\n"
                  "[plugins.\"" OLD_PLUGIN "\".containerd.runtimes.runc]\n"
                  "  runtime_type = \"io.containerd.runc.v2\"\n");
    sbuf_adds(out, "\n[plugins.\"" OLD_PLUGIN "\".containerd.runtimes.lcow]\n");
    runtime_lines(s, out);
    if (!is_1)
        sbuf_adds(out, "  sandboxer = \"podsandbox\"\n");
    else if (at_least(s->containerd, 1, 7))
        sbuf_adds(out, "  # A pod is a pause container and its other containers. \"shim\" is\n"
                       "  # experimental in 1.7.\n"
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
              "  # \"podsandbox\": a pod is a pause container and its other containers.\n"
              "  # \"shim\" (2.1 and later): containerd lets the runtime create the pod itself%s\n"
              "  sandboxer = \"podsandbox\"\n",
              options_with_shim
                  ? "."
                  : ".\n"
                    "  # It works only without the options table below; name the file instead by\n"
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

/* If the same table is appended twice, containerd does not start. */
void stanza_print(const struct stanza *s, struct sbuf *out)
{
    AUTO(sbuf_release) struct sbuf stanza = { 0 };

    if (!s->has_lcow) {
        print_stanza(s, out);
        return;
    }
    print_stanza(s, &stanza);
    sbuf_adds(out,
              "# " CONTAINERD_CONFIG " already has a runtime lcow; do not append this again:\n");
    for (const char *line = stanza.data; *line;) {
        size_t n = strcspn(line, "\n");

        sbuf_addf(out, "#%s%.*s\n", n > 0 ? " " : "", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* The text after key in a line, up to a quote or bracket; "" if the line has no such key. */
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
            (void)sscanf(word, "version = %u", &s->file_version); /* else unchanged */
        line += n + (line[n] == '\n');
    }
    s->is_default = s->is_default ||
                    (ours[0] && str_eq(ours, preset)); /* the default was set after the runtime */
}

/* NULL: containerd finds the shim by its name. Caller frees. */
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
                         "%s; install containerd (Debian: apt install containerd), or use "
                         "--containerd PATH or --version X.Y",
                         err.msg);
    if (status != 0 || !doctor_parse_version(text, ret))
        return tool_fail(TOOL_FAILED, "%s --version prints no version: %.80s", program, text);
    return TOOL_OK;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE char *shim = NULL, *toml = NULL;
    const char *config = getenv(CONFIG_ENV), *version = t->opts.containerd_version;
    const char *program = t->opts.containerd;
    struct stanza s = { 0 };

    if (version && program)
        return tool_fail(TOOL_USAGE, "--containerd and --version cannot be used together");
    if (version && !doctor_parse_version(version, &s.containerd))
        return tool_fail(TOOL_USAGE, "--version %s: must be X.Y, for example 2.1", version);
    if (!version && ask(ctx, program ? program : "containerd", &s.containerd) != 0)
        return TOOL_FAILED;
    if (!at_least(s.containerd, 1, 6))
        return err_set(err, ERR_INVALID, "containerd %u.%u is unsupported: must be 1.6 or later",
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
    .summary = "Print the stanza for the configuration of the installed containerd.",
    .text = "Append the stanza to " CONTAINERD_CONFIG
            " and restart containerd. The stanza fits the existing file. Its lists of annotations "
            "contain the names that lcow's configuration allows: print it again after a change of "
            "allow_annotations or allow_devices.\n"
            "\n"
            "Exit code: 0; 1 if containerd is missing or older than 1.6; 2 if the command line or "
            "the configuration is invalid.",
    .opts = ARGS_OPTIONS({ "containerd", 0, ARGS_STR, "PATH", OPT(containerd),
                           "use the version of this program instead of the one in PATH" },
                         { "version", 0, ARGS_STR, "X.Y", OPT(containerd_version),
                           "print the stanza for this version" }),
    .examples = ARGS_EXAMPLES(
        { "lcow config containerd >>" CONTAINERD_CONFIG, "for the installed containerd" },
        { "lcow config containerd --version 1.7", "for another version" }),
    .run = run,
};
