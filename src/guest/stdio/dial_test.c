#include "base/fd.h"
#include "fixture/dial_fixture.h"
#include "guest/stdio/dial.h"
#include "harness/tap.h"
#include <errno.h>

TEST_VIRTUAL(a_timed_out_dial_is_tried_again)
{
    struct dial_pair *p = dial_pair_new();
    struct err err = ERR_INIT;
    int fd = -1;

    dial_pair_refuse(p, ETIMEDOUT, 9);
    ASSERT_OK(dialer_dial(ctx, dial_pair_dialer(p), 7, &fd, &err), err);
    ASSERT_EQ(dial_pair_count(p), 10);
    fd_close(fd);
    dial_pair_free(p);
}

TEST_VIRTUAL(ten_time_outs_are_the_end)
{
    struct dial_pair *p = dial_pair_new();
    struct err err = ERR_INIT;
    int fd = -1;

    dial_pair_refuse(p, ETIMEDOUT, -1);
    ASSERT_FAIL(dialer_dial(ctx, dial_pair_dialer(p), 7, &fd, &err), err, ERR_DEADLINE);
    ASSERT_EQ(dial_pair_count(p), 10);
    ASSERT_MSG_HAS(err.msg, "port 7");
    dial_pair_free(p);
}

TEST_VIRTUAL(any_other_failure_is_final)
{
    struct dial_pair *p = dial_pair_new();
    struct err err = ERR_INIT;
    int fd = -1;

    dial_pair_refuse(p, ECONNREFUSED, -1);
    ASSERT(dialer_dial(ctx, dial_pair_dialer(p), 7, &fd, &err) < 0);
    ASSERT_EQ(dial_pair_count(p), 1);
    ASSERT_EQ(err.sys, ECONNREFUSED);
    dial_pair_free(p);
}

TEST_VIRTUAL(a_cancelled_dial_keeps_its_reason)
{
    struct dial_pair *p = dial_pair_new();
    struct err err = ERR_INIT;
    struct ctx brief = ctx_with_timeout(ctx, 250 * 1000 * 1000);
    int fd = -1;

    dial_pair_refuse(p, ETIMEDOUT, -1);
    ASSERT(dialer_dial(&brief, dial_pair_dialer(p), 7, &fd, &err) < 0);
    ASSERT_EQ(dial_pair_count(p), 3);
    ASSERT_EQ(err.sys, ETIMEDOUT);
    dial_pair_free(p);
}
