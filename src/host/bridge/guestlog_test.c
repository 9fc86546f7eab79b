/* guestlog_test.c - the guest's log lines, as a hostile guest would write them too. */
#include "base/clock.h"
#include "base/loop.h"
#include "base/span.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/stream_pair.h"
#include "harness/tap.h"
#include "host/bridge/guestlog.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define NOW (100 * NS_PER_S)

/* What our log got meanwhile. */
static int sink = -1;

static void log_begin(void)
{
    if (sink >= 0)
        close(sink);
    sink = memfd_create("log", MFD_CLOEXEC);
    log_init(sink, LOG_TRACE, LOG_JSON);
}

static const char *log_text(void)
{
    static char text[1024 * 1024];
    ssize_t n = pread(sink, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    return text;
}

static unsigned log_lines(void)
{
    unsigned n = 0;

    for (const char *p = log_text(); (p = strchr(p, '\n')); p++)
        n++;
    return n;
}

static bool line(struct guestlog *l, const char *text)
{
    return guestlog_line(l, NULL, text, strlen(text), NOW);
}

TEST(lines_are_marked_and_keep_level_text_and_fields)
{
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    ASSERT(line(&l, "{\"level\":\"warning\",\"msg\":\"low on memory\",\"cid\":\"c1\",\"n\":3}"));
    ASSERT_HAS(log_text(), "\"level\":\"warn\"");
    ASSERT_HAS(log_text(), "\"source\":\"guest\"");
    ASSERT_HAS(log_text(), "low on memory");
    ASSERT_HAS(log_text(), "n=3");
    ASSERT_EQ(log_lines(), 1);
}

TEST(a_disk_that_the_agent_removed_first_is_not_an_error_of_the_kernel)
{
    struct guestlog l = { 0 };

    log_begin();
    guestlog_init(&l, NULL, NOW);
    ASSERT(line(&l, "{\"level\":\"error\",\"msg\":\"kernel message\",\"message\":"
                    "\"virtio_scsi: SCSI device 0 0 0 1 not found\",\"timesincebootmicro\":5}"));
    ASSERT_HAS(log_text(), "\"level\":\"debug\"");
    ASSERT(strstr(log_text(), "\"level\":\"error\"") == NULL);
}

TEST(the_kernel_s_words_are_marked_and_stand_for_themselves)
{
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    ASSERT(line(&l, "{\"level\":\"info\",\"msg\":\"any words\",\"message\":\"sda: sda1\","
                    "\"priority\":6,\"timesincebootmicro\":5}"));
    ASSERT_HAS(log_text(), "\"source\":\"kernel\",\"text\":\"sda: sda1\"}");
    ASSERT(line(&l,
                "{\"level\":\"error\",\"msg\":\"kernel message\",\"message\":"
                "\"Memory cgroup out of memory: Killed process 7 (x)\",\"timesincebootmicro\":6}"));
    ASSERT_HAS(log_text(), "\"reason\":\"CONTAINER_OOM\"");
    ASSERT(line(&l, "{\"level\":\"error\",\"msg\":\"kernel message\",\"message\":"
                    "\"Out of memory: Killed process 7 (x)\",\"timesincebootmicro\":7}"));
    ASSERT_HAS(log_text(), "\"reason\":\"GUEST_OOM\"");
    ASSERT(line(
        &l, "{\"msg\":\"kernel message\",\"message\":7,\"timesincebootmicro\":8}")); /* a lie is the
                                                                                        agent's */
    ASSERT_HAS(log_text(), "\"source\":\"guest\",\"text\":\"kernel message\"");
}

TEST(no_level_of_the_guest_is_higher_than_error)
{
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    ASSERT(line(&l, "{\"level\":\"panic\",\"msg\":\"a\"}"));
    ASSERT(line(&l, "{\"level\":\"no such level\",\"msg\":\"b\"}"));
    ASSERT(line(&l, "{\"level\":7,\"msg\":[]}"));
    ASSERT_HAS(log_text(), "\"level\":\"error\"");
    ASSERT_HAS(log_text(), "\"level\":\"info\"");
    ASSERT_EQ(log_lines(), 3);
}

TEST(control_characters_are_escaped)
{
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    ASSERT(line(&l, "{\"msg\":\"a\\u001b[31mb\\nc\\u202ed\\u009be\",\"k\\u0007\":1}"));
    ASSERT(!strpbrk(log_text(), "\x1b\x07"));
    ASSERT(!strstr(log_text(), "\xe2\x80\xae"));
    ASSERT(!strstr(log_text(), "\xc2\x9b"));
    ASSERT_EQ(log_lines(), 1);
}

TEST(escaping_is_bounded_and_cuts_at_a_character)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    char text[3000];

    for (size_t i = 0; i + 3 <= sizeof(text); i += 3)
        memcpy(text + i, "\xe2\x82\xac", 3);
    guestlog_escape(&out, text, sizeof(text), 100);
    ASSERT(out.len <= 100 && out.len > 90);
    ASSERT(str_ends(out.data, "\xe2\x82\xac…"));
    sbuf_release(&out);
    guestlog_escape(&out, "\xff\xc3", 2, 100); /* not UTF-8 */
    ASSERT_STR(out.data, "\\xff\\xc3");
    sbuf_release(&out);
    guestlog_escape(&out, "\xc0\xaf\xed\xa0\x80", 5, 100); /* overlong, surrogate */
    ASSERT_STR(out.data, "\\xc0\\xaf\\xed\\xa0\\x80");
}

TEST(a_text_that_is_not_an_object_is_not_a_line)
{
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    ASSERT(!line(&l, "panic: runtime error"));
    ASSERT(!line(&l, "[1,2]"));
    ASSERT(!line(&l, "{\"msg\":"));
    ASSERT(line(&l, "")); /* but an empty one is nothing at all */
    ASSERT_EQ(log_lines(), 0);
}

TEST(a_flood_is_limited_and_the_loss_is_reported)
{
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    for (int i = 0; i < GUESTLOG_BURST + 50; i++)
        ASSERT(guestlog_line(&l, NULL, "{\"msg\":\"x\"}", 11, NOW));
    ASSERT_EQ(log_lines(), GUESTLOG_BURST);
    ASSERT(guestlog_line(&l, NULL, "{\"msg\":\"y\"}", 11, NOW + 2 * NS_PER_S));
    ASSERT_HAS(log_text(), "\"lost\":50");
}

TEST(in_the_long_run_a_guest_has_few_lines)
{
    struct guestlog l;
    unsigned n = 0;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    for (uint64_t at = 0; at < 1000 * NS_PER_S; at += NS_PER_S / 10, n++)
        ASSERT(guestlog_line(&l, NULL, "{\"msg\":\"x\"}", 11, NOW + at));
    ASSERT_EQ(n, 10000);
    ASSERT(log_lines() >= GUESTLOG_SLOW_BURST + 990 * GUESTLOG_SLOW_PER_S);
    ASSERT(log_lines() <= GUESTLOG_SLOW_BURST + 1010 * GUESTLOG_SLOW_PER_S);
    /* Each dropped line is counted once. */
    unsigned lost = 0;
    for (const char *p = log_text(); (p = strstr(p, "\"lost\":")); p++)
        lost += (unsigned)atoi(p + 7);
    ASSERT_EQ(lost + l.lost + log_lines(), n);
}

TEST(a_flood_of_long_lines_is_not_even_parsed)
{
    struct guestlog l;
    size_t len = 16000;
    AUTO_FREE char *text = mem_zalloc(len + 1);

    memset(text, '\t', len);
    memcpy(text, "{}", 2);
    log_begin();
    guestlog_init(&l, NULL, NOW);
    for (unsigned i = 0; i < GUESTLOG_PARSED_BURST / len; i++)
        ASSERT(guestlog_line(&l, NULL, text, len, NOW));
    text[0] = '!'; /* which would be the agent's last words, if it were looked at */
    ASSERT(guestlog_line(&l, NULL, text, len, NOW));
    ASSERT(l.lost > 0);
    ASSERT(!guestlog_line(&l, NULL, text, len, NOW + NS_PER_S));
}

/* --- boot stages --- */

static void stage(struct guestlog *l, const char *name, uint64_t start, uint64_t end, uint64_t now,
                  uint64_t received)
{
    AUTO_FREE char *text = str_format("{\"msg\":\"any words\",\"stage\":\"%s\",\"start_ns\":%llu,"
                                      "\"end_ns\":%llu,\"boottime_ns\":%llu}",
                                      name, (unsigned long long)start, (unsigned long long)end,
                                      (unsigned long long)now);

    ASSERT(guestlog_line(l, NULL, text, strlen(text), received));
}

TEST(stages_are_placed_by_the_quickest_line)
{
    struct timeline t = { 0 };
    struct guestlog l;

    log_begin();
    guestlog_init(&l, &t, NOW);
    /* The guest booted at NOW + 1 s; the first line lay around for 0.5 s, the second for 1 ms. */
    stage(&l, "kernel", 0, 300 * NS_PER_MS, 400 * NS_PER_MS, NOW + 1900 * NS_PER_MS);
    stage(&l, "modules", 300 * NS_PER_MS, 500 * NS_PER_MS, 500 * NS_PER_MS, NOW + 1501 * NS_PER_MS);
    ASSERT_EQ(t.n, 0);
    guestlog_flush(&l, NOW + 2 * NS_PER_S);
    ASSERT_EQ(t.n, 2);
    ASSERT_STR(t.spans[0].name, "kernel");
    ASSERT_EQ(t.spans[0].track, TRACK_KERNEL);
    ASSERT_EQ(t.spans[0].start, NOW + 1001 * NS_PER_MS);
    ASSERT_EQ(t.spans[1].track, TRACK_GUEST);
    ASSERT_EQ(t.spans[1].end, NOW + 1501 * NS_PER_MS);
    stage(&l, "late", 0, NS_PER_MS, 600 * NS_PER_MS, NOW + 1700 * NS_PER_MS); /* at once now */
    ASSERT_EQ(t.n, 3);
}

TEST(nonsense_stages_are_clamped_or_left_out)
{
    struct timeline t = { 0 };
    struct guestlog l;

    log_begin();
    guestlog_init(&l, &t, NOW);
    stage(&l, "backwards", 5, 4, 10, NOW + 1);
    stage(&l, "future", 5, 20, 10, NOW + 1);
    stage(&l, "huge", 0, UINT64_MAX, UINT64_MAX, NOW + 1);
    stage(&l, "", 1, 2, 3, NOW + 1);
    ASSERT(line(&l, "{\"msg\":\"boot stage\"}"));
    ASSERT(line(&l, "{\"msg\":\"boot stage\",\"stage\":7,\"start_ns\":-1}"));
    ASSERT_EQ(l.n_stages, 0);
    /* A clock that ran for an hour before we even began: nothing is older than our beginning. */
    stage(&l, "a-very-long-name-that-does-not-fit-\\u001b", 0, 3600 * NS_PER_S, 3600 * NS_PER_S,
          NOW + NS_PER_S);
    guestlog_flush(&l, NOW + NS_PER_S);
    ASSERT_EQ(t.n, 1);
    ASSERT_EQ(t.spans[0].start, NOW);
    ASSERT_EQ(t.spans[0].end, NOW + NS_PER_S);
    ASSERT_EQ(strlen(t.spans[0].name), GUESTLOG_STAGE_NAME - 1);
    for (unsigned i = 0; i < 10 * GUESTLOG_STAGES; i++)
        stage(&l, "again", 1, 2, 3, NOW + NS_PER_S);
    ASSERT(t.n <= TIMELINE_SPANS);
}

TEST(stages_beyond_the_limit_are_not_kept)
{
    struct timeline t = { 0 };
    struct guestlog l;

    log_begin();
    guestlog_init(&l, &t, NOW);
    for (unsigned i = 0; i < 10 * GUESTLOG_STAGES; i++)
        stage(&l, "s", 1, 2, 3, NOW + 10);
    ASSERT_EQ(l.n_stages, GUESTLOG_STAGES);
}

/* --- the stream --- */

static void feed(struct ctx *ctx, struct guestlog *l, const char *text, size_t len, size_t piece)
{
    struct stream *a, *b;
    struct err err = ERR_INIT;

    stream_pair(ctx->loop, len + 1, &a, &b);
    for (size_t i = 0; i < len; i += piece)
        ASSERT_OK(stream_write_full(ctx, a, text + i, len - i < piece ? len - i : piece, &err),
                  err);
    stream_free(a);
    ASSERT_OK(guestlog_read(ctx, l, b, &err), err);
    stream_free(b);
}

TEST_VIRTUAL(lines_are_found_however_they_arrive)
{
    static const char text[] = "{\"msg\":\"one\"}\r\n\n{\"msg\":\"two\"}\n{\"msg\":\"three\"}";
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    feed(ctx, &l, text, sizeof(text) - 1, 1);
    ASSERT_EQ(log_lines(), 3);
    ASSERT_HAS(log_text(), "three");
}

TEST_VIRTUAL(a_guest_that_floods_its_log_has_to_wait)
{
    struct guestlog l;
    size_t len = GUESTLOG_READ_BURST + 3 * GUESTLOG_READ_PER_S;
    AUTO_FREE char *text = mem_alloc(len);
    uint64_t began = loop_now(ctx->loop), took;

    memset(text, '\n', len);
    memcpy(text, "{\"msg\":\"a\"}", 11);
    for (size_t i = 16; i + 16 <= len; i += 16)
        memcpy(text + i, "{\"msg\":\"b\"}", 11);
    log_begin();
    guestlog_init(&l, NULL, NOW);
    feed(ctx, &l, text, len, len);
    took = loop_now(ctx->loop) - began;
    ASSERT(took >= 2 * NS_PER_S && took <= 4 * NS_PER_S);
    ASSERT_MSG_HAS(log_text(), "log lines of the guest were left out");
    ASSERT_EQ(l.lost, 0);
}

TEST_VIRTUAL(last_words_become_one_record)
{
    static const char text[] = "{\"msg\":\"one\"}\npanic: nil\n\ngoroutine 1:\n\tmain.go\n"
                               "{\"msg\":\"swallowed\"}\n";
    struct guestlog l;

    log_begin();
    guestlog_init(&l, NULL, NOW);
    feed(ctx, &l, text, sizeof(text) - 1, 7);
    ASSERT_EQ(log_lines(), 2);
    ASSERT_MSG_HAS(log_text(), "gcs terminated");
    ASSERT_HAS(log_text(), "\"reason\":\"AGENT_DIED\"");
    ASSERT_HAS(log_text(), "goroutine 1:");
    ASSERT_HAS(log_text(), "swallowed");
    ASSERT_HAS(log_text(), "\"level\":\"error\"");
}

TEST_VIRTUAL(last_words_are_bounded)
{
    struct guestlog l;
    size_t len = 200 * 1024;
    AUTO_FREE char *text = mem_alloc(len);

    memset(text, 'p', len);
    text[10] = '\n';
    log_begin();
    guestlog_init(&l, NULL, NOW);
    feed(ctx, &l, text, len, 4096);
    ASSERT_EQ(log_lines(), 1);
    ASSERT(strlen(log_text()) < 2 * GUESTLOG_LAST_WORDS_MAX);
}

TEST_VIRTUAL(a_line_without_end_is_left_out_and_the_next_one_read)
{
    struct guestlog l;
    size_t len = 100 * 1024;
    AUTO_FREE char *text = mem_alloc(len);

    memset(text, 'q', len);
    text[0] = '{';
    memcpy(text + len - 15, "\n{\"msg\":\"yes\"}\n", 15);
    log_begin();
    guestlog_init(&l, NULL, NOW);
    feed(ctx, &l, text, len, 4096);
    ASSERT_HAS(log_text(), "left out");
    ASSERT_HAS(log_text(), "\"yes\"");
    ASSERT_EQ(log_lines(), 2);
}
