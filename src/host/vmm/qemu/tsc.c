#include "host/vmm/qemu/tsc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "host/vmm/qemu/accel.h"

#include <string.h>
#include <unistd.h>
#include <x86intrin.h>

#define STATE_MAX 256
#define SYSFS_MAX 65536           /* a file there is as long as a page, by its own account */
#define TRIES 32                  /* for one look at both clocks */
#define SHORTEST (20 * NS_PER_MS) /* between the first look and the second */
#define LONGEST (640 * NS_PER_MS)
#define BOUND_PPM 20
#define KHZ_MIN UINT64_C(100000)
#define KHZ_MAX UINT64_C(100000000)

static uint64_t read_ticks(void *arg)
{
    unsigned cpu;

    (void)arg;
    return __rdtscp(&cpu); /* not before what precedes it */
}

static uint64_t read_raw(void *arg)
{
    (void)arg;
    return clock_raw();
}

struct tsc_env tsc_env_of_host(const char *state_file)
{
    return (struct tsc_env){
        .clocksource = "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        .boot_id = "/proc/sys/kernel/random/boot_id",
        .state_file = state_file,
        .clocks = { read_ticks, read_raw, NULL },
    };
}

static bool trusted(const char *clocksource)
{
    static const char *const by_tsc[] = { "tsc", "kvm-clock", "hyperv_clocksource_tsc_page" };
    AUTO_FREE char *now = file_text(SYSFS_MAX, "%s", clocksource);

    if (now)
        now[strcspn(now, "\n")] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(by_tsc); i++)
        if (str_eq(now, by_tsc[i]))
            return true;
    return false;
}

/* --- measuring --- */

/* The clock showed ns when the counter was somewhere between low and high. */
struct look {
    uint64_t low, high, ns;
};

/* The closest of several: the scheduler may take the processor away in the middle of one. */
static struct look look(const struct tsc_clocks *c)
{
    struct look best = { 0, UINT64_MAX, 0 };

    for (int i = 0; i < TRIES; i++) {
        struct look l = { .low = c->ticks(c->arg) };

        l.ns = c->ns(c->arg);
        l.high = c->ticks(c->arg);
        if (l.high >= l.low && l.high - l.low < best.high - best.low)
            best = l;
    }
    return best;
}

uint32_t tsc_measure(const struct tsc_clocks *c)
{
    const struct look first = look(c);

    if (first.high == UINT64_MAX)
        return 0;
    for (uint64_t span = SHORTEST; span <= LONGEST; span *= 2) {
        while (c->ns(c->arg) - first.ns < span)
            ;
        struct look last = look(c);
        uint64_t ns = last.ns - first.ns, most = last.high - first.low,
                 error = (last.high - last.low) + (first.high - first.low);

        if (last.high == UINT64_MAX || ns == 0 || most <= error || most > UINT64_MAX / NS_PER_MS)
            return 0;
        uint64_t khz = (most - error / 2) * NS_PER_MS / ns;
        if (khz < KHZ_MIN || khz > KHZ_MAX)
            return 0;
        if (error <= most / (1000000 / BOUND_PPM))
            return (uint32_t)khz;
    }
    return 0;
}

/* --- remembering --- */

uint32_t tsc_khz(const struct tsc_env *env)
{
    AUTO_FREE char *begin = accel_line(env->boot_id, "tsc"),
                   *have = file_text(STATE_MAX, "%s", env->state_file), *line = NULL;
    const char *rest = accel_rest(have, begin);
    uint64_t khz = 0;

    if (!trusted(env->clocksource))
        return 0;
    if (rest && str_to_u64(rest, KHZ_MAX, &khz) == 0 && khz >= KHZ_MIN)
        return (uint32_t)khz;
    khz = tsc_measure(&env->clocks);
    if (khz && begin) {
        line = str_format("%s%llu\n", begin, (unsigned long long)khz);
        /* In place: half a line counts as none, and a crash leaves no file beside it. */
        (void)file_write(env->state_file, line, strlen(line), 0600);
    }
    return (uint32_t)khz;
}

void tsc_forget(const struct tsc_env *env)
{
    (void)unlink(env->state_file); /* not there: nothing was remembered */
}

bool tsc_same(uint32_t khz, uint32_t other)
{
    uint64_t less = khz < other ? khz : other, more = khz < other ? other : khz;

    return (more - less) * (1000000 / TSC_TOLERANCE_PPM) <= more;
}
