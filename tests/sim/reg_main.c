/* reg_main.c - the program: runs schedules and prints TAP, one line for each class of faults.
 *     sim_registry [--seeds A..B]      all of them; a failing one is named
 *     sim_registry --seed N [-v]       one, with a trace of its steps
 *     --first                    stop at the first that fails */
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "reg.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIM_DEFAULT_LAST 10000
#define SIM_SEED_SECONDS 20 /* of real time: a schedule that does not end is told */
#define SIM_SHOWN 3         /* failures shown of a class */

static volatile sig_atomic_t current_hi, current_lo;

/* A crash or a schedule without end: say which seed, then go. */
static void on_crash(int signo)
{
    char text[96];
    uint64_t seed = (uint64_t)(unsigned)current_hi << 31 | (unsigned)current_lo;
    int n = snprintf(text, sizeof(text), "\nBail out! signal %d in seed %llu\n", signo,
                     (unsigned long long)seed);

    if (write(STDOUT_FILENO, text, (size_t)n) < 0)
        _exit(2);
    _exit(1);
}

static void watch(uint64_t seed)
{
    current_hi = (sig_atomic_t)(seed >> 31);
    current_lo = (sig_atomic_t)(seed & 0x7fffffff);
    alarm(SIM_SEED_SECONDS);
}

struct totals {
    unsigned schedules, broken;
    unsigned long calls, failed, exits, vms;
};

static int parse_range(const char *text, uint64_t *first, uint64_t *last)
{
    AUTO_FREE char *copy = str_dup(text);
    char *dots = strstr(copy, "..");

    if (dots)
        *dots = '\0';
    if (str_to_u64(copy, INT64_MAX, first) < 0 ||
        str_to_u64(dots ? dots + 2 : copy, INT64_MAX, last) < 0)
        return -EINVAL;
    return *first == 0 || *last < *first ? -EINVAL : 0;
}

/* True if a law is broken. */
static bool run_one(uint64_t seed, const char *dir, bool trace, struct totals *classes)
{
    struct totals *t = &classes[seed % REG_FAULT_COUNT];
    struct reg_result r;

    watch(seed);
    reg_run(seed, dir, trace, &r);
    alarm(0);
    t->schedules++;
    t->exits += r.exits;
    t->vms += r.vms;
    t->calls += r.calls;
    t->failed += r.failed;
    if (!r.broken[0])
        return false;
    if (t->broken++ < SIM_SHOWN) {
        AUTO_FREE char *text = str_dup(r.broken);

        printf("# seed %llu: %s\n", (unsigned long long)seed, strtok(text, "\n"));
        for (char *line; (line = strtok(NULL, "\n"));)
            printf("#     %s\n", line);
        printf("# replay: sim_registry --seed %llu -v\n", (unsigned long long)seed);
    }
    return true;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: sim_registry [--seeds A..B | --seed N] [--first] [-v]   (seeds from 1)\n");
    return 2;
}

static int report(const struct totals *classes)
{
    struct totals all = { 0 };

    printf("1..%d\n", REG_FAULT_COUNT);
    for (int i = 0; i < REG_FAULT_COUNT; i++) {
        const struct totals *t = &classes[i];

        if (t->schedules == 0) {
            printf("ok %d - %s # SKIP no schedule of this class asked for\n", i + 1,
                   reg_fault_name(i));
            continue;
        }
        printf("%sok %d - %s: %u schedules, %lu VMs, %lu exits, %lu calls, %lu of them failed\n",
               t->broken ? "not " : "", i + 1, reg_fault_name(i), t->schedules, t->vms, t->exits,
               t->calls, t->failed);
        all.schedules += t->schedules;
        all.broken += t->broken;
        all.calls += t->calls;
    }
    printf("# %u schedules, %lu calls, %u broken\n", all.schedules, all.calls, all.broken);
    return all.broken > 0;
}

int main(int argc, char **argv)
{
    struct totals classes[REG_FAULT_COUNT] = { 0 };
    uint64_t first = 1, last = SIM_DEFAULT_LAST;
    /* Ledgers are small and many: memory if there is some, as in real life. */
    char dir[64];
    bool trace = false, first_only = false, broken = false;

    for (int i = 1; i < argc; i++) {
        if (str_eq(argv[i], "-v"))
            trace = true;
        else if (str_eq(argv[i], "--first"))
            first_only = true;
        else if ((str_eq(argv[i], "--seeds") || str_eq(argv[i], "--seed")) && i + 1 < argc &&
                 parse_range(argv[i + 1], &first, &last) == 0)
            i++;
        else
            return usage();
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    log_init(STDERR_FILENO, trace ? LOG_DEBUG : LOG_OFF, LOG_LOGFMT);
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    signal(SIGALRM, on_crash);
    snprintf(dir, sizeof(dir), "%s/lcow-sim.XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(dir)) {
        fprintf(stderr, "sim_registry: %s: %m\n", dir);
        return 2;
    }
    AUTO_FREE char *spec = str_format("%s/config.json", dir);
    static const char text[] = "{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},"
                               "\"linux\":{\"namespaces\":[{\"type\":\"pid\"}]},\"mounts\":["
                               "{\"destination\":\"/d\",\"type\":\"bind\",\"source\":\"/tmp\","
                               "\"options\":[\"ro\"]}]}";

    if (file_write(spec, text, sizeof(text) - 1, 0600) < 0)
        return 2;
    for (uint64_t seed = first; seed <= last && !(first_only && broken); seed++)
        broken |= run_one(seed, dir, trace, classes);
    (void)dir_remove(dir);
    return report(classes);
}
