#include "tool/cmd_doctor.h"
#include "base/ctx.h"
#include "base/json.h"
#include "tool/lib/term.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct doctor_opts {
    bool json, retest;
};

static const struct args_opt opts_table[] = {
    { "json", 0, ARGS_FLAG, NULL, offsetof(struct doctor_opts, json),
      "print one JSON object on stdout instead" },
    { "retest", 0, ARGS_FLAG, NULL, offsetof(struct doctor_opts, retest),
      "forget what is known of KVM since the host started, and boot a short VM with it now" },
};

static const char *const status_names[] = { "ok", "warning", "failed" };
static const char *const colours[] = { "\033[32m", "\033[33m", "\033[31m" };

void doctor_say(struct doctor *d, enum doctor_status status, const char *fix, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *text = str_vformat(fmt, ap);
    va_end(ap);
    d->now.status = status;
    d->now.text.len = d->now.fix.len = 0;
    sbuf_adds(&d->now.text, text);
    if (fix)
        sbuf_adds(&d->now.fix, fix);
}

void doctor_release(struct doctor *d)
{
    sbuf_release(&d->now.text);
    sbuf_release(&d->now.fix);
    free(d->qemu);
}

struct report {
    bool colour;
    struct jsw *w; /* NULL: for people */
    size_t count[3];
};

static void show(struct report *r, const struct doctor_check *check, const struct doctor_finding *f)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    r->count[f->status]++;
    if (r->w) {
        jsw_obj(r->w, NULL);
        jsw_str(r->w, "name", check->name);
        jsw_str(r->w, "status", status_names[f->status]);
        jsw_str(r->w, "detail", f->text.data);
        jsw_str(r->w, "fix", f->fix.len > 0 ? f->fix.data : NULL);
        jsw_end_obj(r->w);
        return;
    }
    sbuf_addf(&out, "%s%-7s%s  %-12s ", r->colour ? colours[f->status] : "",
              status_names[f->status], r->colour ? "\033[0m" : "", check->name);
    args_wrap(&out, f->text.data, 22, 22);
    sbuf_addc(&out, '\n');
    if (f->fix.len > 0) {
        sbuf_addf(&out, "%22s", "");
        AUTO_FREE char *fix = str_format("fix: %s", f->fix.data);

        args_wrap(&out, fix, 27, 22);
        sbuf_addc(&out, '\n');
    }
    tool_print(STDOUT_FILENO, out.data);
}

static void finish(struct report *r)
{
    if (!r->w) {
        tool_printf(STDOUT_FILENO, "\n%zu ok, %zu warnings, %zu failed\n", r->count[DOCTOR_OK],
                    r->count[DOCTOR_WARNING], r->count[DOCTOR_FAILED]);
        return;
    }
    jsw_end_arr(r->w);
    jsw_u64(r->w, "ok", r->count[DOCTOR_OK]);
    jsw_u64(r->w, "warnings", r->count[DOCTOR_WARNING]);
    jsw_u64(r->w, "failed", r->count[DOCTOR_FAILED]);
    jsw_end_obj(r->w);
}

static void run_checks(struct ctx *ctx, struct doctor *d, struct report *r,
                       const struct doctor_check *checks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        doctor_say(d, DOCTOR_FAILED, NULL, "the check said nothing");
        checks[i].run(ctx, d);
        show(r, &checks[i], &d->now);
    }
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    const struct doctor_opts *o = t->opts;
    struct doctor d = { .tool = t, .retest = o->retest };
    const char *no_color = getenv("NO_COLOR");
    struct report r = { .colour = term_is(STDOUT_FILENO) && !(no_color && *no_color) };

    if (o->json) {
        r.w = &t->json;
        jsw_obj(r.w, NULL);
        jsw_arr(r.w, "checks");
    }
    run_checks(ctx, &d, &r, doctor_vm_checks, doctor_n_vm_checks);
    run_checks(ctx, &d, &r, doctor_host_checks, doctor_n_host_checks);
    finish(&r);
    doctor_release(&d);
    return r.count[DOCTOR_FAILED] > 0 ? TOOL_FAILED : TOOL_OK;
}

const struct args_cmd doctor_command = {
    .name = "doctor",
    .summary = "Check what VMs need from this machine; say what fixes it.",
    .synopsis = "[options]",
    .text = "Each line is ok, warning or failed, followed by what fixes it.\n"
            "\n"
            "Exit code: 0; 1 if a check failed (warnings are fine); 2 if this command line is "
            "wrong.",
    .opts = ARGS_TABLE(opts_table),
    .opts_size = sizeof(struct doctor_opts),
    .examples = ARGS_EXAMPLES({ "lcow doctor", "look at everything" },
                              { "lcow doctor --json", "the same for a program" },
                              { "lcow doctor --retest", "KVM failed once: does it work now?" }),
    .run = run,
};
