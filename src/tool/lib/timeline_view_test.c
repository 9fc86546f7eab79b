#include "base/rand.h"
#include "base/str.h"
#include "harness/tap.h"
#include "tool/lib/timeline_view.h"
#include <stdio.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define T0 (UINT64_C(7) * 1000 * MS)

static bool cross(const struct view_item *a, const struct view_item *b)
{
    return a->x < b->x + b->w && b->x < a->x + a->w && a->y < b->y + b->h && b->y < a->y + a->h;
}

static bool within(const struct view_item *in, const struct view_item *out)
{
    return in->x >= out->x && in->y >= out->y && in->x + in->w <= out->x + out->w &&
           in->y + in->h <= out->y + out->h;
}

/* Everything is in the picture; no text touches another text, or a bar it is not wholly inside. */
static void check_layout(const struct view *v)
{
    struct view_layout l;

    view_layout(v, &l);
    for (size_t i = 0; i < l.n; i++) {
        const struct view_item *a = &l.items[i];

        if (a->x < 0 || a->y < 0 || a->x + a->w > l.w || a->y + a->h > l.h)
            tap_fail(__FILE__, __LINE__, "item %zu \"%s\" leaves the picture (%.1f %.1f)", i,
                     a->text, a->x, a->y);
        for (size_t k = 0; a->kind == VIEW_TEXT && k < l.n; k++) {
            const struct view_item *b = &l.items[k];

            if (k == i || !cross(a, b))
                continue;
            if (b->kind == VIEW_TEXT)
                tap_fail(__FILE__, __LINE__, "\"%s\" covers \"%s\"", a->text, b->text);
            if ((b->kind == VIEW_BAR || b->kind == VIEW_MARK || b->kind == VIEW_SWATCH) &&
                !(b->kind == VIEW_BAR && within(a, b) && str_eq(a->css, "in")))
                tap_fail(__FILE__, __LINE__, "\"%s\" touches another bar", a->text);
        }
    }
    for (size_t i = 0; i < l.n; i++) {
        for (size_t k = i + 1; k < l.n && l.items[i].kind == VIEW_BAR; k++) {
            if (l.items[k].kind == VIEW_BAR && cross(&l.items[i], &l.items[k]))
                tap_fail(__FILE__, __LINE__, "bars %zu and %zu overlap", i, k);
        }
    }
    view_layout_release(&l);
}

static void check_text(const struct view *v)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    view_text(v, &out);
    for (const char *line = out.data; *line;) {
        size_t n = strcspn(line, "\n");

        if (n > 80)
            tap_fail(__FILE__, __LINE__, "%zu columns: %.*s", n, (int)n, line);
        for (size_t i = 0; i < n; i++)
            ASSERT(line[i] >= ' ' && line[i] < 0x7f);
        line += n + 1;
    }
}

static void add_stages(struct timeline *t)
{
    timeline_add(t, TRACK_HOST, "spawned", T0 + 31 * MS, T0 + 31 * MS);
    timeline_add(t, TRACK_HOST, "kernel", T0 + 420 * MS, T0 + 420 * MS);
    timeline_add(t, TRACK_HOST, "init", T0 + 1900 * MS, T0 + 1900 * MS);
    timeline_add(t, TRACK_HOST, "agent", T0 + 2300 * MS, T0 + 2300 * MS);
    timeline_add(t, TRACK_HOST, "negotiated", T0 + 2310 * MS, T0 + 2310 * MS);
}

static void fill_boot(struct timeline *t)
{
    timeline_add(t, TRACK_HOST, "create", T0, T0 + 12 * MS);
    timeline_add(t, TRACK_HOST, "netns and tap", T0 + MS, T0 + 9 * MS);
    timeline_add(t, TRACK_HOST, "start", T0 + 12 * MS, T0 + 2310 * MS);
    timeline_add(t, TRACK_VMM, "spawn", T0 + 14 * MS, T0 + 31 * MS);
    timeline_add(t, TRACK_VMM, "firmware", T0 + 31 * MS, T0 + 420 * MS);
    timeline_add(t, TRACK_KERNEL, "kernel", T0 + 420 * MS, T0 + 1900 * MS);
    timeline_add(t, TRACK_GUEST, "mounts", T0 + 1900 * MS, T0 + 1950 * MS);
    timeline_add(t, TRACK_GUEST, "modules", T0 + 1950 * MS, T0 + 2290 * MS);
    timeline_add(t, TRACK_GUEST, "dialled", T0 + 2300 * MS, T0 + 2300 * MS);
    timeline_add(t, TRACK_HOST, "exec", T0 + 2305 * MS, 0);
}

static struct view view_of(struct timeline *t)
{
    add_stages(t);
    return (struct view){ "boot b-12345678", "QEMU 10.0.2, emulated", t, T0 };
}

TEST(a_boot_has_no_overlapping_labels)
{
    struct timeline t = { 0 };
    struct view v = view_of(&t);

    fill_boot(&t);
    check_layout(&v);
    check_text(&v);
}

TEST(an_empty_timeline_is_drawn)
{
    struct timeline t = { 0 };
    struct view v = { "nothing", NULL, &t, T0 };

    check_layout(&v);
    check_text(&v);
}

TEST(a_full_and_crowded_timeline_has_no_overlapping_labels)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct timeline t = { 0 };
        struct view v = view_of(&t);
        struct rng r;

        rng_seed(&r, seed);
        for (int i = 0; i < TIMELINE_SPANS + 5; i++) {
            uint64_t start = T0 + rng_below(&r, seed % 2 ? 2400 * MS : 3 * MS);
            uint64_t took = rng_below(&r, 3) ? rng_below(&r, 300 * MS) : 0;
            char name[64];

            snprintf(name, sizeof(name), "%.*s", (int)rng_below(&r, 30),
                     "WWWWWWWWWWWWWWWWWWWWWWWWWWWWWW");
            if (rng_below(&r, 10) == 0)
                timeline_add(&t, (enum span_track)rng_below(&r, TRACK_COUNT), name, start, 0);
            else
                timeline_add(&t, (enum span_track)rng_below(&r, TRACK_COUNT), name, start,
                             start + took);
        }
        ASSERT_EQ(t.lost, 10); /* five, and as many as there are stages */
        check_layout(&v);
        check_text(&v);
    }
}

TEST(stages_at_one_moment_do_not_cover_each_other)
{
    struct timeline t = { 0 };
    struct view v = { "b", "f", &t, T0 };

    for (int at = 0; at < 3; at++) {
        t.n = 0;
        for (int i = 0; i < 5; i++)
            timeline_add(&t, TRACK_HOST, "negotiated", T0 + (uint64_t)at * 50 * MS,
                         T0 + (uint64_t)at * 50 * MS);
        timeline_add(&t, TRACK_HOST, "all", T0, T0 + 100 * MS);
        check_layout(&v);
    }
}

TEST(times_before_the_origin_stay_in_the_picture)
{
    struct timeline t = { 0 };
    struct view v = view_of(&t);

    timeline_add(&t, TRACK_KERNEL, "skewed", T0 - 500 * MS, T0 + 3 * MS);
    timeline_add(&t, TRACK_KERNEL, "early", T0 - 900 * MS, T0 - 900 * MS);
    check_layout(&v);
    check_text(&v);
}

TEST(names_are_escaped_and_made_printable)
{
    struct timeline t = { 0 };
    struct view v = view_of(&t);
    AUTO(sbuf_release) struct sbuf svg = { 0 };

    timeline_add(&t, TRACK_GUEST, "</text><script>&\x1b[31m", T0, T0 + MS);
    view_svg(&v, &svg);
    ASSERT(!strstr(svg.data, "<script"));
    ASSERT(!strchr(svg.data, '\x1b'));
    ASSERT_HAS(svg.data, "&lt;/text&gt;&lt;script&gt;&amp;?[31m");
    check_text(&v);
}

TEST(the_picture_has_units_lanes_legend_and_both_colour_schemes)
{
    struct timeline t = { 0 };
    struct view v = view_of(&t);
    AUTO(sbuf_release) struct sbuf svg = { 0 };
    static const char *const parts[] = { "viewBox=\"0 0 1000 ",
                                         "prefers-color-scheme:dark",
                                         ">0 ms<",
                                         ">host<",
                                         ">QEMU<",
                                         ">kernel<",
                                         ">gcs<",
                                         ">host: lcow<",
                                         ">a moment<",
                                         ">negotiated 2310 ms<",
                                         ">kernel 1480 ms<",
                                         ">dialled at 2300 ms<",
                                         "exec (not ended)" };

    fill_boot(&t);
    view_svg(&v, &svg);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        ASSERT_HAS(svg.data, parts[i]);
}

TEST(a_clone_has_no_lanes_for_what_booted_in_its_template)
{
    struct timeline t = { 0 };
    struct view v = { "clone", NULL, &t, T0 };
    AUTO(sbuf_release) struct sbuf svg = { 0 };

    timeline_add(&t, TRACK_VMM, "restore", T0, T0 + 7 * MS);
    check_layout(&v);
    view_svg(&v, &svg);
    ASSERT_HAS(svg.data, ">QEMU<");
    ASSERT(!strstr(svg.data, ">kernel<") && !strstr(svg.data, "the guest agent"));
    ASSERT(!strstr(svg.data, "a moment") && !strstr(svg.data, "a boot stage"));
}

TEST(the_text_has_start_and_duration)
{
    struct timeline t = { 0 };
    struct view v = view_of(&t);
    AUTO(sbuf_release) struct sbuf out = { 0 };

    fill_boot(&t);
    view_text(&v, &out);
    ASSERT_HAS(out.data, "\nstage  kernel                         420.0        - ");
    ASSERT_HAS(out.data, "\nkernel kernel                         420.0   1480.0 ");
    ASSERT_HAS(out.data, "\nguest  dialled                       2300.0        - ");
}
