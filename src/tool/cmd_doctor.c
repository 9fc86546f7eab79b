/* cmd_doctor.c - `lcow doctor`: runs the checks and prints their results; parsers for the checks.
 */
#include "tool/cmd_doctor.h"
#include "tool/lib/term.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const status_names[] = { "ok", "warning", "failed" };
static const char *const colours[] = { "\033[32m", "\033[33m", "\033[31m" };

enum doctor_status doctor_say(struct doctor *d, enum doctor_status status, const char *fix,
                              const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    free(d->now.text);
    d->now = (struct doctor_finding){ status, str_vformat(fmt, ap), fix };
    va_end(ap);
    return status;
}

void doctor_release(struct doctor *d)
{
    free(d->now.text);
    free(d->qemu);
}

char *doctor_nearest(const char *path)
{
    AUTO_FREE char *p = str_dup(path);

    while (access(p, F_OK) < 0) {
        char *slash = strrchr(p, '/');

        if (errno != ENOENT || !slash)
            return NULL;
        slash[slash == p] = '\0'; /* the root stays */
    }
    return TAKE_PTR(p);
}

static void show(const struct doctor_check *check, const struct doctor_finding *f, bool colour)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    sbuf_addf(&out, "%s%-7s%s  %-12s ", colour ? colours[f->status] : "", status_names[f->status],
              colour ? "\033[0m" : "", check->name);
    args_wrap(&out, f->text, 22, 22);
    sbuf_addc(&out, '\n');
    if (f->fix) {
        AUTO_FREE char *fix = str_format("fix: %s", f->fix);

        sbuf_addf(&out, "%22s", "");
        args_wrap(&out, fix, 27, 22);
        sbuf_addc(&out, '\n');
    }
    tool_print(STDOUT_FILENO, out.data);
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    const struct doctor_check *const tables[] = { doctor_vm_checks, doctor_host_checks };
    const char *no_color = getenv("NO_COLOR");
    bool colour = term_is(STDOUT_FILENO) && !(no_color && *no_color);
    struct doctor d = { .tool = t, .retest = t->opts.retest };
    const struct doctor_finding *f = &d.now;
    json_t *checks = json_array();
    int count[3] = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        for (const struct doctor_check *c = tables[i]; c->name; c++) {
            count[c->run(ctx, &d)]++;
            if (!t->opts.json)
                show(c, f, colour);
            json_array_append_new(checks,
                                  json_pack("{ss ss so so}", "name", c->name, "status",
                                            status_names[f->status], "detail", doc_string(f->text),
                                            "fix", doc_string(f->fix)));
        }
    }
    doctor_release(&d);
    if (!t->opts.json)
        sbuf_addf(&t->out, "\n%d ok, %d warnings, %d failed\n", count[DOCTOR_OK],
                  count[DOCTOR_WARNING], count[DOCTOR_FAILED]);
    AUTO(json_decref)
    json_t *all = json_pack("{so si si si}", "checks", checks, "ok", count[DOCTOR_OK], "warnings",
                            count[DOCTOR_WARNING], "failed", count[DOCTOR_FAILED]);
    if (t->opts.json)
        t->json = TAKE_PTR(all);
    return count[DOCTOR_FAILED] > 0 ? TOOL_FAILED : TOOL_OK;
}

/* ---- parsers for the checks */

bool doctor_parse_version(const char *text, struct doctor_version *ret)
{
    for (const char *p = text; *p; p++) {
        unsigned major, minor;

        char before = p > text ? p[-1] : ' ';
        bool letter_v = before == 'v' && (p == text + 1 || isspace((unsigned char)p[-2]));

        if (!isdigit((unsigned char)*p) ||
            ((isalnum((unsigned char)before) || before == '.') && !letter_v))
            continue;
        if (sscanf(p, "%4u.%4u", &major, &minor) == 2) {
            *ret = (struct doctor_version){ major, minor };
            return true;
        }
    }
    return false;
}

bool doctor_has_device(const char *help, const char *device)
{
    AUTO_FREE char *wanted = str_format("name \"%s\"", device);

    return strstr(help, wanted) != NULL;
}

bool doctor_has_word(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = text; (p = strstr(p, word)); p += len) {
        bool starts = p == text || isspace((unsigned char)p[-1]);
        bool ends = !p[len] || isspace((unsigned char)p[len]);

        if (starts && ends)
            return true;
    }
    return false;
}

bool doctor_parse_available(const char *meminfo, uint64_t *ret_mib)
{
    const char *p = strstr(meminfo, "MemAvailable:");
    unsigned long long kib;

    if (!p || sscanf(p, "MemAvailable: %llu kB", &kib) != 1)
        return false;
    *ret_mib = kib / 1024;
    return true;
}

bool doctor_cgroup_v1_has(const char *cgroups, const char *controller)
{
    for (const char *line = cgroups; *line;) {
        size_t n = strcspn(line, "\n");
        AUTO_FREE char *copy = str_ndup(line, n);
        char name[32];
        int hierarchy, count, enabled;

        if (sscanf(copy, "%31s %d %d %d", name, &hierarchy, &count, &enabled) == 4 &&
            str_eq(name, controller))
            return enabled == 1 && hierarchy > 0;
        line += n + (line[n] == '\n');
    }
    return false;
}

const struct args_cmd doctor_command = {
    .name = "doctor",
    .summary = "Check this machine for what VMs need, and print fixes.",
    .text = "Each line is ok, warning or failed. A fix follows where one is needed.",
    .exits = "1 if a check failed (not for warnings)",
    .opts = ARGS_OPTIONS(OPT_JSON("print one JSON object on stdout instead"),
                         { "retest", 0, ARGS_FLAG, NULL, OPT(retest),
                           "forget the result of KVM's last test, and boot a VM with KVM now" }),
    .examples = ARGS_EXAMPLES({ "lcow doctor", "run all checks" },
                              { "lcow doctor --json", "print the results for a program" },
                              { "lcow doctor --retest", "test KVM again after it failed" }),
    .run = run,
};
