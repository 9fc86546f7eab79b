/* clock.h - time. Nanoseconds everywhere. Code above base asks loop_now() and loop_wall(), which
 * the simulator replaces; these are the real ones. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

uint64_t clock_mono(void); /* CLOCK_MONOTONIC */
uint64_t clock_wall(void); /* CLOCK_REALTIME, since 1970 */
/* CLOCK_MONOTONIC_RAW: at the rate the kernel found at boot, which NTP does not adjust. */
uint64_t clock_raw(void);

/* RFC 3339 in UTC with nanoseconds, as the log stream wants it. */
#define CLOCK_RFC3339_SIZE 40
void clock_rfc3339(uint64_t wall_ns, char buf[CLOCK_RFC3339_SIZE]);
/* "1.23s", "45ms", "120us". */
#define CLOCK_HUMAN_SIZE 24
void clock_human(uint64_t ns, char buf[CLOCK_HUMAN_SIZE]);
