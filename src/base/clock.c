#include "base/clock.h"
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts); /* cannot fail for these two clocks */
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

void clock_rfc3339(uint64_t wall_ns, char buf[CLOCK_RFC3339_SIZE])
{
    time_t s = (time_t)(wall_ns / NS_PER_S);
    char date[24];
    struct tm tm;

    gmtime_r(&s, &tm); /* 2^64 ns is the year 2554: no overflow */
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(buf, CLOCK_RFC3339_SIZE, "%s.%09" PRIu64 "Z", date, wall_ns % NS_PER_S);
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
