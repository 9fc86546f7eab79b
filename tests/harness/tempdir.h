/* tempdir.h - a directory of its own for a test, removed with all that is in it at the end of the
 * scope (not when an assertion fails: then it stays, to be looked at).
 *     TEMPDIR(p);
 *     file_write(tempdir_path(&p, "f"), …); */
#pragma once
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tempdir {
    char dir[64], path[512];
};

static inline void tempdir_release_auto(struct tempdir *p)
{
    (void)dir_remove(p->dir);
}

/* $LCOW_TEST_DIR replaces /tmp, for programs that are expected to crash and leave their files. */
static inline void tempdir_init(struct tempdir *p, const char *top)
{
    const char *instead = getenv("LCOW_TEST_DIR");

    snprintf(p->dir, sizeof(p->dir), "%s/lcow-test.XXXXXX",
             instead && strcmp(top, "/tmp") == 0 ? instead : top);
    if (!mkdtemp(p->dir))
        tap_fail(__FILE__, __LINE__, "no directory %s: %m", p->dir);
}
#define TEMPDIR_IN(p, top)                                                                         \
    AUTO(tempdir_release) struct tempdir p = { "", "" };                                           \
    tempdir_init(&p, (top))
#define TEMPDIR(p) TEMPDIR_IN(p, "/tmp")
/* For very many files: a busy disk takes its time. */
#define TEMPDIR_IN_MEMORY(p) TEMPDIR_IN(p, "/dev/shm")

/* A path below it; valid until the next call. */
static inline const char *tempdir_path(struct tempdir *p, const char *name)
{
    snprintf(p->path, sizeof(p->path), "%s/%s", p->dir, name);
    return p->path;
}

/* A file below it, with the directories on the way to it. */
static inline void tempdir_put(struct tempdir *p, const char *name, const char *text)
{
    AUTO_FREE char *path = str_dup(tempdir_path(p, name));
    AUTO_FREE char *parent = str_ndup(path, (size_t)(strrchr(path, '/') - path));

    ASSERT_EQ(dir_make(parent, 0755), 0);
    ASSERT_EQ(file_write(path, text, strlen(text), 0644), 0);
}
