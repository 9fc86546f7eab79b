#include "host/vmm/qemu/tsc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#include <string.h>
#include <unistd.h>
#include <x86intrin.h>

#define STATE_MAX 256
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

/* The first line of a small file; caller frees. NULL: it cannot be read. */
static char *first_line(const char *path)
{
    char *text = NULL;
    size_t len;

    if (file_read_all(path, 65536, &text, &len) < 0)
        return NULL;
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static bool trusted(const char *clocksource)
{
    static const char *const by_tsc[] = { "tsc", "kvm-clock", "hyperv_clocksource_tsc_page" };
    AUTO_FREE char *now = first_line(clocksource);

    for (size_t i = 0; now && i < ARRAY_LEN(by_tsc); i++)
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

/* "<boot id> tsc <kHz>"; what an earlier boot of the host measured does not count. */
static uint32_t remembered(const struct tsc_env *env, const char *boot_id)
{
    AUTO_FREE char *have = NULL, *begin = str_format("%s tsc ", boot_id);
    uint64_t khz = 0;
    size_t len;

    if (file_read_all(env->state_file, STATE_MAX, &have, &len) < 0 || !str_starts(have, begin) ||
        have[len - 1] != '\n')
        return 0;
    have[len - 1] = '\0';
    if (str_to_u64(have + strlen(begin), KHZ_MAX, &khz) < 0 || khz < KHZ_MIN)
        return 0;
    return (uint32_t)khz;
}

uint32_t tsc_khz(const struct tsc_env *env)
{
    AUTO_FREE char *boot_id = first_line(env->boot_id), *line = NULL;
    uint32_t khz = 0;

    if (!trusted(env->clocksource))
        return 0;
    if (boot_id)
        khz = remembered(env, boot_id);
    if (khz)
        return khz;
    khz = tsc_measure(&env->clocks);
    if (!khz || !boot_id)
        return khz;
    line = str_format("%s tsc %u\n", boot_id, khz);
    /* In place: half a line counts as none, and a crash leaves no file beside it. */
    (void)file_write(env->state_file, line, strlen(line), 0600);
    return khz;
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
