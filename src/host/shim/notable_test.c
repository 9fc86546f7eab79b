#include "base/clock.h"
#include "base/err.h"
#include "harness/tap.h"
#include "host/shim/notable.h"
#include <string.h>

/* Lines as the log writes them: the words of the rule are the log's. */
struct reader {
    struct notable n;
    uint64_t now_ns;
    unsigned taken;
};

static void on_line(void *arg, enum log_level level, const char *line, size_t len)
{
    struct reader *r = arg;

    r->taken += notable_take(&r->n, level, line, len, r->now_ns);
}

static void fail(struct reader *r, const char *operation, enum err_code code)
{
    struct err err = ERR_INIT;

    err_set(&err, code, "container c1: it did not work");
    log_init(2, LOG_OFF, LOG_LOGFMT);
    log_tee(LOG_INFO, on_line, r);
    log_error(NULL, "request failed", F_STR("operation", operation),
              F_STR("code", err_code_name(code)), F_ERR(&err));
    log_tee(LOG_OFF, NULL, NULL);
}

static bool is_kept(const char *operation, enum err_code code)
{
    struct reader r = { .now_ns = NS_PER_S };

    fail(&r, operation, code);
    ASSERT_EQ(r.taken, 1);
    return r.n.erred;
}

TEST(what_could_not_be_killed_or_removed_is_kept_to_be_explained)
{
    ASSERT(is_kept("Create", ERR_INTERNAL));
    ASSERT(is_kept("Delete", ERR_INTERNAL));
    ASSERT(is_kept("Delete", ERR_DEADLINE));
    ASSERT(is_kept("Kill", ERR_UNAVAILABLE));
    ASSERT(is_kept("Create", ERR_NOT_FOUND)); /* of a file, say: not the same thing twice */
}

TEST(whoever_comes_after_the_end_keeps_nothing)
{
    ASSERT(!is_kept("State", ERR_UNAVAILABLE));
    ASSERT(!is_kept("Stats", ERR_UNAVAILABLE));
    ASSERT(!is_kept("Wait", ERR_UNAVAILABLE));
}

TEST(a_poll_that_fails_every_ten_seconds_does_not_fill_the_journal)
{
    struct reader r = { .now_ns = NS_PER_S };

    for (int i = 0; i < 360; i++, r.now_ns += 10 * NS_PER_S) /* an hour */
        fail(&r, "Stats", ERR_UNAVAILABLE);
    ASSERT_EQ(r.taken, 6);
    ASSERT(!r.n.erred);
    fail(&r, "State", ERR_INTERNAL); /* another question is none of it */
    ASSERT_EQ(r.taken, 7);
    fail(&r, "Kill", ERR_INTERNAL);
    fail(&r, "Kill", ERR_INTERNAL);
    ASSERT_EQ(r.taken, 9);
}

TEST(every_other_line_is_taken_and_an_error_keeps_the_journal)
{
    struct reader r = { 0 };

    log_init(2, LOG_OFF, LOG_LOGFMT);
    log_tee(LOG_INFO, on_line, &r);
    for (int i = 0; i < 3; i++)
        log_write(NULL, LOG_INFO, "Stats", (const struct log_field[]){ {} });
    ASSERT(!r.n.erred);
    log_error(NULL, "the guest panicked", F_STR("operation", "Stats"));
    log_tee(LOG_OFF, NULL, NULL);
    ASSERT_EQ(r.taken, 4);
    ASSERT(r.n.erred);
}
