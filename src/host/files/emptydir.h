/* emptydir.h - a look at the kubelet's directory of an emptyDir: what a directory in the VM must be
 * like to stand for it. In a thread with a deadline, as all that touches a client's path. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct ctx;
struct err;

#define EMPTYDIR_DIRS_MAX 256
#define EMPTYDIR_DEPTH_MAX 8

enum emptydir_kind {
    EMPTYDIR_NONE, /* there is no such directory: the path is something else's */
    EMPTYDIR_PLAIN,
    EMPTYDIR_MEMORY, /* a tmpfs is mounted on it */
    EMPTYDIR_HUGE,   /* a hugetlbfs is */
};

struct emptydir {
    enum emptydir_kind kind;
    uint64_t bytes;     /* of the tmpfs; 0: no limit */
    uint64_t page_size; /* of the hugetlbfs */
    /* Directories, those above first; the first is the volume itself, its path "". */
    struct emptydir_dir {
        char *path;
        uint32_t mode, uid, gid;
        uint64_t dev, ino;
    } * dirs;
    size_t n, cap;
    size_t at;      /* the one that was asked for */
    bool elsewhere; /* that was not found: at says nothing */
    bool has_files; /* or too many entries to read: not only the kubelet has written here */
};

/* Waits until ctx ends. path: the directory itself, one in it, or a bind mount of one in it. A path
 * that is none of these: has_files, too. Caller releases. */
int emptydir_look(struct ctx *ctx, const char *dir, const char *path, struct emptydir *ret,
                  struct err *err);
static inline void emptydir_release(struct emptydir *e)
{
    for (size_t i = 0; i < e->n; i++)
        free(e->dirs[i].path);
    free(e->dirs);
    *e = (struct emptydir){ 0 };
}
