#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "harness/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A sink that can be read. Given back to stderr at the end of the scope. */
struct capture {
    int fd;
    char text[16384];
};
static struct capture cap;

static void capture_release_auto(int *fd)
{
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    fd_close(*fd);
}

static int capture_init(enum log_level level, enum log_format format)
{
    cap.fd = memfd_create("log", MFD_CLOEXEC);
    ASSERT(cap.fd >= 0);
    log_init(cap.fd, level, format);
    return cap.fd;
}
#define CAPTURE(level, format)                                                                     \
    __attribute__((unused)) AUTO(capture_release) int capture_fd = capture_init(level, format)

/* All that was logged since the last call. */
static const char *logged(void)
{
    ssize_t n;

    ASSERT_EQ(lseek(cap.fd, 0, SEEK_SET), 0);
    n = fd_read_full(cap.fd, cap.text, sizeof(cap.text) - 1);
    ASSERT(n >= 0);
    cap.text[n] = '\0';
    ASSERT_EQ(lseek(cap.fd, 0, SEEK_SET), 0);
    ASSERT_EQ(ftruncate(cap.fd, 0), 0);
    return cap.text;
}

/* What stands behind the time stamp. */
static const char *line(void)
{
    const char *text = logged(), *level = strstr(text, "level");

    ASSERT(level);
    ASSERT(text[strlen(text) - 1] == '\n');
    ASSERT(!strchr(text, '\n')[1]);
    return level;
}

TEST(logfmt_has_time_level_message_and_fields)
{
    CAPTURE(LOG_INFO, LOG_LOGFMT);
    log_info(NULL, "disk attached", F_STR("host-path", "/a.img"), F_U("lun", 3));
    const char *text = logged();

    ASSERT(strncmp(text, "time=\"20", 8) == 0);
    ASSERT_STR(text + 36, "\" level=info msg=\"disk attached\" host-path=/a.img lun=3\n");
}

TEST(json_has_time_level_message_and_fields)
{
    CAPTURE(LOG_INFO, LOG_JSON);
    log_info(NULL, "disk attached", F_STR("host-path", "/a \"b\""), F_U("lun", 3));
    const char *text = logged();

    ASSERT(strncmp(text, "{\"time\":\"20", 11) == 0);
    ASSERT_STR(text + 39, "\",\"level\":\"info\",\"msg\":\"disk attached\","
                          "\"host-path\":\"/a \\\"b\\\"\",\"lun\":3}\n");
}

TEST(a_line_without_fields_works)
{
    CAPTURE(LOG_TRACE, LOG_LOGFMT);
    LOG_AT(NULL, LOG_TRACE, "x");
    ASSERT_STR(line(), "level=trace msg=x\n");
    log_debug(NULL, "x");
    ASSERT_STR(line(), "level=debug msg=x\n");
    log_warn(NULL, "x");
    ASSERT_STR(line(), "level=warn msg=x\n");
    log_error(NULL, "x");
    ASSERT_STR(line(), "level=error msg=x\n");
}

TEST(every_kind_of_field_in_logfmt)
{
    CAPTURE(LOG_INFO, LOG_LOGFMT);
    struct err e;

    err_set(&e, ERR_NOT_FOUND, "pod \"x\" is gone");
    log_info(NULL, "m", F_STR("s", ""), F_STR("n", NULL), F_U("u", UINT64_MAX), F_I("i", INT64_MIN),
             F_BOOL("t", true), F_BOOL("f", false), F_NS("duration", 1230 * NS_PER_MS), F_ERR(&e));
    ASSERT_STR(line(), "level=info msg=m s=\"\" n=null u=18446744073709551615 "
                       "i=-9223372036854775808 t=true f=false duration=1.23s "
                       "error=\"pod \\\"x\\\" is gone\"\n");
}

TEST(every_kind_of_field_in_json)
{
    CAPTURE(LOG_INFO, LOG_JSON);
    struct err e;

    err_set(&e, ERR_NOT_FOUND, "gone");
    log_info(NULL, "m", F_STR("n", NULL), F_U("u", UINT64_MAX), F_I("i", INT64_MIN),
             F_BOOL("t", true), F_NS("duration", 45 * NS_PER_MS), F_ERR(&e));
    ASSERT_STR(line(), "level\":\"info\",\"msg\":\"m\",\"n\":null,\"u\":18446744073709551615,"
                       "\"i\":-9223372036854775808,\"t\":true,\"duration\":\"45ms\","
                       "\"error\":\"gone\"}\n");
}

TEST(the_reason_of_an_error_is_a_field_of_its_own)
{
    CAPTURE(LOG_DEBUG, LOG_LOGFMT);
    struct err e;

    err_sys(&e, ENOSPC, "write");
    log_debug(NULL, "m", F_ERR(&e), F_U("u", 1));
    ASSERT_STR(line(), "level=debug msg=m error=\"write: No space left on device\" "
                       "reason=DISK_FULL u=1\n");
    log_debug(NULL, "m", F_REASON(REASON_GUEST_SILENT));
    ASSERT_STR(line(), "level=debug msg=m reason=GUEST_SILENT\n");
    log_init(cap.fd, LOG_DEBUG, LOG_JSON);
    log_debug(NULL, "m", F_REASON(REASON_GUEST_SILENT));
    ASSERT_STR(line(), "level\":\"debug\",\"msg\":\"m\",\"reason\":\"GUEST_SILENT\"}\n");
}

TEST(failures_are_counted_by_reason)
{
    CAPTURE(LOG_DEBUG, LOG_LOGFMT);
    uint64_t full = log_failures(REASON_DISK_FULL), unknown = log_failures(REASON_NONE);
    struct err e;

    err_sys(&e, ENOSPC, "write");
    log_warn(NULL, "retrying", F_ERR(&e));
    log_info(NULL, "m", F_REASON(REASON_DISK_FULL));
    ASSERT_EQ(log_failures(REASON_DISK_FULL), full);
    log_error(NULL, "m", F_U("u", 1), F_ERR(&e));
    log_warn(NULL, "m", F_REASON(REASON_DISK_FULL));
    ASSERT_EQ(log_failures(REASON_DISK_FULL), full + 2);
    err_set(&e, ERR_UNKNOWN, "x");
    log_error(NULL, "m", F_ERR(&e));
    ASSERT_EQ(log_failures(REASON_NONE), unknown + 1);
    ASSERT_EQ(log_failures(REASON_COUNT), 0);
}

TEST(identifiers_come_from_ctx_outermost_first)
{
    CAPTURE(LOG_INFO, LOG_LOGFMT);
    struct ctx root = { 0 };
    struct ctx sandbox = ctx_with_id(&root, "sandbox-id", "s1");
    struct cancel c;

    cancel_init(&c, NULL);
    struct ctx plain = ctx_with_cancel(&sandbox, &c);
    struct ctx cid = ctx_with_id(&plain, "cid", "c 1");

    log_info(&cid, "m", F_U("x", 1));
    ASSERT_STR(line(), "level=info msg=m sandbox-id=s1 cid=\"c 1\" x=1\n");
    log_info(&root, "m");
    ASSERT_STR(line(), "level=info msg=m\n");
    cancel_release(&c);
}

TEST(the_inner_of_two_identifiers_counts)
{
    CAPTURE(LOG_INFO, LOG_JSON);
    struct ctx root = { 0 };
    struct ctx a = ctx_with_id(&root, "cid", "outer"), b = ctx_with_id(&a, "pid", "7");
    struct ctx c = ctx_with_id(&b, "cid", "inner");

    log_info(&c, "m");
    ASSERT_STR(line(), "level\":\"info\",\"msg\":\"m\",\"pid\":\"7\",\"cid\":\"inner\"}\n");
}

TEST_VIRTUAL(the_time_is_the_loops)
{
    CAPTURE(LOG_INFO, LOG_LOGFMT);
    char want[CLOCK_RFC3339_SIZE + 16], time[CLOCK_RFC3339_SIZE];

    clock_rfc3339(loop_wall(ctx->loop), time);
    snprintf(want, sizeof(want), "time=\"%s\" ", time);
    log_info(ctx, "m");
    ASSERT_HAS(logged(), want);
}

TEST(a_text_of_many_lines_is_as_many_of_the_log)
{
    CAPTURE(LOG_WARN, LOG_LOGFMT);
    char text[] = "first one\n\nsecond\n";

    log_each_line(NULL, LOG_WARN, "fiber", text);
    logged();
    ASSERT_HAS(cap.text, "level=warn msg=fiber state=\"first one\"\n");
    ASSERT_HAS(cap.text, "level=warn msg=fiber state=second\n");
    ASSERT(strstr(cap.text, "second\n") + strlen("second\n") == cap.text + strlen(cap.text));
    ASSERT(!strstr(cap.text, "state=\n") && !strstr(cap.text, "state=\"\""));
}

TEST(levels_below_the_limit_are_not_written)
{
    CAPTURE(LOG_WARN, LOG_LOGFMT);
    log_info(NULL, "no");
    log_write(NULL, LOG_DEBUG, "no", NULL);
    ASSERT_STR(logged(), "");
    ASSERT(!log_on(LOG_INFO) && log_on(LOG_WARN) && log_on(LOG_ERROR));
}

TEST(off_writes_nothing_at_all)
{
    CAPTURE(LOG_OFF, LOG_LOGFMT);
    log_error(NULL, "no");
    log_write(NULL, LOG_OFF, "no", NULL);
    ASSERT_STR(logged(), "");
    ASSERT(!log_on(LOG_OFF));
}

TEST(fields_are_not_evaluated_when_the_level_is_off)
{
    CAPTURE(LOG_WARN, LOG_LOGFMT);
    int n = 0;

    log_info(NULL, "m", F_I("n", ++n));
    ASSERT_EQ(n, 0);
}

TEST(logfmt_quotes_what_needs_it)
{
    CAPTURE(LOG_INFO, LOG_LOGFMT);
    log_info(NULL, "m", F_STR("a", "x=y"), F_STR("b", "a b"), F_STR("c", "q\"q"),
             F_STR("d", "back\\slash"), F_STR("e", "UPPER-09._/@^+"), F_STR("f", "é"));
    ASSERT_STR(line(), "level=info msg=m a=\"x=y\" b=\"a b\" c=\"q\\\"q\" d=\"back\\\\slash\" "
                       "e=UPPER-09._/@^+ f=\"é\"\n");
}

/* No field can end the line, colour the terminal or forge a second field. */
TEST(control_characters_never_reach_the_sink)
{
    char evil[1024] = "x\n";
    const char *text;

    for (int c = 1; c < 256; c++)
        evil[strlen(evil)] = (char)c;
    strcat(evil, "\xc2\x85\xc2\x9b"         /* C1: next line, CSI */
                 "\xe2\x80\xa8\xe2\x80\xa9" /* line and paragraph separator */
                 "\xe2\x80\xae\xe2\x81\xa6" /* right-to-left override, isolate */
                 "\xe2\x80\x8b\xef\xbb\xbf" /* zero width space, byte order mark */
                 "\" level=error msg=forged\x1b[2J");
    for (int json = 0; json < 2; json++) {
        CAPTURE(LOG_INFO, json ? LOG_JSON : LOG_LOGFMT);
        struct ctx root = { 0 }, id = ctx_with_id(&root, "cid", evil);
        struct err e;

        err_set(&e, ERR_UNKNOWN, "%.200s", evil);
        log_info(&id, evil, F_STR("k", evil), F_ERR(&e), F_STR(evil, "v"));
        text = logged();
        for (size_t i = 0; text[i + 1]; i++) {
            unsigned char c = (unsigned char)text[i];
            uint32_t u;
            size_t n = c < 0x80 ? 1 : str_utf8(text + i, strlen(text + i), &u);

            ASSERT(c >= 0x20 && c != 0x7f);
            ASSERT(n > 0);
            if (n > 1) {
                ASSERT(u > 0x9f && u != 0x2028 && u != 0x2029 && u != 0x202e && u != 0x2066 &&
                       u != 0x200b && u != 0xfeff);
                i += n - 1;
            }
        }
        ASSERT(text[strlen(text) - 1] == '\n');
        ASSERT_HAS(text, "\\\" level=error msg=forged\\");
    }
}

TEST(json_lines_parse_whatever_the_fields_hold)
{
    CAPTURE(LOG_INFO, LOG_JSON);
    AUTO(json_decref) json_t *v = NULL;
    const char *s = NULL, *text;
    struct err e;

    log_info(NULL, "m", F_STR("a", "\x01\x7f\xff\xc2\x85\n\t\"\\\xe2\x80"), F_STR("b", "😀"));
    text = logged();
    ASSERT_OK(js_parse(text, strlen(text), 10000, &v, &e), e);
    ASSERT_OK(js_str(v, "a", &s, &e), e);
    ASSERT_STR(s, "\x01\x7f\xef\xbf\xbd\xc2\x85\n\t\"\\\xef\xbf\xbd\xef\xbf\xbd");
    ASSERT_OK(js_str(v, "b", &s, &e), e);
    ASSERT_STR(s, "😀");
}

static char *long_text(size_t len)
{
    char *s = mem_alloc(len + 1);

    memset(s, '"', len); /* each becomes two */
    s[len] = '\0';
    return s;
}

TEST(a_long_line_is_cut_and_marked)
{
    AUTO_FREE char *big = long_text(100000);

    CAPTURE(LOG_INFO, LOG_LOGFMT);
    log_info(NULL, "m", F_STR("big", big), F_U("lost", 1));
    const char *text = logged();

    ASSERT(strlen(text) <= 8192 && strlen(text) > 8000);
    ASSERT_STR(text + strlen(text) - 19, "\\\"\" truncated=true\n");
    ASSERT(!strstr(text, "lost="));
}

TEST(a_long_json_line_still_parses)
{
    AUTO_FREE char *big = long_text(9000);

    CAPTURE(LOG_INFO, LOG_JSON);
    /* Every length, so that the cut falls on each kind of place. */
    for (size_t len = 3800; len < 4120; len++) {
        AUTO(json_decref) json_t *v = NULL;
        const char *text;
        bool cut = false;
        struct err e;

        log_info(NULL, "m", F_STR("big", big + 9000 - len), F_STR("b", "x y"), F_U("u", 123456),
                 F_BOOL("t", true));
        text = logged();
        ASSERT(strlen(text) <= 8192);
        ASSERT_OK(js_parse(text, strlen(text), 10000, &v, &e), e);
        ASSERT_OK(js_bool(v, "truncated", &cut, &e), e);
        ASSERT_EQ(cut, js_get(v, "t") == NULL);
    }
}

TEST(a_message_that_fills_the_line_is_cut_too)
{
    AUTO_FREE char *big = long_text(20000);

    CAPTURE(LOG_INFO, LOG_JSON);
    AUTO(json_decref) json_t *v = NULL;
    struct err e;

    log_info(NULL, big, F_STR(big, "v"));
    const char *text = logged();

    ASSERT(strlen(text) <= 8192);
    ASSERT_OK(js_parse(text, strlen(text), 10000, &v, &e), e);
}

TEST(a_full_sink_drops_and_counts)
{
    uint64_t before = log_dropped();
    AUTO_FD int r = -1, w = -1;
    int p[2], n = 0;

    ASSERT_EQ(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    r = p[0], w = p[1];
    log_init(w, LOG_INFO, LOG_LOGFMT);
    while (log_dropped() == before && n++ < 10000)
        log_info(NULL, "x");
    errno = 77;
    log_info(NULL, "longer than what did not fit");
    ASSERT_EQ(errno, 77);
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    ASSERT_EQ(log_dropped(), before + 2);
    ASSERT(r >= 0);
}

/* The test's stderr may be a pipe of another process, so its flags must not change. */
TEST(a_full_sink_that_would_block_is_not_waited_for)
{
    uint64_t before = log_dropped();
    AUTO_FREE char *big = long_text(5000);
    AUTO_FD int r = -1, w = -1;
    int p[2];

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);
    r = p[0], w = p[1];
    log_init(w, LOG_INFO, LOG_LOGFMT);
    alarm(60); /* a blocking write would never return */
    for (int i = 0; i < 40; i++)
        log_info(NULL, "x", F_STR("big", big));
    alarm(0);
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    ASSERT(log_dropped() > before);
    ASSERT(r >= 0);
}

TEST(a_broken_sink_drops_and_counts)
{
    uint64_t before = log_dropped();

    log_init(-1, LOG_INFO, LOG_LOGFMT);
    log_info(NULL, "lost");
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    ASSERT_EQ(log_dropped(), before + 1);
}

/* A pipe of one page takes the first page of a longer line. */
TEST(a_torn_line_is_ended_before_the_next)
{
    AUTO_FREE char *big = long_text(3500);
    uint64_t before = log_dropped();
    AUTO_FD int r = -1, w = -1;
    char text[8192] = "";
    ssize_t got;
    int p[2];

    ASSERT_EQ(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
    r = p[0], w = p[1];
    ASSERT(fcntl(w, F_SETPIPE_SZ, 4096) >= 0);
    log_init(w, LOG_INFO, LOG_LOGFMT);
    log_info(NULL, "m", F_STR("big", big));
    ASSERT_EQ(log_dropped(), before + 1);
    got = read(r, text, sizeof(text) - 1);
    ASSERT_EQ(got, 4096);
    memset(text, 0, sizeof(text));
    log_info(NULL, "after");
    log_info(NULL, "again");
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    ASSERT(read(r, text, sizeof(text) - 1) > 0);
    ASSERT(strncmp(text, "\ntime=", 6) == 0);
    ASSERT_HAS(text, "msg=after\ntime=");
    ASSERT_HAS(text, "msg=again\n");
}

TEST(level_names_go_both_ways)
{
    enum log_level l = LOG_OFF;

    for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
        ASSERT_EQ(log_level_parse(log_level_name(i), &l), 0);
        ASSERT_EQ(l, i);
    }
    ASSERT_EQ(log_level_parse("warning", &l), 0);
    ASSERT_EQ(l, LOG_WARN);
    l = LOG_DEBUG;
    ASSERT_EQ(log_level_parse("loud", &l), -EINVAL);
    ASSERT_EQ(log_level_parse("INFO", &l), -EINVAL);
    ASSERT_EQ(log_level_parse(NULL, &l), -EINVAL);
    ASSERT_EQ(l, LOG_DEBUG);
    ASSERT_STR(log_level_name((enum log_level)42), "?");
}

TEST(rate_lets_a_burst_through_per_second)
{
    struct log_rate r = { .burst = 3 };
    uint64_t t = 5 * NS_PER_S;

    for (int i = 0; i < 3; i++)
        ASSERT(log_rate_ok(&r, t + (uint64_t)i));
    for (int i = 0; i < 4; i++)
        ASSERT(!log_rate_ok(&r, t + NS_PER_S - 1));
    ASSERT(log_rate_ok(&r, t + NS_PER_S));
}

TEST(rate_reports_once_how_many_were_lost)
{
    struct log_rate r = { .burst = 1 };

    ASSERT(log_rate_ok(&r, 1));
    ASSERT_EQ(r.lost, 0);
    for (int i = 0; i < 4; i++)
        ASSERT(!log_rate_ok(&r, 2));
    ASSERT(log_rate_ok(&r, 3 * NS_PER_S));
    ASSERT_EQ(r.lost, 4);
    ASSERT(log_rate_ok(&r, 5 * NS_PER_S));
    ASSERT_EQ(r.lost, 0);
    ASSERT(!log_rate_ok(&r, 5 * NS_PER_S));
    ASSERT(!log_rate_ok(&r, 5 * NS_PER_S));
    ASSERT(log_rate_ok(&r, 7 * NS_PER_S));
    ASSERT_EQ(r.lost, 2);
}

TEST(rate_of_zero_lets_nothing_through)
{
    struct log_rate r = { 0 };

    for (int i = 1; i < 5; i++) {
        ASSERT(!log_rate_ok(&r, (uint64_t)i * NS_PER_S));
        ASSERT_EQ(r.lost, i);
    }
}

struct teed {
    unsigned n;
    enum log_level worst;
    char line[1024];
};

static void take(void *arg, enum log_level level, const char *text, size_t len)
{
    struct teed *t = arg;

    t->n++;
    t->worst = level > t->worst ? level : t->worst;
    snprintf(t->line, sizeof(t->line), "%.*s", (int)len, text);
}

TEST(a_tee_sees_json_below_the_sink_s_level_and_notes_that_are_its_own)
{
    struct teed t = { 0 };

    CAPTURE(LOG_WARN, LOG_LOGFMT);
    log_tee(LOG_INFO, take, &t);
    log_debug(NULL, "nobody");
    log_info(NULL, "tee only", F_U("n", 7));
    ASSERT_HAS(t.line, "\"level\":\"info\",\"msg\":\"tee only\",\"n\":7}\n");
    ASSERT_STR(logged(), "");
    log_error(NULL, "both");
    ASSERT_HAS(line(), "level=error msg=both\n");
    log_journal(NULL, "event", (const struct log_field[]){ F_STR("event", "exit"), {} });
    ASSERT_HAS(t.line, "\"event\":\"exit\"");
    ASSERT_STR(logged(), "");
    ASSERT_EQ(t.n, 3);
    ASSERT_EQ(t.worst, LOG_ERROR);
    log_tee(LOG_OFF, NULL, NULL);
    log_error(NULL, "sink only");
    log_journal(NULL, "nobody", NULL);
    ASSERT_EQ(t.n, 3);
    ASSERT(!log_on(LOG_INFO));
}
