/* accel.h - hardware virtualization or emulation? KVM counts only if the CPU shows vmx or svm
 * (otherwise its device is never opened: on some hosts it answers and then hangs an ordinary
 * kernel) and a first boot has got past the kernel's first line. That proof is remembered for as
 * long as the host is up, and so is a failure of KVM itself with its reason; no other failure of a
 * first boot is. Never waits; everything it looks at can be replaced by tests. */
#pragma once
#include "host/vmm/vmm.h"

struct err;

struct accel_env {
    const char *cpuinfo;    /* /proc/cpuinfo */
    const char *kvm;        /* /dev/kvm */
    const char *boot_id;    /* /proc/sys/kernel/random/boot_id */
    const char *state_file; /* <run root>/accel */
};
/* The real ones; state_file is borrowed. */
struct accel_env accel_env_of_host(const char *state_file);

enum accel_state {
    ACCEL_NO_CPU,    /* neither vmx nor svm */
    ACCEL_NO_DEVICE, /* no /dev/kvm */
    ACCEL_UNPROVEN,
    ACCEL_WORKS,
    ACCEL_BROKEN, /* KVM itself failed in a first boot */
};
struct accel_failure {
    char reason[160];
    uint64_t at_s; /* seconds since 1970 */
};
/* *ret (may be NULL) is written if KVM is broken. */
enum accel_state accel_look(const struct accel_env *env, struct accel_failure *ret);
/* For people, with the remedy. Caller frees. */
char *accel_describe(const struct accel_env *env, enum accel_state *ret);

struct accel_choice {
    bool emulated;
    bool prove; /* this boot is the first one with KVM: wait for the kernel's first line */
};
/* ERR_STATE, naming the setting, if only emulation is possible and that is not allowed. */
int accel_choose(const struct accel_env *env, enum vm_accel want, bool allow_emulation,
                 struct accel_choice *ret, struct err *err);
/* After the proof. Best effort: a lost answer is found again. That it works always counts; a
 * failure does not replace "works", which another VM has proven meanwhile. */
void accel_remember_works(const struct accel_env *env);
void accel_remember_failure(const struct accel_env *env, const struct accel_failure *f);
/* The next boot is the first one again. 0 or -errno. */
int accel_forget(const struct accel_env *env);

/* --- the TSC --- */

/* The frequency of the host's TSC, which an emulated guest sees as its own. A guest that
 * measured it by itself on a busy host would be wrong by any factor. So the host measures it
 * against CLOCK_MONOTONIC_RAW and remembers it for as long as the host is up. Nothing here depends
 * on what the kernel's log still has. Never waits; a first measurement spins for about 20 ms. */

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
