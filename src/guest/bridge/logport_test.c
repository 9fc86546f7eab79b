#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/dial_fixture.h"
#include "guest/bridge/logport.h"
#include "harness/tap.h"
#include <errno.h>
#include <string.h>

#define PORT 109

static struct stream *accept_log(struct ctx *ctx, struct dial_pair *host)
{
    struct err err = ERR_INIT;
    int fd = -1;

    ASSERT_OK(dial_pair_accept(ctx, host, PORT, &fd, &err), err);
    return stream_from_fd(ctx->loop, fd);
}

/* Up to a line feed; must be JSON. Caller frees. */
static char *read_line(struct ctx *ctx, struct stream *s)
{
    struct sbuf line = { 0 };
    struct err err = ERR_INIT;
    char c;

    do {
        ASSERT_OK(stream_read_full(ctx, s, &c, 1, &err), err);
        sbuf_addc(&line, c);
    } while (c != '\n');
    json_t *parsed = NULL;
    ASSERT_OK(js_parse(line.data, line.len, line.len, &parsed, &err), err);
    json_decref(parsed);
    return sbuf_take(&line);
}

TEST_FIBER(lines_from_before_the_connection_arrive_first)
{
    struct dial_pair *host = dial_pair_new();
    struct logport *p;
    struct err err = ERR_INIT;

    ASSERT_OK(logport_new(ctx->loop, LOG_INFO, &p, &err), err);
    log_info(ctx, "early", F_U("n", 1));
    logport_line(p, "{\"stage\":1}\n", 12);
    ASSERT_OK(logport_connect(ctx, p, dial_pair_dialer(host), PORT, &err), err);
    log_info(ctx, "late", F_U("n", 2));
    log_debug(ctx, "not at this level");
    AUTO(stream_free) struct stream *s = accept_log(ctx, host);
    AUTO_FREE char *first = read_line(ctx, s), *second = read_line(ctx, s),
                   *third = read_line(ctx, s);
    ASSERT_HAS(first, "\"level\":\"info\",");
    ASSERT_HAS(first, "\"n\":1}");
    ASSERT_STR(second, "{\"stage\":1}\n");
    ASSERT_HAS(third, "\"n\":2}");
    logport_free(p);
    dial_pair_free(host);
}

TEST_FIBER(forgotten_lines_do_not_arrive)
{
    struct dial_pair *host = dial_pair_new();
    struct logport *p;
    struct err err = ERR_INIT;

    ASSERT_OK(logport_new(ctx->loop, LOG_INFO, &p, &err), err);
    for (unsigned i = 0; i < 5000; i++) /* more than there is room for */
        log_info(ctx, "of the template", F_U("n", i));
    logport_forget(p);
    log_info(ctx, "of the clone", F_U("n", 3));
    ASSERT_OK(logport_connect(ctx, p, dial_pair_dialer(host), PORT, &err), err);
    AUTO(stream_free) struct stream *s = accept_log(ctx, host);
    AUTO_FREE char *first = read_line(ctx, s);
    ASSERT_HAS(first, "\"n\":3}");
    log_info(ctx, "and no word of lines that were dropped", F_U("n", 4));
    AUTO_FREE char *second = read_line(ctx, s);
    ASSERT_HAS(second, "\"n\":4}");
    logport_free(p);
    dial_pair_free(host);
}

TEST_FIBER(without_a_host_the_first_lines_are_kept_and_the_rest_counted)
{
    struct dial_pair *host = dial_pair_new();
    struct logport *p;
    struct err err = ERR_INIT;
    uint64_t before = log_dropped();

    ASSERT_OK(logport_new(ctx->loop, LOG_INFO, &p, &err), err);
    dial_pair_refuse(host, ECONNREFUSED, 1);
    ASSERT(logport_connect(ctx, p, dial_pair_dialer(host), PORT, &err) < 0);
    for (int i = 0; i < 5000; i++)
        log_info(ctx, "flood", F_I("n", i));
    uint64_t lost = log_dropped() - before;
    ASSERT(lost > 3000 && lost < 5000);
    logport_retry(p);
    AUTO(stream_free) struct stream *s = accept_log(ctx, host);
    for (int i = 0; i < 5000 - (int)lost; i++) {
        AUTO_FREE char *line = read_line(ctx, s), *want = str_format("\"n\":%d}", i);
        ASSERT_HAS(line, want);
    }
    AUTO_FREE char *told = read_line(ctx, s), *count = str_format("\"lines\":%lu}", lost);
    ASSERT_MSG_HAS(told, "log lines were dropped");
    ASSERT_HAS(told, count);
    logport_free(p);
    dial_pair_free(host);
}

TEST_FIBER(a_lost_host_is_dialled_again_when_it_shows_itself)
{
    struct dial_pair *host = dial_pair_new();
    struct logport *p;
    struct err err = ERR_INIT;

    ASSERT_OK(logport_new(ctx->loop, LOG_INFO, &p, &err), err);
    ASSERT_OK(logport_connect(ctx, p, dial_pair_dialer(host), PORT, &err), err);
    logport_retry(p); /* connected: nothing to do */
    stream_free(accept_log(ctx, host));
    log_info(ctx, "lost");
    while (dial_pair_count(host) < 2) {
        logport_retry(p);
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    }
    AUTO(stream_free) struct stream *s = accept_log(ctx, host);
    log_info(ctx, "found", F_U("n", 5));
    AUTO_FREE char *line = read_line(ctx, s);
    ASSERT_HAS(line, "\"n\":5}");
    logport_free(p);
    dial_pair_free(host);
}
