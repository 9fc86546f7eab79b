/* stages.h - when each part of the boot began and ended, for the host's timeline. Nanoseconds of
 * the guest's CLOCK_MONOTONIC. Each goes to the host as one line of its log:
 *     {"time":…,"level":"info","msg":"boot stage","stage":"mounts","start_ns":…,"end_ns":…,
 *      "boottime_ns":<now>}
 * whatever the log level is, since it is data. Never waits. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct err;
struct sbuf;

#define STAGES_MAX 16
#define STAGES_NAME 16

struct stages {
    struct {
        char name[STAGES_NAME];
        uint64_t start_ns, end_ns;
    } v[STAGES_MAX];
    size_t n;
};

/* Those beyond STAGES_MAX are left out. */
void stages_add(struct stages *s, const char *name, uint64_t start_ns, uint64_t end_ns);
/* "init=10-20,mounts=12-15", as PID 1 hands it over. ERR_INVALID leaves *s as it was. */
int stages_parse(struct stages *s, const char *text, struct err *err);
/* Appends the line of stage i. */
void stages_line(const struct stages *s, size_t i, uint64_t wall_ns, uint64_t now_ns,
                 struct sbuf *out);
