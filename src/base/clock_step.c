#include "base/clock_step.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/waits.h"
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* A time that is never reached: only a set clock ends the wait. */
static int arm(int fd)
{
    const struct itimerspec never = { .it_value.tv_sec = INT64_C(1) << 33 };

    return timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &never, NULL);
}

int clock_step_open(struct err *err)
{
    int fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);

    if (fd < 0)
        return err_sys(err, errno, "watch the wall clock");
    if (arm(fd) == 0)
        return fd;
    err_sys(err, errno, "watch the wall clock");
    close(fd);
    return -1;
}

int clock_step_wait(struct ctx *ctx, int fd, struct err *err)
{
    uint64_t times;

    for (;;) {
        if (loop_wait_fd(ctx, fd, POLLIN, WAIT_CLOCK_SET, err) < 0)
            return -1;
        if (read(fd, &times, sizeof(times)) < 0 && errno == ECANCELED)
            break;
    }
    /* The read with ECANCELED consumes the event. The timer would stay armed; arming it again is
     * cheap. */
    return arm(fd) < 0 ? err_sys(err, errno, "watch the wall clock") : 0;
}
