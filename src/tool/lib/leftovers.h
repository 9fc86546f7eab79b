/* leftovers.h - the VM directories below the run root: whose owner lives, whose is dead. Reads
 * only tmpfs files of ours; never waits. */
#pragma once
#include <stdbool.h>

struct err;

/* Calls fn for each <run_root>/<namespace>/<id>, sorted by name; name is "namespace/id". A
 * directory that cannot be judged is told with err set. fn's -1 ends the walk. A missing run root
 * has none. */
struct leftover {
    const char *name, *dir;
    bool alive;
    const struct err *err; /* NULL if judged */
};
int leftovers_walk(const char *run_root, int (*fn)(void *arg, const struct leftover *), void *arg,
                   struct err *err);
