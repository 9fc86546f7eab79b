#include "base/timeline.h"
#include "harness/tap.h"
#include <string.h>

TEST(a_span_has_a_beginning_and_an_end)
{
    struct timeline t = { 0 };
    int h = timeline_begin(&t, TRACK_VMM, "spawn", 10);

    ASSERT_EQ(t.n, 1);
    ASSERT_EQ(t.spans[h].end, 0);
    timeline_end(&t, h, 25);
    ASSERT_EQ(t.spans[h].start, 10);
    ASSERT_EQ(t.spans[h].end, 25);
    ASSERT_EQ(t.spans[h].track, TRACK_VMM);
    ASSERT_STR(t.spans[h].name, "spawn");
}

TEST(the_first_end_counts)
{
    struct timeline t = { 0 };
    int h = timeline_begin(&t, TRACK_HOST, "x", 10);

    timeline_end(&t, h, 20);
    timeline_end(&t, h, 30);
    ASSERT_EQ(t.spans[h].end, 20);
}

TEST(an_end_before_the_beginning_is_the_beginning)
{
    struct timeline t = { 0 };
    int h = timeline_begin(&t, TRACK_HOST, "x", 10);

    timeline_end(&t, h, 5);
    ASSERT_EQ(t.spans[h].end, 10);
    timeline_add(&t, TRACK_GUEST, "y", 50, 40);
    ASSERT_EQ(t.spans[1].end, 50);
}

TEST(a_mark_begins_and_ends_at_once)
{
    struct timeline t = { 0 };

    timeline_mark(&t, TRACK_KERNEL, "init", 7);
    ASSERT_EQ(t.spans[0].start, 7);
    ASSERT_EQ(t.spans[0].end, 7);
}

TEST(full_keeps_the_oldest_and_counts_the_rest)
{
    struct timeline t = { 0 };

    for (int i = 0; i < TIMELINE_SPANS; i++)
        ASSERT_EQ(timeline_begin(&t, TRACK_HOST, "x", 1), i);
    ASSERT_EQ(timeline_begin(&t, TRACK_HOST, "late", 2), -1);
    timeline_mark(&t, TRACK_HOST, "late", 2);
    timeline_end(&t, -1, 3);
    ASSERT_EQ(t.n, TIMELINE_SPANS);
    ASSERT_EQ(t.lost, 2);
    ASSERT_STR(t.spans[TIMELINE_SPANS - 1].name, "x");
}

TEST(null_and_handles_from_nowhere_are_accepted)
{
    struct timeline t = { 0 };

    ASSERT_EQ(timeline_begin(NULL, TRACK_HOST, "x", 1), -1);
    timeline_end(NULL, 0, 1);
    timeline_mark(NULL, TRACK_HOST, "x", 1);
    timeline_add(NULL, TRACK_HOST, "x", 1, 2);
    timeline_end(&t, 0, 1);
    timeline_end(&t, 5000, 1);
    ASSERT_EQ(t.n, 0);
    ASSERT_EQ(t.lost, 0);
}

TEST(a_long_name_is_cut_between_characters)
{
    struct timeline t = { 0 };

    timeline_mark(&t, TRACK_HOST, "abcdefghijklmnopqrstuvwxyz0123456789", 1);
    ASSERT_STR(t.spans[0].name, "abcdefghijklmnopqrstuvwxyz0");
    timeline_mark(&t, TRACK_HOST, "abcdefghijklmnopqrstuvwxy…", 1);
    ASSERT_STR(t.spans[1].name, "abcdefghijklmnopqrstuvwxy");
    timeline_mark(&t, TRACK_HOST, "abcdefghijklmnopqrstuvwx…", 1);
    ASSERT_STR(t.spans[2].name, "abcdefghijklmnopqrstuvwx…");
}

TEST(tracks_have_names)
{
    ASSERT_STR(timeline_track_name(TRACK_HOST), "host");
    ASSERT_STR(timeline_track_name(TRACK_VMM), "vmm");
    ASSERT_STR(timeline_track_name(TRACK_KERNEL), "kernel");
    ASSERT_STR(timeline_track_name(TRACK_GUEST), "guest");
    ASSERT_STR(timeline_track_name(TRACK_COUNT), "?");
}
