/* slow_clock.c - preloaded into the QEMU of an emulated host: its monotonic clock runs LCOW_SLOWER
 * times slower, and so do all clocks and timers of the host and of the VMs in it. Only QEMU's main
 * loop wakes more often than it must. The wall clock is read once, when the host starts. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define NS_PER_S 1000000000

static int (*real)(clockid_t, struct timespec *);
static int64_t begin, slower;

static int64_t ns(const struct timespec *t)
{
    return t->tv_sec * (int64_t)NS_PER_S + t->tv_nsec;
}

__attribute__((constructor)) static void set_up(void)
{
    struct timespec now;

    if (real)
        return;
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    slower = atoi(getenv("LCOW_SLOWER"));
    real(CLOCK_MONOTONIC, &now);
    begin = ns(&now);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    set_up(); /* constructors of other libraries may come first */

    int r = real(clock, t);

    if (r == 0 && clock == CLOCK_MONOTONIC) {
        int64_t now = begin + (ns(t) - begin) / slower;

        *t = (struct timespec){ now / NS_PER_S, now % NS_PER_S };
    }
    return r;
}
