#include "host/vmm/qemu/accel.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define CPUINFO_MAX (8u << 20)
#define STATE_MAX 512
#define SYSFS_MAX 65536           /* a file there is as long as a page, by its own account */
#define TRIES 32                  /* for one look at both clocks */
#define SHORTEST (20 * NS_PER_MS) /* between the first look and the second */
#define LONGEST (640 * NS_PER_MS)
#define BOUND_PPM 20
#define KHZ_MIN UINT64_C(100000)
#define KHZ_MAX UINT64_C(100000000)

struct accel_env accel_env_of_host(const char *state_file)
{
    return (struct accel_env){ .cpuinfo = "/proc/cpuinfo",
                               .kvm = "/dev/kvm",
                               .boot_id = "/proc/sys/kernel/random/boot_id",
                               .state_file = state_file };
}

/* Whether one of the words stands in the first "flags" line. */
static bool cpu_virtualizes(const char *cpuinfo)
{
    AUTO_FREE char *text = file_text(CPUINFO_MAX, "%s", cpuinfo);

    if (!text)
        return false;
    char *flags = str_starts(text, "flags") ? text : strstr(text, "\nflags");
    if (!flags)
        return false;
    flags += strcspn(flags, ":");
    flags[strcspn(flags, "\n")] = '\0';
    for (char *save = NULL, *word = strtok_r(flags, ": \t", &save); word;
         word = strtok_r(NULL, ": \t", &save))
        if (str_eq(word, "vmx") || str_eq(word, "svm"))
            return true;
    return false;
}

/* What is remembered for as long as the host is up is one line, "<boot id> <word> …". line_begin:
 * how it begins; caller frees; NULL if the boot id is unknown. line_rest: what stands behind that
 * (borrows), NULL if text is of another boot, or not one whole line. Both arguments may be NULL. */
static char *line_begin(const char *boot_id, const char *word)
{
    AUTO_FREE char *id = file_text(STATE_MAX, "%s", boot_id);

    if (!id)
        return NULL;
    id[strcspn(id, "\n")] = '\0';
    return str_format("%s %s ", id, word);
}

static const char *line_rest(char *text, const char *begin)
{
    char *end = text ? strchr(text, '\n') : NULL;

    if (!begin || !end || end[1] || !str_starts(text, begin))
        return NULL;
    *end = '\0';
    return text + strlen(begin);
}

/* "<boot id> kvm works\n" or "<boot id> kvm broken <seconds> <reason>\n". */
static enum accel_state parse(const struct accel_env *env, char *line, struct accel_failure *ret)
{
    AUTO_FREE char *begin = line_begin(env->boot_id, "kvm");
    const char *rest = line_rest(line, begin);
    struct accel_failure f = { 0 };

    if (!rest)
        return ACCEL_UNPROVEN;
    if (str_eq(rest, "works"))
        return ACCEL_WORKS;
    if (sscanf(rest, "broken %" SCNu64 " %159[^\n]", &f.at_s, f.reason) != 2)
        return ACCEL_UNPROVEN;
    if (ret)
        *ret = f;
    return ACCEL_BROKEN;
}

enum accel_state accel_look(const struct accel_env *env, struct accel_failure *ret)
{
    if (!cpu_virtualizes(env->cpuinfo))
        return ACCEL_NO_CPU;
    if (access(env->kvm, F_OK) < 0)
        return ACCEL_NO_DEVICE;
    AUTO_FREE char *have = file_text(STATE_MAX, "%s", env->state_file);
    return parse(env, have, ret);
}

/* In place, so that a crash leaves no file beside it. The lock is held for these few calls only. */
static int write_state(const struct accel_env *env, const char *line, bool unless_works)
{
    AUTO_FD int fd = open(env->state_file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    char have[STATE_MAX + 1];
    size_t len = strlen(line);

    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        return -errno;
    ssize_t n = pread(fd, have, STATE_MAX, 0);
    if (n < 0)
        return -errno;
    have[n] = '\0';
    if (unless_works && parse(env, have, NULL) == ACCEL_WORKS)
        return 0;
    return pwrite(fd, line, len, 0) != (ssize_t)len || ftruncate(fd, (off_t)len) < 0 ? -errno : 0;
}

static void remember(const struct accel_env *env, const char *what, bool unless_works)
{
    AUTO_FREE char *begin = line_begin(env->boot_id, "kvm"),
                   *line = begin ? str_format("%s%s\n", begin, what) : NULL;

    if (line)
        (void)write_state(env, line, unless_works); /* lost: found again */
}

void accel_remember_works(const struct accel_env *env)
{
    remember(env, "works", false);
}

void accel_remember_failure(const struct accel_env *env, const struct accel_failure *f)
{
    AUTO_FREE char *reason = str_printable(f->reason),
                   *what = str_format("broken %llu %s", (unsigned long long)f->at_s, reason);

    remember(env, what, true);
}

int accel_forget(const struct accel_env *env)
{
    return access(env->state_file, F_OK) < 0 ? 0 : write_state(env, "", false);
}

static const char *const texts[] = {
    [ACCEL_NO_CPU] =
        ("the CPU shows neither vmx nor svm (turn virtualization on in the firmware, or "
         "nested virtualization if this is a VM)"),
    [ACCEL_NO_DEVICE] = "there is no /dev/kvm (modprobe kvm_intel or kvm_amd)",
    [ACCEL_UNPROVEN] = "KVM has not been tried since the host started",
    [ACCEL_WORKS] = "KVM works",
};

char *accel_describe(const struct accel_env *env, enum accel_state *ret)
{
    struct accel_failure f = { 0 };
    char when[32] = "?";
    struct tm tm;

    *ret = accel_look(env, &f);
    if (*ret != ACCEL_BROKEN)
        return str_dup(texts[*ret]);
    time_t at = (time_t)f.at_s;
    if (gmtime_r(&at, &tm))
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
    return str_format("KVM failed at %s: %s (lcow doctor --retest tries it again)", when, f.reason);
}

int accel_choose(const struct accel_env *env, enum vm_accel want, bool allow_emulation,
                 struct accel_choice *ret, struct err *err)
{
    enum accel_state s = ACCEL_BROKEN;
    enum reason reason;
    AUTO_FREE char *why = want == VM_ACCEL_TCG ? str_dup("emulation is requested but not allowed")
                                               : accel_describe(env, &s);

    if (s == ACCEL_WORKS || s == ACCEL_UNPROVEN) {
        *ret = (struct accel_choice){ .emulated = false, .prove = s == ACCEL_UNPROVEN };
        return 0;
    }
    reason = s == ACCEL_BROKEN && want != VM_ACCEL_TCG ? REASON_KVM_BROKEN : REASON_NO_KVM;
    if (want == VM_ACCEL_KVM)
        return err_because(err, reason, ERR_STATE, "hardware virtualization is required, but %s",
                           why);
    if (!allow_emulation)
        return err_because(err, reason, ERR_STATE,
                           "%s; software emulation is slow and not a security boundary; to allow "
                           "it, set 'allow_emulation = true' in /etc/lcow/lcow.conf or give "
                           "--allow-emulation",
                           why);
    *ret = (struct accel_choice){ .emulated = true };
    return 0;
}

/* --- the TSC of an emulated guest --- */

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

uint32_t tsc_khz(const struct tsc_env *env)
{
    AUTO_FREE char *begin = line_begin(env->boot_id, "tsc"),
                   *have = file_text(STATE_MAX, "%s", env->state_file), *line = NULL;
    const char *rest = line_rest(have, begin);
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
