/* cli.h - what the programs of the simulation share: the command line, the loop over seeds, the
 * trace, the report in TAP. A program says how one schedule is run; everything it decides comes
 * from the seed, so that a seed can be replayed. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#define CLI_FIGURES 6

struct cli_result {
    char broken[768];                   /* the first law that was broken; "" if all hold */
    unsigned long figures[CLI_FIGURES]; /* what happened, as cli_program names it */
};

struct cli_program {
    const char *name;
    unsigned n_classes; /* the class of a schedule is seed % n_classes */
    const char *const *classes;
    const char *figures[CLI_FIGURES]; /* "calls" …; NULL: no more */
    /* Once, in a directory of ours alone; may be NULL. 0 or -errno. */
    int (*prepare)(const char *dir);
    void (*run)(uint64_t seed, const char *dir, struct cli_result *ret);
    /* The class in which nothing happens by a timer of the shim's, so that upgrades do not show in
     * the trace; 0: there is none. */
    unsigned timeless;
};
/* The whole program; its exit status. */
int cli_main(int argc, char **argv, const struct cli_program *p);

/* One line of the trace, if somebody looks at it. now: virtual. Nothing that differs between two
 * runs of a seed may be in it. */
void cli_trace(uint64_t now, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
bool cli_tracing(void);
/* --upgrades: in each schedule, another program takes over the shim now and then. */
bool cli_upgrades(void);
/* A schedule whose trace is compared with that of its twin, in which each upgrade ends before the
 * exec: an upgrade must not shift what is decided by chance. */
bool cli_has_twin(void);
bool cli_is_twin(void);
/* A law is broken: the first one counts. */
void cli_broken(struct cli_result *r, uint64_t now, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));
