/* mountinfo.h - a line of /proc/PID/mountinfo. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mountinfo {
    char *line;                /* that was cut */
    uint64_t id, parent;       /* of mounts */
    const char *device;        /* "98:0" */
    const char *root, *point;  /* which directory of the file system is mounted, and where */
    const char *type, *source; /* "ext4", "/dev/sda" */
    const char *options;       /* of the file system: "rw,errors=continue" */
};
/* Cuts the line and points into it; names are as they are, without the kernel's \040. False: it is
 * not such a line. */
bool mountinfo_parse(char *line, struct mountinfo *ret);

/* True for path itself and what is below it, by names alone. */
bool mountinfo_is_in(const char *point, const char *path);

/* Of a table the mounts that are at path or below it, and the one with this id (0: none), wherever
 * it is; in the table's order. fd: the open table, taken. 0 or -errno. */
struct mountinfo_list {
    struct mountinfo *v;
    size_t n, cap;
};
int mountinfo_below(int fd, const char *path, uint64_t id, struct mountinfo_list *ret);
void mountinfo_list_release(struct mountinfo_list *l);
AUTO_VALUE(struct mountinfo_list, mountinfo_list_release);
