#include "base/clock.h"
#include "base/clock_step.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "harness/tap.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>
#include <time.h>

/* Sets the clock by a microsecond, there and back. Only if the environment allows it. */
static void set_clock(bool back)
{
    struct timex t = { .modes = ADJ_SETOFFSET };

    t.time.tv_sec = back ? -1 : 0;
    t.time.tv_usec = back ? 999999 : 1;
    if (!getenv("LCOW_TEST_CLOCK"))
        tap_skip("it would set the clock: LCOW_TEST_CLOCK=1 allows it");
    if (clock_adjtime(CLOCK_REALTIME, &t) < 0)
        tap_skip("the clock may not be set: %s", strerror(errno));
}

TEST_FIBER(passing_time_is_not_a_step)
{
    struct err err = ERR_INIT;
    struct ctx little = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    AUTO_FD int fd = clock_step_open(&err);

    ASSERT(fd >= 0);
    ASSERT_FAIL(clock_step_wait(&little, fd, &err), err, ERR_DEADLINE);
}

TEST_FIBER(each_setting_of_the_clock_is_reported)
{
    struct err err = ERR_INIT;
    AUTO_FD int fd = clock_step_open(&err);

    ASSERT(fd >= 0);
    for (int i = 0; i < 4; i++) {
        struct ctx little = ctx_with_timeout(ctx, 20 * NS_PER_MS);

        set_clock(i % 2);
        ASSERT_OK(clock_step_wait(ctx, fd, &err), err);
        ASSERT_FAIL(clock_step_wait(&little, fd, &err), err, ERR_DEADLINE);
        err_clear(&err);
    }
}
