/* cmd_timeline.c - `lcow timeline`: where the time of a sandbox's start went, as its shim recorded
 * it: a picture, a text, a trace for a viewer, or a comparison of two starts. */
#include "tool/lib/timeline_view.h"
#include "tool/tool.h"
#include <stdio.h>
#include <string.h>

/* ---- reading the shim's document */

struct start {
    char title[96], facts[160];
    struct timeline t;
};

static void add_span(struct timeline *t, const json_t *span)
{
    struct err ignored = ERR_INIT;
    const char *name = "", *track = "";
    uint64_t start = 0, end = 0;

    if (js_str(span, "name", &name, &ignored) < 0 || js_str(span, "track", &track, &ignored) < 0 ||
        js_u64(span, "start_ns", &start, &ignored) < 0 ||
        js_u64(span, "end_ns", &end, &ignored) < 0)
        return;
    for (unsigned i = 0; i < TRACK_COUNT; i++)
        if (str_eq(track, span_track_name(i))) /* 0 would be "never" */
            timeline_add(t, i, name, start + 1, end ? end + 1 : 0);
}

static int read_start(const struct shim *shim, struct start *ret, struct err *err)
{
    const json_t *vm = json_object_get(shim->doc, "vm"), *spans = json_object_get(vm, "boot");
    const char *version = doc_text(vm, "vmm_version");

    if (!shim->doc)
        return err_set(err, ERR_UNAVAILABLE, "%s/%s: %s", shim->ns, shim->id, shim->why.msg);
    if (json_array_size(spans) == 0)
        return err_set(err, ERR_STATE, "%s/%s has no VM, so it has no timeline", shim->ns,
                       shim->id);
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < json_array_size(spans); i++)
        add_span(&ret->t, json_array_get(spans, i));
    snprintf(ret->facts, sizeof(ret->facts), "QEMU %s, %s%s", version[0] ? version : "?",
             json_is_true(json_object_get(vm, "emulated")) ? "emulated" : "KVM",
             json_is_true(json_object_get(vm, "clone")) ? ", a clone" : "");
    return 0;
}

static struct view view_of(struct start *s, const char *id)
{
    struct view v = { .title = s->title, .facts = s->facts, .t = &s->t, .origin = 1 };

    snprintf(s->title, sizeof(s->title), "start of %.24s: %.0f ms", id, view_ms(&v, view_end(&v)));
    return v;
}

/* ---- as trace events */

/* Adds either the stages, or all other spans. */
static void add_events(json_t *events, const struct timeline *t, bool stages)
{
    for (unsigned i = 0; i < t->n; i++) {
        const struct timeline_span *s = &t->spans[i];
        bool moment = s->end <= s->start;

        if (view_is_stage(s) != stages)
            continue;
        json_t *e =
            json_pack("{so ss si si sf}", "name", doc_string(s->name), "ph", moment ? "i" : "X",
                      "pid", 1, "tid", (int)s->track, "ts", (double)(s->start - 1) / 1e3);

        json_object_set_new(e, moment ? "s" : "dur",
                            moment ? json_string("t")
                                   : json_real((double)(s->end - s->start) / 1e3));
        json_array_append_new(events, e);
    }
}

static json_t *as_trace(const struct timeline *t)
{
    json_t *events = json_array();

    for (unsigned i = 0; i < TRACK_COUNT; i++)
        json_array_append_new(events,
                              json_pack("{ss ss si si s{ss}}", "name", "thread_name", "ph", "M",
                                        "pid", 1, "tid", i, "args", "name", span_track_name(i)));
    add_events(events, t, true);
    add_events(events, t, false);
    return json_pack("{ss so}", "displayTimeUnit", "ms", "traceEvents", events);
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

static void put_comparison(const struct timeline *a, const struct timeline *b, struct sbuf *out)
{
    sbuf_addf(out, "%-7s %-28s %10s %10s %10s\n", "where", "step, ms", "first", "second", "more");
    for (unsigned i = 0; i < a->n; i++) {
        const struct timeline_span *s = &a->spans[i];
        const struct timeline_span *o = same_step(b, s, how_often_before(a, i));

        if (ms_of(s) > 0 || ms_of(o) > 0)
            put_row(out, span_track_name(s->track), s->name, ms_of(s), ms_of(o));
    }
    for (unsigned i = 0; i < b->n; i++) {
        const struct timeline_span *s = &b->spans[i];

        if (ms_of(s) > 0 && !same_step(a, s, how_often_before(b, i)))
            put_row(out, span_track_name(s->track), s->name, 0, ms_of(s));
    }
    for (unsigned i = 0; i < a->n; i++) {
        const struct timeline_span *s = &a->spans[i], *o = same_step(b, s, 0);

        if (view_is_stage(s) && o)
            put_row(out, "stage", s->name, (double)s->start / 1e6, (double)o->start / 1e6);
    }
}

/* ---- the command */

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE struct start *a = mem_new(struct start), *b = mem_new(struct start);
    const char *format = t->opts.json ? "json" : t->opts.format ? t->opts.format : "txt";
    bool compare = t->opts.compare;

    if (t->rest.n != (compare ? 2 : 1))
        return tool_fail(TOOL_USAGE, "timeline needs %s; see: lcow ps",
                         compare ? "two IDs to compare" : "one ID");
    if (!str_eq(format, "txt") && !str_eq(format, "svg") && !str_eq(format, "json"))
        return tool_fail(TOOL_USAGE, "-o %s: must be txt, svg or json", format);
    if (tool_find(ctx, t, t->rest.argv[0], err) < 0 || read_start(t->shim, a, err) < 0)
        return -1;
    if (compare) {
        if (tool_find(ctx, t, t->rest.argv[1], err) < 0 || read_start(t->shim, b, err) < 0)
            return -1;
        put_comparison(&a->t, &b->t, &t->out);
    } else if (str_eq(format, "json")) {
        t->json = as_trace(&a->t);
    } else {
        struct view v = view_of(a, t->shim->id);

        (str_eq(format, "svg") ? view_svg : view_text)(&v, &t->out);
    }
    return TOOL_OK;
}

const struct args_cmd timeline_command = {
    .name = "timeline",
    .summary = "Show where the time of a sandbox's start went.",
    .synopsis = "[options] ID [ID]",
    .text = "Shows host, QEMU, guest kernel and agent on one axis. The shim always records these "
            "times; no setting is needed.",
    .exits = "1 if the sandbox does not exist or its shim does not answer",
    .opts = ARGS_OPTIONS(
        { "output", 'o', ARGS_STR, "FORMAT", OPT(format),
          "txt (default), svg, or json: trace events for Perfetto and chrome://tracing" },
        { "compare", 0, ARGS_FLAG, NULL, OPT(compare),
          "compare two IDs: each step of both, and the difference" },
        OPT_JSON("the same as -o json")),
    .takes_words = true,
    .examples = ARGS_EXAMPLES({ "lcow timeline 4f2a9", "print the timeline" },
                              { "lcow timeline -o svg 4f2a9 >start.svg", "draw it as a picture" },
                              { "lcow timeline --compare 4f2a9 77b01", "compare two starts" }),
    .run = run,
};
