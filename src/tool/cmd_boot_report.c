/* cmd_boot_report.c - what is told after a boot: failure, JSON, statistics, timeline. */
#include "base/clock.h"
#include "base/json.h"
#include "tool/cmd_boot.h"
#include "tool/lib/timeline_view.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double ms_of(const struct boot_result *r, uint64_t at)
{
    return at <= r->origin ? 0 : (double)((at - r->origin) / 1000) / 1e3; /* whole microseconds */
}

/* The controller says the stage, too; once is enough. */
static const char *reason(const struct err *err)
{
    const char *colon = str_starts(err->msg, "boot stopped ") ? strstr(err->msg, ": ") : NULL;

    return colon ? colon + 2 : err->msg;
}

#define CONSOLE_COLUMNS 74
#define CONSOLE_LINES 12

static const char *last_lines(const char *text, unsigned n)
{
    const char *at = text + strlen(text);

    for (n++; at > text && n > 0; at--)
        n -= at[-1] == '\n' && *at;
    return n == 0 ? at + 1 : text;
}

/* A panic is told by its first line; what follows are registers. */
static const char *where_it_matters(const char *text)
{
    const char *last = last_lines(text, CONSOLE_LINES - 1);
    const char *panic = strstr(text, "Kernel panic");

    while (panic && panic > text && panic[-1] != '\n')
        panic--;
    return panic && panic < last ? panic : last;
}

/* Kernel lines are long; they go on in the next one. */
static void add_console(const char *text, struct sbuf *out)
{
    sbuf_adds(out, "last lines of the VM's console:\n");
    text = where_it_matters(text);
    for (unsigned lines = 0; *text && lines < CONSOLE_LINES; lines++) {
        size_t n = strcspn(text, "\n");

        for (size_t at = 0; at == 0 || at < n; at += CONSOLE_COLUMNS) {
            size_t piece = n - at < CONSOLE_COLUMNS ? n - at : CONSOLE_COLUMNS;

            sbuf_addf(out, "%s%.*s\n", at == 0 ? "    " : "      ", (int)piece, text + at);
        }
        text += n + (text[n] == '\n');
    }
}

void boot_report_failure(const struct boot_result *r, struct sbuf *out)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };
    char took[CLOCK_HUMAN_SIZE];

    clock_human((r->failed_at ? r->failed_at : r->ended) - r->origin, took);
    if (r->err.code == ERR_CANCELLED || r->stage == VM_STAGE_NEGOTIATED)
        sbuf_addf(&text, "error: %s", r->err.msg);
    else if (r->stage == VM_STAGE_NONE)
        sbuf_addf(&text, "error: no VM was started: %s", reason(&r->err));
    else
        sbuf_addf(&text, "error: boot failed at stage '%s' after %s: %s", vm_stage_name(r->stage),
                  took, reason(&r->err));
    sbuf_adds(out, "lcow: ");
    args_wrap(out, text.data, 2, 6);
    sbuf_addc(out, '\n');
    if (r->next) {
        sbuf_adds(out, "try: ");
        args_wrap(out, r->next, 2, 5);
        sbuf_addc(out, '\n');
    }
    if (r->console)
        add_console(r->console, out);
}

static void add_spans(const struct boot_result *r, struct jsw *w)
{
    jsw_arr(w, "spans");
    for (unsigned i = 0; i < r->timeline.n; i++) {
        const struct timeline_span *s = &r->timeline.spans[i];

        jsw_obj(w, NULL);
        jsw_str(w, "track", timeline_track_name((enum timeline_track)s->track));
        jsw_str(w, "name", s->name);
        jsw_f64(w, "start_ms", ms_of(r, s->start));
        if (s->end)
            jsw_f64(w, "end_ms", ms_of(r, s->end));
        else
            jsw_null(w, "end_ms");
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
}

static void add_flow(const char *key, const struct boot_flow *f, struct jsw *w)
{
    jsw_obj(w, key);
    jsw_u64(w, "bytes", f->bytes);
    jsw_f64(w, "ms", (double)(f->ns / 1000) / 1e3);
    jsw_end_obj(w);
}

static void add_bench(const struct boot_bench *b, struct jsw *w)
{
    jsw_obj(w, "bridge");
    jsw_u64(w, "calls", b->calls);
    jsw_f64(w, "min_us", b->min_us);
    jsw_f64(w, "median_us", b->median_us);
    jsw_f64(w, "p99_us", b->p99_us);
    jsw_end_obj(w);
}

static void add_error(const struct boot_result *r, struct jsw *w)
{
    jsw_obj(w, "error");
    jsw_str(w, "stage", vm_stage_name(r->stage));
    jsw_str(w, "message", r->err.msg);
    jsw_str(w, "next", r->next);
    jsw_str(w, "console", r->console);
    jsw_end_obj(w);
}

void boot_report_json(const struct boot_result *r, const struct boot_opts *opts,
                      const struct image *image, struct jsw *w)
{
    jsw_obj(w, NULL);
    jsw_str(w, "id", r->id);
    jsw_i64(w, "exit_code", r->code);
    jsw_str(w, "accel", r->stage == VM_STAGE_NONE ? NULL : r->emulated ? "tcg" : "kvm");
    jsw_bool(w, "emulated", r->emulated);
    jsw_bool(w, "clone", r->clone);
    jsw_str(w, "cold_why", r->cold_why[0] ? r->cold_why : NULL);
    jsw_str(w, "qemu_version", r->vmm_version[0] ? r->vmm_version : NULL);
    jsw_str(w, "kernel", image->release);
    jsw_u64(w, "memory_mib", opts->memory_mib);
    jsw_u64(w, "cpus", opts->cpus);
    jsw_f64(w, "duration_ms", ms_of(r, r->ended));
    jsw_arr(w, "stages");
    for (unsigned i = VM_STAGE_NONE + 1; i < VM_STAGE_COUNT; i++) {
        if (!r->stage_at[i])
            continue;
        jsw_obj(w, NULL);
        jsw_str(w, "name", vm_stage_name(i));
        jsw_f64(w, "at_ms", ms_of(r, r->stage_at[i]));
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
    add_spans(r, w);
    if (r->ran) {
        add_flow("stdin", &r->in, w);
        add_flow("stdout", &r->out, w);
    }
    if (r->bench.calls > 0)
        add_bench(&r->bench, w);
    if (r->err.code != ERR_NONE)
        add_error(r, w);
    jsw_end_obj(w);
}

/* ------------------------------------------------------------------ --repeat */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void add_statistic(const char *name, double (*pick)(const double *sorted, size_t n),
                          const struct boot_result *results, size_t n, struct sbuf *out)
{
    AUTO_FREE double *values = mem_alloc((n + 1) * sizeof(*values));

    sbuf_addf(out, "%-10s", name);
    for (unsigned st = VM_STAGE_NONE + 1; st <= VM_STAGE_COUNT; st++) {
        size_t have = 0;

        for (size_t i = 0; i < n; i++) {
            uint64_t at = st == VM_STAGE_COUNT ? results[i].ended : results[i].stage_at[st];

            if (at)
                values[have++] = ms_of(&results[i], at);
        }
        qsort(values, have, sizeof(*values), by_value);
        if (have > 0)
            sbuf_addf(out, " %10.1f", pick(values, have));
        else
            sbuf_addf(out, " %10s", "-");
    }
    sbuf_addc(out, '\n');
}

static double pick_min(const double *v, size_t n)
{
    return v[0];
}

static double pick_median(const double *v, size_t n)
{
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double pick_max(const double *v, size_t n)
{
    return v[n - 1];
}

static void add_table(const char *title, const struct boot_result *results, size_t n,
                      struct sbuf *out)
{
    sbuf_addf(out, "%-10s", title);
    for (unsigned st = VM_STAGE_NONE + 1; st < VM_STAGE_COUNT; st++)
        sbuf_addf(out, " %10s", vm_stage_name(st));
    sbuf_addf(out, " %10s\n", "gone");
    for (size_t i = 0; i < n; i++)
        add_statistic(results[i].id, pick_min, &results[i], 1, out);
    add_statistic("min", pick_min, results, n, out);
    add_statistic("median", pick_median, results, n, out);
    add_statistic("max", pick_max, results, n, out);
}

static double median_ready(const struct boot_result *results, size_t n)
{
    AUTO_FREE double *values = mem_alloc((n + 1) * sizeof(*values));
    size_t have = 0;

    for (size_t i = 0; i < n; i++)
        if (results[i].stage_at[VM_STAGE_NEGOTIATED])
            values[have++] = ms_of(&results[i], results[i].stage_at[VM_STAGE_NEGOTIATED]);
    qsort(values, have, sizeof(*values), by_value);
    return have > 0 ? pick_median(values, have) : 0;
}

void boot_report_repeat(const struct boot_result *results, size_t n, struct sbuf *out)
{
    size_t cold = 0;

    while (cold < n && !results[cold].clone)
        cold++;
    if (cold > 0)
        add_table("cold, ms", results, cold, out);
    if (cold == n)
        return;
    add_table("clone, ms", results + cold, n - cold, out);

    double slow = median_ready(results, cold), fast = median_ready(results + cold, n - cold);

    if (slow > 0 && fast > 0)
        sbuf_addf(out, "a clone is ready %.1f times sooner: %.0f ms against %.0f ms (medians)\n",
                  slow / fast, fast, slow);
}

/* ------------------------------------------------------------------ timeline */

void boot_report_timeline(const struct boot_result *r, bool svg, struct sbuf *out)
{
    char title[80], facts[80];
    const struct view v = {
        .title = title, .facts = facts, .t = &r->timeline, .origin = r->origin
    };

    if (r->stage == VM_STAGE_NEGOTIATED)
        snprintf(title, sizeof(title), "boot %s: ready after %.0f ms", r->id,
                 ms_of(r, r->stage_at[VM_STAGE_NEGOTIATED]));
    else
        snprintf(title, sizeof(title), "boot %s: failed at stage '%s'", r->id,
                 vm_stage_name(r->stage));
    snprintf(facts, sizeof(facts), "QEMU %.30s, %s", r->vmm_version[0] ? r->vmm_version : "?",
             r->emulated ? "emulation (no KVM)" : "KVM");
    (svg ? view_svg : view_text)(&v, out);
}
