/* cli.c - runs schedules and prints TAP, one line for each class of faults.
 *     sim_X [--seeds A..B]       all of them; a failing one is named
 *     sim_X --seed N [-v]        one, with a trace of its steps
 *     --first                    stop at the first that fails
 *     --upgrades                 with upgrades of the shim, as cli.h says */
#include "cli.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_LAST 10000
#define SEED_SECONDS 20 /* of real time: a schedule that does not end is reported */
#define SHOWN 3         /* failures shown of a class */
#define CLASSES_MAX 32
#define BLOCK 1000
#define BROKEN_STATUS 3
#define TWINS 100
#define TIME_LEN 16 /* of a line: "#     1.000000  " */
#define TWICE 24    /* schedules that are run again, to compare their traces */

static volatile sig_atomic_t current_hi, current_lo;

/* --- the trace --- */

static struct sbuf trace; /* of the schedule that runs, if it is kept */
static bool printing, keeping;
static bool upgrades, has_twin, is_twin;

bool cli_upgrades(void)
{
    return upgrades;
}

bool cli_has_twin(void)
{
    return has_twin;
}

bool cli_is_twin(void)
{
    return is_twin;
}

/* Asked by LeakSanitizer: what only the stacks of a replaced program knew cannot be freed. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return upgrades;
}

bool cli_tracing(void)
{
    return printing || keeping;
}

void cli_trace(uint64_t now, const char *fmt, va_list ap)
{
    if (!cli_tracing())
        return;

    AUTO_FREE char *text = str_vformat(fmt, ap);
    AUTO_FREE char *line = str_format("# %5llu.%06llu  %s\n", (unsigned long long)(now / NS_PER_S),
                                      (unsigned long long)(now % NS_PER_S / NS_PER_US), text);

    if (keeping)
        sbuf_adds(&trace, line);
    if (printing)
        fputs(line, stdout);
}

static void say_broken(uint64_t now, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_trace(now, fmt, ap);
    va_end(ap);
}

void cli_broken(struct cli_result *r, uint64_t now, const char *fmt, va_list ap)
{
    if (r->broken[0])
        return;
    vsnprintf(r->broken, sizeof(r->broken), fmt, ap);
    say_broken(now, "BROKEN: %s", r->broken);
}

/* --- schedules --- */

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

struct totals {
    unsigned schedules, broken;
    unsigned long figures[CLI_FIGURES];
};

struct annotations {
    uint64_t first, last;
    bool verbose, first_only;
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

static void run_watched(const struct cli_program *p, uint64_t seed, const char *dir,
                        struct cli_result *r)
{
    *r = (struct cli_result){ 0 };
    current_hi = (sig_atomic_t)(seed >> 31);
    current_lo = (sig_atomic_t)(seed & 0x7fffffff);
    alarm(SEED_SECONDS);
    p->run(seed, dir, r);
    alarm(0);
}

/* True if a law is broken. */
static bool run_one(const struct cli_program *p, uint64_t seed, const char *dir,
                    struct totals *classes)
{
    struct totals *t = &classes[seed % p->n_classes];
    struct cli_result r;

    run_watched(p, seed, dir, &r);
    t->schedules++;
    for (int i = 0; i < CLI_FIGURES; i++)
        t->figures[i] += r.figures[i];
    if (!r.broken[0])
        return false;
    if (t->broken++ < SHOWN) {
        AUTO_FREE char *text = str_dup(r.broken);

        printf("# seed %llu: %s\n", (unsigned long long)seed, strtok(text, "\n"));
        for (char *line; (line = strtok(NULL, "\n"));)
            printf("#     %s\n", line);
        printf("# replay: %s%s --seed %llu -v\n", p->name, upgrades ? " --upgrades" : "",
               (unsigned long long)seed);
    }
    return true;
}

/* What differs between the traces of two runs is decided by something else than the seed. */
static bool same_twice(const struct cli_program *p, uint64_t seed, const char *dir)
{
    AUTO_FREE char *before = NULL;
    struct cli_result r;
    size_t at = 0, line = 0;

    keeping = true;
    run_watched(p, seed, dir, &r);
    before = sbuf_take(&trace);
    run_watched(p, seed, dir, &r);
    keeping = false;

    AUTO_FREE char *after = sbuf_take(&trace);

    if (str_eq(before, after))
        return true;
    for (; before[at] && before[at] == after[at]; at++)
        if (before[at] == '\n')
            line = at + 1;
    printf("# seed %llu is not the same twice:\n", (unsigned long long)seed);
    printf("%.*s\n%.*s\n", (int)strcspn(before + line, "\n"), before + line,
           (int)strcspn(after + line, "\n"), after + line);
    return false;
}

static unsigned count_unsteady(const struct cli_program *p, const struct annotations *o,
                               const char *dir, unsigned *ret_tried)
{
    uint64_t n = o->last - o->first + 1, step = n > TWICE ? n / TWICE : 1;
    unsigned unsteady = 0;

    /* An odd step meets all classes. */
    step += step % 2 == 0;
    for (uint64_t seed = o->first; seed <= o->last && *ret_tried < TWICE; seed += step) {
        ++*ret_tried;
        unsteady += !same_twice(p, seed, dir);
    }
    return unsteady;
}

/* --- twins --- */

static int by_time_and_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

/* The look at the guest's clock is a timer that begins again: if it is under way when the VM ends,
 * the VM is terminated once more. */
static bool is_of_upgrade(const char *text)
{
    static const char *const its[] = { "upgraded", "no upgrade", "vmm: terminate" };

    for (size_t i = 0; i < ARRAY_LEN(its); i++)
        if (str_starts(text, its[i]))
            return true;
    return false;
}

/* Sorted: what happens at the same time has no order, since the next program does more then.
 * Without the lines about the upgrades themselves. *broken: a law was broken; else it stays. */
static char *timeline_of(const struct cli_program *p, uint64_t seed, const char *dir, bool twin,
                         bool *broken)
{
    AUTO(strv_release) struct strv lines = { 0 };
    struct cli_result r;

    is_twin = twin;
    run_watched(p, seed, dir, &r);
    is_twin = false;
    if (r.broken[0]) {
        printf("# seed %llu, one of twins: %.*s\n", (unsigned long long)seed,
               (int)strcspn(r.broken, "\n"), r.broken);
        *broken = true;
    }

    AUTO_FREE char *text = sbuf_take(&trace);
    struct sbuf out = { 0 };

    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!is_of_upgrade(line + TIME_LEN))
            strv_add(&lines, line);
    if (lines.n > 0)
        qsort(lines.v, lines.n, sizeof(*lines.v), by_time_and_text);
    for (size_t i = 0; i < lines.n; i++)
        sbuf_addf(&out, "%s\n", lines.v[i]);
    return sbuf_take(&out);
}

static bool are_twins_alike(const struct cli_program *p, uint64_t seed, const char *dir)
{
    bool broken = false;

    has_twin = keeping = true;

    AUTO_FREE char *one = timeline_of(p, seed, dir, false, &broken),
                   *two = timeline_of(p, seed, dir, true, &broken);
    size_t at = 0, line = 0;

    has_twin = keeping = false;
    if (str_eq(one, two))
        return !broken;
    for (; one[at] && one[at] == two[at]; at++)
        if (one[at] == '\n')
            line = at + 1;
    printf("# seed %llu differs with upgrades, and without:\n", (unsigned long long)seed);
    printf("%.*s\n%.*s\n", (int)strcspn(one + line, "\n"), one + line,
           (int)strcspn(two + line, "\n"), two + line);
    return false;
}

/* Prints the test. */
static bool report_twins(const struct cli_program *p, const struct annotations *o, const char *dir,
                         unsigned number)
{
    unsigned tried = 0, differ = 0;

    for (uint64_t seed = o->first; seed <= o->last && tried < TWINS; seed++) {
        if (seed % p->n_classes != p->timeless)
            continue;
        tried++;
        differ += !are_twins_alike(p, seed, dir);
    }
    printf("%sok %u - upgrades do not show in the trace of the class %s: %u schedules\n",
           differ ? "not " : "", number, p->classes[p->timeless], tried);
    return differ == 0;
}

/* --- the report --- */

static void report_class(const struct cli_program *p, unsigned i, const struct totals *t)
{
    if (t->schedules == 0) {
        printf("ok %u - %s # SKIP no schedule of this class asked for\n", i + 1, p->classes[i]);
        return;
    }
    printf("%sok %u - %s: %u schedules", t->broken ? "not " : "", i + 1, p->classes[i],
           t->schedules);
    for (int k = 0; k < CLI_FIGURES && p->figures[k]; k++)
        printf(", %lu %s", t->figures[k], p->figures[k]);
    putchar('\n');
}

static int report(const struct cli_program *p, const struct totals *classes, unsigned unsteady,
                  unsigned tried)
{
    struct totals all = { 0 };

    printf("1..%u\n", p->n_classes + 1 + (upgrades && p->timeless > 0));
    for (unsigned i = 0; i < p->n_classes; i++) {
        report_class(p, i, &classes[i]);
        all.schedules += classes[i].schedules;
        all.broken += classes[i].broken;
        for (int k = 0; k < CLI_FIGURES; k++)
            all.figures[k] += classes[i].figures[k];
    }
    printf("%sok %u - a seed gives the same trace twice%s: %u seeds\n", unsteady ? "not " : "",
           p->n_classes + 1, tried ? "" : " # SKIP not asked for", tried);
    printf("# %u schedules, %u broken", all.schedules, all.broken);
    for (int k = 0; k < CLI_FIGURES && p->figures[k]; k++)
        printf(", %lu %s", all.figures[k], p->figures[k]);
    putchar('\n');
    return all.broken > 0 || unsteady > 0;
}

static int parse(int argc, char **argv, struct annotations *o)
{
    for (int i = 1; i < argc; i++) {
        if (str_eq(argv[i], "-v"))
            o->verbose = true;
        else if (str_eq(argv[i], "--first"))
            o->first_only = true;
        else if (str_eq(argv[i], "--upgrades"))
            upgrades = true;
        else if ((str_eq(argv[i], "--seeds") || str_eq(argv[i], "--seed")) && i + 1 < argc &&
                 parse_range(argv[i + 1], &o->first, &o->last) == 0)
            i++;
        else
            return -EINVAL;
    }
    return 0;
}

/* --- many --- */

static bool run_block(const struct cli_program *p, const struct annotations *o, const char *dir,
                      struct totals *classes)
{
    bool broken = false;

    for (uint64_t seed = o->first; seed <= o->last && !(o->first_only && broken); seed++)
        broken |= run_one(p, seed, dir, classes);
    return broken;
}

/* What a program leaves in memory when it is replaced is not freed: so each block is a process. */
static bool run_blocks(const struct cli_program *p, const struct annotations *o, const char *dir,
                       struct totals *classes)
{
    size_t bytes = CLASSES_MAX * sizeof(*classes);
    struct totals *all =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool broken = false;

    for (uint64_t first = o->first; first <= o->last && !(o->first_only && broken);
         first += BLOCK) {
        struct annotations block = *o;
        int status = 0;

        block.first = first;
        block.last = first + BLOCK - 1 < o->last ? first + BLOCK - 1 : o->last;
        fflush(stdout);

        pid_t pid = fork();

        if (pid == 0)
            exit(run_block(p, &block, dir, all) ? BROKEN_STATUS : 0);
        if (pid < 0 || waitpid(pid, &status, 0) < 0 ||
            (status != 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != BROKEN_STATUS)))
            exit(1); /* it has said why */
        broken |= status != 0;
    }
    memcpy(classes, all, bytes);
    (void)munmap(all, bytes);
    return broken;
}

int cli_main(int argc, char **argv, const struct cli_program *p)
{
    struct annotations o = { .first = 1, .last = DEFAULT_LAST };
    struct totals classes[CLASSES_MAX] = { 0 };
    unsigned unsteady = 0, tried = 0;
    bool broken = false;
    char dir[64];

    if (parse(argc, argv, &o) < 0 || p->n_classes > CLASSES_MAX) {
        fprintf(stderr,
                "usage: %s [--seeds A..B | --seed N] [--first] [--upgrades] [-v]   "
                "(seeds from 1)\n",
                p->name);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printing = o.verbose;
    log_init(STDERR_FILENO, o.verbose ? LOG_DEBUG : LOG_OFF, LOG_LOGFMT);
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    signal(SIGALRM, on_crash);
    /* Ledgers are small and many: memory if there is some, as in real life. A caller that expects a
     * crash sets SIM_DIR and cleans up. */
    snprintf(dir, sizeof(dir), "%.40s/lcow-sim.XXXXXX",
             getenv("SIM_DIR")          ? getenv("SIM_DIR")
             : access("/dev/shm", W_OK) ? "/tmp"
                                        : "/dev/shm");
    if (!mkdtemp(dir) || (p->prepare && p->prepare(dir) < 0)) {
        fprintf(stderr, "%s: %s: %m\n", p->name, dir);
        return 2;
    }
    broken = upgrades && o.last - o.first >= BLOCK ? run_blocks(p, &o, dir, classes)
                                                   : run_block(p, &o, dir, classes);
    if (!broken && !o.verbose)
        unsteady = count_unsteady(p, &o, dir, &tried);

    int failed = report(p, classes, unsteady, tried);

    if (upgrades && p->timeless > 0 && !report_twins(p, &o, dir, p->n_classes + 2))
        failed = 1;
    (void)dir_remove(dir);
    return failed;
}
