/* cmd_boot_report.c - reports after a boot: failure, JSON, statistics, timeline. */
#include "base/clock.h"
#include "host/control/vm.h"
#include "tool/cmd_boot.h"
#include "tool/lib/timeline_view.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double ms_of(const struct boot_result *r, uint64_t at)
{
    return at <= r->origin ? 0 : (double)((at - r->origin) / 1000) / 1e3; /* whole microseconds */
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

/* The first line of a panic explains it; the following lines are registers. */
static const char *where_it_matters(const char *text)
{
    const char *last = last_lines(text, CONSOLE_LINES - 1);
    const char *panic = strstr(text, "Kernel panic");

    while (panic && panic > text && panic[-1] != '\n')
        panic--;
    return panic && panic < last ? panic : last;
}

/* Folds long lines of the kernel. */
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
    if (r->err.code == ERR_CANCELLED || r->stage == VM_STAGE_NEGOTIATED ||
        r->stage == VM_STAGE_NONE)
        sbuf_addf(&text, "error: %s", r->err.msg);
    else
        sbuf_addf(&text, "error at stage '%s' after %s: %s", vm_stage_name(r->stage), took,
                  r->err.msg);
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

static json_t *spans_json(const struct boot_result *r)
{
    json_t *all = json_array();

    for (unsigned i = 0; i < r->timeline.n; i++) {
        const struct timeline_span *s = &r->timeline.spans[i];

        json_array_append_new(
            all, json_pack("{ss so sf so}", "track", span_track_name((enum span_track)s->track),
                           "name", doc_string(s->name), "start_ms", ms_of(r, s->start), "end_ms",
                           s->end ? json_real(ms_of(r, s->end)) : json_null()));
    }
    return all;
}

static json_t *stages_json(const struct boot_result *r)
{
    json_t *all = json_array();

    for (unsigned i = VM_STAGE_NONE + 1; i < VM_STAGE_COUNT; i++)
        if (r->stage_at[i])
            json_array_append_new(all, json_pack("{ss sf}", "name", vm_stage_name(i), "at_ms",
                                                 ms_of(r, r->stage_at[i])));
    return all;
}

static json_t *flow_json(const struct boot_flow *f)
{
    return json_pack("{sI sf}", "bytes", (json_int_t)f->bytes, "ms", (double)(f->ns / 1000) / 1e3);
}

static json_t *text_or_null(const char *text)
{
    return doc_string(text[0] ? text : NULL);
}

json_t *boot_report_json(const struct boot_result *r, const struct tool_opts *opts,
                         const struct image *image)
{
    const char *accel = r->stage == VM_STAGE_NONE ? "" : r->emulated ? "tcg" : "kvm";
    json_t *all = json_pack("{ss si so sb sb so so so si si sf so so}", "id", r->id, "exit_code",
                            r->code, "accel", text_or_null(accel), "emulated", r->emulated, "clone",
                            r->clone, "cold_why", text_or_null(r->cold_why), "qemu_version",
                            text_or_null(r->vmm_version), "kernel", doc_string(image->release),
                            "memory_mib", opts->memory_mib, "cpus", opts->cpus, "duration_ms",
                            ms_of(r, r->ended), "stages", stages_json(r), "spans", spans_json(r));

    if (r->ran) {
        json_object_set_new(all, "stdin", flow_json(&r->in));
        json_object_set_new(all, "stdout", flow_json(&r->out));
    }
    if (r->bench.calls > 0)
        json_object_set_new(all, "bridge",
                            json_pack("{si sf sf sf}", "calls", r->bench.calls, "min_us",
                                      r->bench.min_us, "median_us", r->bench.median_us, "p99_us",
                                      r->bench.p99_us));
    if (r->err.code != ERR_NONE)
        json_object_set_new(all, "error",
                            json_pack("{ss so so so}", "stage", vm_stage_name(r->stage), "message",
                                      doc_string(r->err.msg), "next", doc_string(r->next),
                                      "console", doc_string(r->console)));
    return all;
}

/* ------------------------------------------------------------------ --repeat */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
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

/* Time at which a stage (VM_STAGE_COUNT: the end) was reached; < 0: not reached. */
static double statistic(double (*pick)(const double *sorted, size_t n), unsigned stage,
                        const struct boot_result *results, size_t n)
{
    AUTO_FREE double *values = mem_alloc((n + 1) * sizeof(*values));
    size_t have = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t at = stage == VM_STAGE_COUNT ? results[i].ended : results[i].stage_at[stage];

        if (at)
            values[have++] = ms_of(&results[i], at);
    }
    qsort(values, have, sizeof(*values), by_value);
    return have > 0 ? pick(values, have) : -1;
}

static void add_row(const char *name, double (*pick)(const double *sorted, size_t n),
                    const struct boot_result *results, size_t n, struct sbuf *out)
{
    sbuf_addf(out, "%-10s", name);
    for (unsigned stage = VM_STAGE_NONE + 1; stage <= VM_STAGE_COUNT; stage++) {
        double ms = statistic(pick, stage, results, n);

        if (ms < 0)
            sbuf_addf(out, " %10s", "-");
        else
            sbuf_addf(out, " %10.1f", ms);
    }
    sbuf_addc(out, '\n');
}

static void add_table(const char *title, const struct boot_result *results, size_t n,
                      struct sbuf *out)
{
    sbuf_addf(out, "%-10s", title);
    for (unsigned st = VM_STAGE_NONE + 1; st < VM_STAGE_COUNT; st++)
        sbuf_addf(out, " %10s", vm_stage_name(st));
    sbuf_addf(out, " %10s\n", "gone");
    for (size_t i = 0; i < n; i++)
        add_row(results[i].id, pick_min, &results[i], 1, out);
    add_row("min", pick_min, results, n, out);
    add_row("median", pick_median, results, n, out);
    add_row("max", pick_max, results, n, out);
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

    double slow = statistic(pick_median, VM_STAGE_NEGOTIATED, results, cold);
    double fast = statistic(pick_median, VM_STAGE_NEGOTIATED, results + cold, n - cold);

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
