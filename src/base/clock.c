#include "base/clock.h"
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts); /* cannot fail for these clocks */
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t clock_mono(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t clock_wall(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint64_t clock_raw(void)
{
    return read_clock(CLOCK_MONOTONIC_RAW);
}

/* Days since 1970 to a date of the Gregorian calendar, counting years from March, so that the leap
 * day is a year's last. Not gmtime_r() and strftime(): linked statically, they bring 130 KB of time
 * zones and scanf into the guest's agent. */
static void civil_date(uint64_t days, unsigned *year, unsigned *month, unsigned *day)
{
    uint64_t since_0 = days + 719468;                           /* from 0000-03-01 */
    uint64_t era = since_0 / 146097, in_era = since_0 % 146097; /* 400 years */
    uint64_t y = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    uint64_t in_year = in_era - (365 * y + y / 4 - y / 100);
    uint64_t m = (5 * in_year + 2) / 153; /* 0 is March */

    *day = (unsigned)(in_year - (153 * m + 2) / 5 + 1);
    *month = (unsigned)(m < 10 ? m + 3 : m - 9);
    *year = (unsigned)(y + era * 400 + (*month <= 2));
}

void clock_rfc3339(uint64_t wall_ns, char buf[CLOCK_RFC3339_SIZE])
{
    uint64_t s = wall_ns / NS_PER_S;
    unsigned year, month, day, of_day = (unsigned)(s % 86400);

    civil_date(s / 86400, &year, &month, &day);
    /* The remainders change nothing; they show the compiler that it fits. */
    snprintf(buf, CLOCK_RFC3339_SIZE, "%04u-%02u-%02uT%02u:%02u:%02u.%09" PRIu64 "Z", year % 10000,
             month % 100, day % 100, of_day / 3600, of_day / 60 % 60, of_day % 60,
             wall_ns % NS_PER_S);
}

void clock_human(uint64_t ns, char buf[CLOCK_HUMAN_SIZE])
{
    /* Cut, not rounded: "1.00s" never shows for what took less than a second. */
    if (ns >= 100 * NS_PER_S)
        snprintf(buf, CLOCK_HUMAN_SIZE, "%" PRIu64 "s", ns / NS_PER_S);
    else if (ns >= NS_PER_S)
        snprintf(buf, CLOCK_HUMAN_SIZE, "%" PRIu64 ".%02" PRIu64 "s", ns / NS_PER_S,
                 ns % NS_PER_S / (10 * NS_PER_MS));
    else if (ns >= 10 * NS_PER_MS)
        snprintf(buf, CLOCK_HUMAN_SIZE, "%" PRIu64 "ms", ns / NS_PER_MS);
    else if (ns >= NS_PER_MS)
        snprintf(buf, CLOCK_HUMAN_SIZE, "%" PRIu64 ".%" PRIu64 "ms", ns / NS_PER_MS,
                 ns % NS_PER_MS / (100 * NS_PER_US));
    else if (ns >= NS_PER_US || ns == 0)
        snprintf(buf, CLOCK_HUMAN_SIZE, "%" PRIu64 "us", ns / NS_PER_US);
    else
        snprintf(buf, CLOCK_HUMAN_SIZE, "%" PRIu64 "ns", ns);
}
