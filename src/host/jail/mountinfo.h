/* mountinfo.h - a line of /proc/PID/mountinfo. */
#pragma once
#include <stdbool.h>

struct mountinfo {
    const char *id, *device;   /* "36", "98:0" */
    const char *root, *point;  /* which directory of the file system is mounted, and where */
    const char *type, *source; /* "ext4", "/dev/sda" */
    const char *options;       /* of the file system: "rw,errors=continue" */
};
/* Cuts the line and points into it; names are as they are, without the kernel's \040. False: it is
 * not such a line. */
bool mountinfo_parse(char *line, struct mountinfo *ret);
