/* cmd_timeline.c - `lcow timeline`: where the time of a sandbox's start went, as its shim stamped
 * it: a picture, a text, a trace for a viewer, or two starts side by side. */
#include "base/clock.h"
#include "base/ctx.h"
#include "tool/cmd_look.h"
#include "tool/lib/shims.h"
#include "tool/lib/timeline_view.h"
#include "tool/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct timeline_opts {
    const char *format;
    bool compare, json;
};

#define AT(f) offsetof(struct timeline_opts, f)
static const struct args_opt opts_table[] = {
    { "output", 'o', ARGS_STR, "FORMAT", AT(format),
      "txt (default), svg, or json: trace events, as Perfetto and chrome://tracing read them" },
    { "compare", 0, ARGS_FLAG, NULL, AT(compare),
      "two IDs: each step of both, and the difference" },
    { "json", 0, ARGS_FLAG, NULL, AT(json), "the same as -o json" },
};
static const struct args_example examples[] = {
    { "lcow timeline 4f2a9", "where did the time go?" },
    { "lcow timeline -o svg 4f2a9 >start.svg", "the same as a picture" },
    { "lcow timeline --compare 4f2a9 77b01", "why was the second one slower?" },
};
static const struct args_cmd cmd = {
    .name = "timeline",
    .summary = "Show where the time of a sandbox's start went.",
    .synopsis = "[options] ID [ID]",
    .text =
        "Host, QEMU, guest kernel and agent on one axis. The shim stamps always; nothing has to "
        "be turned on.\n"
        "\n"
        "Exit code: 0; 1 if it is not there or does not answer; 2 if this command line is "
        "wrong.",
    .opts = opts_table,
    .n_opts = ARRAY_LEN(opts_table),
    .takes_words = true,
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

/* ---- out of the shim's document */

#define STAGES_MAX 16

struct start {
    char title[96], facts[160];
    struct timeline t; /* without the stages */
    struct view_stage stages[STAGES_MAX];
    char names[STAGES_MAX][TIMELINE_NAME];
    size_t n_stages;
};

static const char *const stage_names[] = { "spawned", "kernel", "init", "agent", "negotiated" };

static bool is_stage(const char *track, const char *name, uint64_t start, uint64_t end)
{
    if (!str_eq(track, timeline_track_name(TRACK_HOST)) || start != end)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(stage_names); i++)
        if (str_eq(name, stage_names[i]))
            return true;
    return false;
}

static void add_span(struct start *s, const json_t *span)
{
    struct err ignored = ERR_INIT;
    const char *name = "", *track = "";
    uint64_t start = 0, end = 0;

    if (js_str(span, "name", &name, &ignored) < 0 || js_str(span, "track", &track, &ignored) < 0 ||
        js_u64(span, "start_ns", &start, &ignored) < 0 ||
        js_u64(span, "end_ns", &end, &ignored) < 0)
        return;
    if (is_stage(track, name, start, end) && s->n_stages < STAGES_MAX) {
        char *own = s->names[s->n_stages];

        snprintf(own, TIMELINE_NAME, "%s", name);
        /* 0 would be "never" */
        s->stages[s->n_stages++] = (struct view_stage){ own, start + 1 };
        return;
    }
    for (unsigned i = 0; i < TRACK_COUNT; i++)
        if (str_eq(track, timeline_track_name(i)))
            timeline_add(&s->t, i, name, start + 1, end ? end + 1 : 0);
}

static int read_start(const struct shim *shim, struct start *ret, struct err *err)
{
    const json_t *vm = shim->doc ? json_object_get(shim->doc, "vm") : NULL;
    const json_t *spans = json_object_get(vm, "boot");
    const char *version = json_string_value(json_object_get(vm, "vmm_version"));

    if (!shim->doc)
        return err_set(err, ERR_UNAVAILABLE, "%s/%s: %s", shim->ns, shim->id, shim->why.msg);
    if (json_array_size(spans) == 0)
        return err_set(err, ERR_STATE, "%s/%s has no VM, so there is nothing to show", shim->ns,
                       shim->id);
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < json_array_size(spans); i++)
        add_span(ret, json_array_get(spans, i));
    snprintf(ret->facts, sizeof(ret->facts), "QEMU %s, %s%s", version ? version : "?",
             json_is_true(json_object_get(vm, "emulated")) ? "emulated" : "KVM",
             json_is_true(json_object_get(vm, "clone")) ? ", a template's clone" : "");
    return 0;
}

static struct view view_of(struct start *s, const char *id)
{
    struct view v = { .title = s->title,
                      .facts = s->facts,
                      .t = &s->t,
                      .origin = 1,
                      .stages = s->stages,
                      .n_stages = s->n_stages };

    snprintf(s->title, sizeof(s->title), "start of %.24s: %.0f ms", id, view_ms(&v, view_end(&v)));
    return v;
}

/* ---- as trace events */

static void put_event(struct jsw *w, const char *name, unsigned track, uint64_t start, uint64_t end)
{
    jsw_obj(w, NULL);
    jsw_str(w, "name", name);
    jsw_str(w, "ph", end > start ? "X" : "i");
    jsw_u64(w, "pid", 1);
    jsw_u64(w, "tid", track);
    jsw_f64(w, "ts", (double)(start - 1) / 1e3);
    if (end > start)
        jsw_f64(w, "dur", (double)(end - start) / 1e3);
    else
        jsw_str(w, "s", "t");
    jsw_end_obj(w);
}

static void put_trace(const struct start *s, struct jsw *w)
{
    jsw_obj(w, NULL);
    jsw_str(w, "displayTimeUnit", "ms");
    jsw_arr(w, "traceEvents");
    for (unsigned i = 0; i < TRACK_COUNT; i++) {
        jsw_obj(w, NULL);
        jsw_str(w, "name", "thread_name");
        jsw_str(w, "ph", "M");
        jsw_u64(w, "pid", 1);
        jsw_u64(w, "tid", i);
        jsw_obj(w, "args");
        jsw_str(w, "name", timeline_track_name(i));
        jsw_end_obj(w);
        jsw_end_obj(w);
    }
    for (size_t i = 0; i < s->n_stages; i++)
        put_event(w, s->stages[i].name, TRACK_HOST, s->stages[i].at, s->stages[i].at);
    for (unsigned i = 0; i < s->t.n; i++)
        put_event(w, s->t.spans[i].name, s->t.spans[i].track, s->t.spans[i].start,
                  s->t.spans[i].end);
    jsw_end_arr(w);
    jsw_end_obj(w);
    sbuf_addc(&w->out, '\n');
}

/* ---- two side by side */

static const struct timeline_span *same_step(const struct timeline *t,
                                             const struct timeline_span *s, unsigned nth)
{
    for (unsigned i = 0; i < t->n; i++)
        if (t->spans[i].track == s->track && str_eq(t->spans[i].name, s->name) && nth-- == 0)
            return &t->spans[i];
    return NULL;
}

static unsigned how_often_before(const struct timeline *t, unsigned at)
{
    unsigned n = 0;

    for (unsigned i = 0; i < at; i++)
        n += t->spans[i].track == t->spans[at].track && str_eq(t->spans[i].name, t->spans[at].name);
    return n;
}

static double ms_of(const struct timeline_span *s)
{
    return s && s->end > s->start ? (double)(s->end - s->start) / 1e6 : 0;
}

static void put_row(struct sbuf *out, const char *track, const char *name, double a, double b)
{
    sbuf_addf(out, "%-7s %-28s %10.1f %10.1f %+10.1f\n", track, name, a, b, b - a);
}

static void put_comparison(const struct start *a, const struct start *b, struct sbuf *out)
{
    sbuf_addf(out, "%-7s %-28s %10s %10s %10s\n", "where", "step, ms", "first", "second", "more");
    for (unsigned i = 0; i < a->t.n; i++) {
        const struct timeline_span *s = &a->t.spans[i];
        const struct timeline_span *o = same_step(&b->t, s, how_often_before(&a->t, i));

        if (ms_of(s) > 0 || ms_of(o) > 0)
            put_row(out, timeline_track_name(s->track), s->name, ms_of(s), ms_of(o));
    }
    for (unsigned i = 0; i < b->t.n; i++) {
        const struct timeline_span *s = &b->t.spans[i];

        if (ms_of(s) > 0 && !same_step(&a->t, s, how_often_before(&b->t, i)))
            put_row(out, timeline_track_name(s->track), s->name, 0, ms_of(s));
    }
    for (size_t i = 0; i < a->n_stages; i++)
        for (size_t k = 0; k < b->n_stages; k++)
            if (str_eq(a->stages[i].name, b->stages[k].name))
                put_row(out, "stage", a->stages[i].name, (double)a->stages[i].at / 1e6,
                        (double)b->stages[k].at / 1e6);
}

/* ---- the command */

static void put_start(struct start *s, const char *id, const char *format, struct sbuf *out)
{
    AUTO(jsw_release) struct jsw w;
    struct view v = view_of(s, id);

    jsw_init(&w, JSW_PLAIN);
    if (str_eq(format, "json")) {
        put_trace(s, &w);
        sbuf_adds(out, w.out.data);
    } else if (str_eq(format, "svg")) {
        view_svg(&v, out);
    } else {
        view_text(&v, out);
    }
}

int tool_timeline(const struct shim *shim, const char *format, struct sbuf *out, struct err *err)
{
    AUTO_FREE struct start *s = mem_new(struct start);

    if (read_start(shim, s, err) < 0)
        return -1;
    put_start(s, shim->id, format, out);
    return 0;
}

static int compare(const struct shims *shims, char **words, struct sbuf *out, struct err *err)
{
    AUTO_FREE struct start *a = mem_new(struct start), *b = mem_new(struct start);
    const struct shim *x, *y;
    const char *container;

    if (shims_find(shims, words[0], &x, &container, err) < 0 || read_start(x, a, err) < 0 ||
        shims_find(shims, words[1], &y, &container, err) < 0 || read_start(y, b, err) < 0)
        return -1;
    put_comparison(a, b, out);
    return 0;
}

static int show(const struct shims *shims, const struct timeline_opts *o, char **words,
                struct sbuf *out, struct err *err)
{
    const struct shim *s;
    const char *container;

    if (o->compare)
        return compare(shims, words, out, err);
    if (shims_find(shims, words[0], &s, &container, err) < 0)
        return -1;
    return tool_timeline(s, o->json ? "json" : o->format, out, err);
}

static int timeline_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(shims_release) struct shims shims = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct timeline_opts o = { .format = "txt" };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n != (o.compare ? 2 : 1))
        return tool_fail(TOOL_USAGE, "timeline needs %s; see: lcow ps",
                         o.compare ? "two IDs to compare" : "one ID");
    if (!str_eq(o.format, "txt") && !str_eq(o.format, "svg") && !str_eq(o.format, "json"))
        return tool_fail(TOOL_USAGE, "-o %s: txt, svg or json is needed", o.format);
    if (shims_list(t->config.run_root, &shims, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    shims_ask(ctx, &shims);
    if (show(&shims, &o, rest.argv, &out, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

const struct tool_command timeline_command = { .cmd = &cmd, .run = timeline_run };
