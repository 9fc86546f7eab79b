/* fd_rig.h - for tests: what is there, and how much of it. */
#pragma once
#include "harness/tap.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* Also a link to nothing. */
static inline bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static inline size_t count_entries(const char *dir)
{
    DIR *d = opendir(dir);
    size_t n = 0;

    ASSERT(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static inline size_t count_fds(void)
{
    return count_entries("/proc/self/fd");
}
