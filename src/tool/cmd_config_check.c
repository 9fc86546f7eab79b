/* `lcow config check` reports all errors of a configuration at once: in its files, and in what the
 * files name on this machine (QEMU, image, directories). */
#include "host/config/annotations.h"
#include "host/config/devices.h"
#include "tool/cmd_config.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct check {
    struct ctx *ctx;
    struct tool *tool;
    struct strv errors, warnings;
};

/* Checks QEMU and the image with the checks of `lcow doctor`. */
static void ask_doctor(struct check *k)
{
    struct doctor d = { .tool = k->tool };

    for (const struct doctor_check *c = doctor_vm_checks; c->name; c++) {
        if (!str_eq(c->name, "qemu") && !str_eq(c->name, "image"))
            continue;
        c->run(k->ctx, &d);
        if (d.now.status != DOCTOR_OK)
            strv_addf(d.now.status == DOCTOR_FAILED ? &k->errors : &k->warnings, "%s; fix: %s",
                      d.now.text, d.now.fix);
    }
    doctor_release(&d);
}

/* The path, or its nearest existing parent, must be a writable directory. */
static void check_dir(struct check *k, const char *key, const char *dir)
{
    AUTO_FREE char *p = doctor_nearest(dir);
    struct stat st;

    if (!p || stat(p, &st) < 0) {
        strv_addf(&k->errors, "%s = %s: %s", key, dir, strerror(errno));
        return;
    }
    if (!S_ISDIR(st.st_mode))
        strv_addf(&k->errors, "%s = %s: %s is not a directory", key, dir, p);
    else if (access(p, W_OK) < 0)
        strv_addf(errno == EACCES ? &k->warnings : &k->errors, "%s = %s: %s: %s", key, dir, p,
                  strerror(errno));
}

/* Warns of names in allow_annotations that have no effect. */
static void check_annotation(struct check *k, const char *word, int n)
{
    const char *near = NULL;

    if (!annotations_known(word, (size_t)n, &near))
        strv_addf(&k->warnings, "allow_annotations: %.*s is not a known annotation%s%s%s", n, word,
                  near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* Warns of invalid words in allow_devices. */
static void check_device(struct check *k, const char *word, int n)
{
    if (!devices_word_ok(word, (size_t)n))
        strv_addf(&k->warnings,
                  "allow_devices: invalid %.*s: must be a PCI address (0000:03:00.0) or a model "
                  "(8086:1572)",
                  n, word);
}

static void check_words(struct check *k, const char *text,
                        void (*check)(struct check *k, const char *word, int n))
{
    for (size_t n; *text; text += n + strspn(text + n, " \t,")) {
        n = strcspn(text, " \t,");
        if (n > 0)
            check(k, text, (int)n);
    }
}

static void check_machine(struct check *k)
{
    const struct config *c = &k->tool->config;

    ask_doctor(k);
    check_dir(k, "run_root", c->run_root);
    check_dir(k, "scratch_dir", c->scratch_dir);
    if (c->use_template)
        check_dir(k, "template_dir", c->template_dir);
}

/* file NULL: the configuration in effect. */
static void check_one(struct check *k, const char *file)
{
    AUTO(config_report_release) struct config_report report = { 0 };
    struct config *c = &k->tool->config;
    struct err err = ERR_INIT;
    int r;

    config_release(c);
    config_init(c);
    r = file ? config_read_file(c, file, &report, &err)
             : config_read(c, k->tool->opts.config, &report, &err);
    if (r < 0)
        strv_add(&k->errors, err.msg);
    config_check(c, &report);
    for (size_t i = 0; i < report.errors.n; i++)
        strv_add(&k->errors, report.errors.v[i]);
    check_words(k, c->allow_annotations, check_annotation);
    check_words(k, c->allow_devices, check_device);
    if (!k->tool->opts.syntax)
        check_machine(k);
}

static json_t *list(const struct strv *l)
{
    json_t *all = json_array();

    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(all, doc_string(l->v[i]));
    return all;
}

static void add_lines(struct sbuf *out, const char *what, const struct strv *l)
{
    for (size_t i = 0; i < l->n; i++) {
        size_t at = out->len;

        sbuf_addf(out, "%s: ", what);
        args_wrap(out, l->v[i], 2, out->len - at);
        sbuf_addc(out, '\n');
    }
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct check k = { .ctx = ctx, .tool = t };
    int code;

    if (t->rest.n == 0)
        check_one(&k, NULL);
    for (int i = 0; i < t->rest.n; i++)
        check_one(&k, t->rest.argv[i]);
    if (t->opts.json) {
        t->json = json_pack("{so so}", "errors", list(&k.errors), "warnings", list(&k.warnings));
    } else {
        add_lines(&t->out, "error", &k.errors);
        add_lines(&t->out, "warning", &k.warnings);
        sbuf_addf(&t->out, "%zu error%s, %zu warning%s\n", k.errors.n, k.errors.n == 1 ? "" : "s",
                  k.warnings.n, k.warnings.n == 1 ? "" : "s");
    }
    code = k.errors.n > 0 ? TOOL_FAILED : TOOL_OK;
    strv_release(&k.errors);
    strv_release(&k.warnings);
    return code;
}

const struct args_cmd config_check_command = {
    .name = "config check",
    .summary = "Report all errors of the configuration.",
    .synopsis = "[options] [FILE…]",
    .text = "Without FILE, lcow checks the configuration in effect, including drop-ins. A FILE is "
            "checked alone, with defaults for missing keys. Errors name file, line, key, value and "
            "what is allowed. Then lcow checks QEMU, the guest image and the directories on this "
            "machine.\n"
            "\n"
            "Exit code: 0, also with warnings; 1 with errors; 2 if the command line is invalid.",
    .opts = ARGS_OPTIONS({ "syntax", 0, ARGS_FLAG, NULL, OPT(syntax),
                           "check only the files, not what they name on this machine" },
                         OPT_JSON("print one JSON object on stdout instead")),
    .takes_words = true,
    .examples =
        ARGS_EXAMPLES({ "lcow config check", "check the configuration in effect" },
                      { "lcow config check new.conf", "check a file before installing it" }),
    .bare = true,
    .run = run,
};
