#include "base/err.h"
#include "base/span.h"
#include "base/str.h"
#include "fixture/kept_spans.h"
#include "harness/tap.h"
#include <stdio.h>
#include <string.h>

TEST_VIRTUAL(a_step_is_a_row_of_the_timeline_from_its_begin_to_its_end)
{
    struct loop *loop = ctx->loop;
    struct ctx own = ctx_root(loop);
    struct timeline t = { 0 };
    struct err err = ERR_INIT;
    struct span step = { 0 };

    span_begin(&step, &own, &t, TRACK_VMM, "spawn", &err);
    ASSERT_EQ(t.n, 1);
    ASSERT_EQ(t.spans[0].end, 0);
    ASSERT(step.ctx == &own);
    span_end(&step);
    ASSERT(t.spans[0].end >= t.spans[0].start && t.spans[0].end > 0);
    ASSERT_EQ(t.spans[0].track, TRACK_VMM);
    ASSERT_STR(t.spans[0].name, "spawn");
    t.spans[0].end = 77;
    span_end(&step); /* the first end counts */
    ASSERT_EQ(t.spans[0].end, 77);
}

TEST(an_end_before_the_beginning_is_the_beginning)
{
    struct timeline t = { 0 };

    span_add(&t, TRACK_GUEST, "y", 50, 40);
    ASSERT_EQ(t.spans[0].end, 50);
    span_add(NULL, TRACK_GUEST, "y", 50, 40);
}

TEST_VIRTUAL(full_keeps_the_oldest_and_counts_the_rest)
{
    struct loop *loop = ctx->loop;
    struct ctx own = ctx_root(loop);
    struct timeline t = { 0 };

    for (int i = 0; i < TIMELINE_SPANS; i++)
        ASSERT_EQ(timeline_add(&t, TRACK_HOST, "x", 1, 0), i);
    span_add(&t, TRACK_HOST, "late", 2, 2);
    {
        SPAN(late, &own, &t, TRACK_HOST, "late", NULL);
    }
    ASSERT_EQ(t.n, TIMELINE_SPANS);
    ASSERT_EQ(t.lost, 2);
    ASSERT_STR(t.spans[TIMELINE_SPANS - 1].name, "x");
}

TEST(a_long_name_is_cut_between_characters)
{
    struct timeline t = { 0 };

    span_add(&t, TRACK_HOST, "abcdefghijklmnopqrstuvwxyz0123456789", 1, 1);
    ASSERT_STR(t.spans[0].name, "abcdefghijklmnopqrstuvwxyz0");
    span_add(&t, TRACK_HOST, "abcdefghijklmnopqrstuvwxy…", 1, 1);
    ASSERT_STR(t.spans[1].name, "abcdefghijklmnopqrstuvwxy");
    span_add(&t, TRACK_HOST, "abcdefghijklmnopqrstuvwx…", 1, 1);
    ASSERT_STR(t.spans[2].name, "abcdefghijklmnopqrstuvwx…");
}

TEST(tracks_have_names)
{
    ASSERT_STR(span_track_name(TRACK_HOST), "host");
    ASSERT_STR(span_track_name(TRACK_VMM), "vmm");
    ASSERT_STR(span_track_name(TRACK_KERNEL), "kernel");
    ASSERT_STR(span_track_name(TRACK_GUEST), "guest");
    ASSERT_STR(span_track_name(TRACK_COUNT), "?");
}

TEST(a_trace_parent_is_read_and_written_as_the_w3c_has_it)
{
    static const char *const wrong[] = {
        "",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
    };
    static const char later[] = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
    char text[TRACE_PARENT_SIZE];
    struct trace t;
    bool sampled;

    ASSERT(trace_parse(KEPT_PARENT, strlen(KEPT_PARENT), &t, &sampled) && sampled);
    trace_format(&t, text);
    ASSERT_STR(text, KEPT_PARENT);
    ASSERT(trace_parse(later, strlen(later), &t, &sampled) && !sampled);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        ASSERT(!trace_parse(wrong[i], strlen(wrong[i]), &t, &sampled));
}

TEST_VIRTUAL(a_request_continues_its_callers_trace_and_its_steps_are_its_children)
{
    struct loop *loop = ctx->loop;
    struct kept k = kept_with(loop);
    struct ctx own = ctx_root(loop);
    struct err err = ERR_INIT;
    struct trace from;
    struct span call;
    bool sampled;

    ASSERT(trace_parse(KEPT_PARENT, strlen(KEPT_PARENT), &from, &sampled));
    ASSERT(span_begin_request(&call, &own, &k.sink, &from, sampled, "Create"));
    {
        SPAN(step, &own, NULL, TRACK_HOST, "outer", &err);
        SPAN(inner, step.ctx, NULL, TRACK_HOST, "inner", &err);
        span_attr(inner.ctx, "netns", "/run/netns/x");
        span_attr(inner.ctx, "none", "");
        err_set(&err, ERR_STATE, "broken");
        SPAN(after, step.ctx, NULL, TRACK_HOST, "after", &err);
    }
    span_end(&call);
    ASSERT_EQ(k.n, 4);
    ASSERT_STR(k.spans[0].name, "after");
    ASSERT(!k.spans[0].err); /* the error is older than the step */
    ASSERT_STR(k.spans[1].name, "inner");
    ASSERT(k.spans[1].err == &err);
    ASSERT_EQ(k.spans[1].n_attrs, 1);
    ASSERT_STR(k.spans[2].name, "outer");
    ASSERT_STR(k.spans[3].name, "Create");
    ASSERT(kept_is_child(&k.spans[3], &from));
    ASSERT(kept_is_child(&k.spans[2], &k.spans[3].trace));
    ASSERT(kept_is_child(&k.spans[1], &k.spans[2].trace));
}

TEST_VIRTUAL(the_caller_decides_what_is_traced_and_the_share_decides_the_rest)
{
    struct loop *loop = ctx->loop;
    struct kept k = kept_with(loop);
    struct ctx own = ctx_root(loop);
    struct trace from, none = { 0 };
    struct span s;
    unsigned n = 0;
    bool sampled;

    ASSERT(trace_parse(KEPT_PARENT, strlen(KEPT_PARENT), &from, &sampled));
    ASSERT(!span_begin_request(&s, &own, &k.sink, &from, false, "x"));
    ASSERT(!own.span);
    k.sink.share = 0;
    ASSERT(span_begin_request(&s, &own, &k.sink, &from, true, "x"));
    ASSERT(!span_begin_request(&s, &own, &k.sink, &none, false, "x"));
    k.sink.ignore_parent = true;
    ASSERT(!span_begin_request(&s, &own, &k.sink, &from, true, "x"));
    k.sink.share = 0.25;
    for (int i = 0; i < 1000; i++)
        n += span_begin_request(&s, &own, &k.sink, &none, false, "x");
    ASSERT(n > 150 && n < 350);
    memset(from.trace_id, 0, sizeof(from.trace_id));
    from.trace_id[15] = 0xff; /* the smallest part of the number that decides */
    ASSERT(span_begin_request(&s, &own, &k.sink, &from, true, "x"));
    from.trace_id[8] = 0xff;
    ASSERT(!span_begin_request(&s, &own, &k.sink, &from, true, "x"));
}

TEST_VIRTUAL(spans_of_a_boot_are_children_of_what_needs_the_vm)
{
    struct loop *loop = ctx->loop;
    struct kept k = kept_with(loop);
    struct ctx own = ctx_root(loop);
    struct timeline t = { .root = { .sink = &k.sink, .span_id = { 9 } } };

    {
        SPAN(step, &own, &t, TRACK_VMM, "restore", NULL);
    }
    span_add(&t, TRACK_GUEST, "modules", 5, 6);
    ASSERT_EQ(t.n, 2);
    ASSERT_EQ(k.n, 2);
    ASSERT_EQ(k.spans[0].parent_id[0], 9);
    ASSERT_EQ(k.spans[1].parent_id[0], 9);
    ASSERT_EQ(k.spans[1].track, TRACK_GUEST);
}

/* State and the like: what they pay while nothing is traced. */
TEST_FIBER(without_a_trace_and_a_timeline_a_step_costs_next_to_nothing)
{
    struct loop *loop = ctx->loop;
    struct ctx own = ctx_root(loop);
    uint64_t began = loop_now(loop), each;

    for (int i = 0; i < 1000000; i++) {
        SPAN(step, &own, NULL, TRACK_HOST, "x", NULL);
        ASSERT(step.ctx == &own);
    }
    each = (loop_now(loop) - began) / 1000000;
    printf("# %llu ns for a step without a trace or timeline\n", (unsigned long long)each);
    ASSERT(each < 1000);
}
