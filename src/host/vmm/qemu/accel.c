#include "host/vmm/qemu/accel.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define CPUINFO_MAX (8u << 20)
#define STATE_MAX 512

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
    AUTO_FREE char *text = NULL;
    size_t len;

    if (file_read_all(cpuinfo, CPUINFO_MAX, &text, &len) < 0)
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

/* "<boot id> kvm works\n" or "<boot id> kvm broken <seconds> <reason>\n"; the answer of an earlier
 * boot of the host does not count, nor does half a line. Caller frees; NULL if the id is unknown.
 */
static char *line_start(const struct accel_env *env, const char *word)
{
    AUTO_FREE char *id = NULL;
    size_t len;

    if (file_read_all(env->boot_id, STATE_MAX, &id, &len) < 0)
        return NULL;
    id[strcspn(id, "\n")] = '\0';
    return str_format("%s kvm %s", id, word);
}

static enum accel_state parse(const struct accel_env *env, char *line, struct accel_failure *ret)
{
    AUTO_FREE char *works = line_start(env, "works\n"), *broken = line_start(env, "broken ");
    char *end = strchr(line, '\n'), *at = NULL;
    uint64_t at_s = 0;

    if (!works || !broken || !end || end[1])
        return ACCEL_UNPROVEN;
    if (str_eq(line, works))
        return ACCEL_WORKS;
    if (!str_starts(line, broken))
        return ACCEL_UNPROVEN;
    *end = '\0';
    at = line + strlen(broken);
    char *reason = at + strcspn(at, " ");
    if (!*reason)
        return ACCEL_UNPROVEN;
    *reason++ = '\0';
    if (!*reason || str_to_u64(at, UINT64_MAX, &at_s) < 0)
        return ACCEL_UNPROVEN;
    if (ret) {
        ret->at_s = at_s;
        snprintf(ret->reason, sizeof(ret->reason), "%s", reason);
    }
    return ACCEL_BROKEN;
}

enum accel_state accel_look(const struct accel_env *env, struct accel_failure *ret)
{
    AUTO_FREE char *have = NULL;
    size_t len;

    if (!cpu_virtualizes(env->cpuinfo))
        return ACCEL_NO_CPU;
    if (access(env->kvm, F_OK) < 0)
        return ACCEL_NO_DEVICE;
    if (file_read_all(env->state_file, STATE_MAX, &have, &len) < 0)
        return ACCEL_UNPROVEN;
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

void accel_remember_works(const struct accel_env *env)
{
    AUTO_FREE char *line = line_start(env, "works\n");

    if (line)
        (void)write_state(env, line, false); /* lost: found again */
}

void accel_remember_failure(const struct accel_env *env, const struct accel_failure *f)
{
    AUTO_FREE char *start = line_start(env, "broken"), *reason = str_printable(f->reason);
    AUTO_FREE char *line =
        start ? str_format("%s %llu %s\n", start, (unsigned long long)f->at_s, reason) : NULL;

    if (line)
        (void)write_state(env, line, true); /* lost: found again */
}

int accel_forget(const struct accel_env *env)
{
    return access(env->state_file, F_OK) < 0 ? 0 : write_state(env, "", false);
}

char *accel_describe(const struct accel_env *env, enum accel_state *ret)
{
    struct accel_failure f = { 0 };
    char when[32] = "?";
    struct tm tm;

    *ret = accel_look(env, &f);
    switch (*ret) {
    case ACCEL_NO_CPU:
        return str_dup("the CPU shows neither vmx nor svm (turn virtualization on in the "
                       "firmware, or nested virtualization if this is a VM)");
    case ACCEL_NO_DEVICE:
        return str_dup("there is no /dev/kvm (modprobe kvm_intel or kvm_amd)");
    case ACCEL_UNPROVEN:
        return str_dup("KVM has not been tried since the host started");
    case ACCEL_WORKS:
        return str_dup("KVM works");
    case ACCEL_BROKEN:
        break;
    }
    time_t at = (time_t)f.at_s;
    if (gmtime_r(&at, &tm))
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
    return str_format("KVM failed at %s: %s (lcow doctor --retest tries it again)", when, f.reason);
}

int accel_choose(const struct accel_env *env, enum vm_accel want, bool allow_emulation,
                 struct accel_choice *ret, struct err *err)
{
    enum accel_state s = ACCEL_BROKEN;
    AUTO_FREE char *why = want == VM_ACCEL_TCG ? str_dup("emulation is asked for but not allowed")
                                               : accel_describe(env, &s);

    if (s == ACCEL_WORKS || s == ACCEL_UNPROVEN) {
        *ret = (struct accel_choice){ .emulated = false, .prove = s == ACCEL_UNPROVEN };
        return 0;
    }
    if (want == VM_ACCEL_KVM)
        return err_set(err, ERR_STATE, "hardware virtualization is asked for, but %s", why);
    if (!allow_emulation)
        return err_set(err, ERR_STATE,
                       "%s; software emulation is slow and no security boundary: if you want it, "
                       "set 'allow_emulation = true' in /etc/lcow/lcow.conf or give "
                       "--allow-emulation",
                       why);
    *ret = (struct accel_choice){ .emulated = true };
    return 0;
}
