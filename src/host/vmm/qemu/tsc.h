/* tsc.h - the frequency of the host's TSC, which an emulated guest sees as its own. A guest that
 * measured it by itself on a busy host would be wrong by any factor. So the host measures it
 * against CLOCK_MONOTONIC_RAW and remembers it for as long as the host is up. Nothing here depends
 * on what the kernel's log still has. Never waits; a first measurement spins for about 20 ms. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* What a template was calibrated for and what the host has now may differ by this much: two
 * measurements do, by less. */
#define TSC_TOLERANCE_PPM 100

/* Two clocks that run beside each other; replaced by tests. */
struct tsc_clocks {
    uint64_t (*ticks)(void *arg);
    uint64_t (*ns)(void *arg);
    void *arg;
};

struct tsc_env {
    const char *clocksource; /* /sys/devices/system/clocksource/… */
    const char *boot_id;     /* /proc/sys/kernel/random/boot_id */
    const char *state_file;  /* <run root>/tsc */
    struct tsc_clocks clocks;
};
/* The real ones; state_file is borrowed. */
struct tsc_env tsc_env_of_host(const char *state_file);

/* In kHz, 0: the host's own clock does not trust the TSC, or it cannot be measured. Then a guest
 * must not use it. */
uint32_t tsc_khz(const struct tsc_env *env);
/* The next tsc_khz measures again: a guest that was given the frequency had a wrong clock. */
void tsc_forget(const struct tsc_env *env);
/* 0 if the two clocks cannot be compared to within 20 ppm. */
uint32_t tsc_measure(const struct tsc_clocks *c);
/* Whether a guest that was calibrated for one frequency runs right with the other. */
bool tsc_same(uint32_t khz, uint32_t other);
