/* tree.h - a host directory or file as a detached mount: the thing that is moved into a VMM's
 * mount namespace, and exactly what the guest will see. Everything that touches the path happens
 * in a thread with a deadline: it may be on a dead NFS. A tree is in no namespace; it is gone when
 * its fd is closed, unless it was moved somewhere. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct idmap;

struct tree {
    int fd;         /* caller closes */
    char name[256]; /* of a single file: its name in the tree, which holds nothing else; "" for a
                       directory */
    bool writable;  /* a directory that is read-only but for what is mounted below it */
    char *followed; /* a directory's real path, if that was asked for; caller frees */
    uint64_t mount; /* then: the id of the mount that it is in */
};

struct tree_opts {
    bool read_only;          /* all of it, enforced by the kernel */
    bool recursive;          /* with what is mounted below a directory ("rbind") */
    bool top_only;           /* with both: mounts below it keep their own mode ("ro", not "rro") */
    bool follow;             /* a directory comes alone: its mounts will be followed (follow.h) */
    const struct idmap *ids; /* as which its files are seen; NULL, or empty: as they are */
};

/* Waits until ctx ends. path: absolute; symbolic links are followed, as a bind mount does. A
 * single file comes as a tmpfs with that one name, so that the directory it lives in stays unseen;
 * two files of one directory are two trees. ERR_NOT_FOUND names the path; a socket, fifo or device
 * is ERR_UNIMPLEMENTED: it cannot be shared with another kernel; so are ids that the host's kernel
 * cannot map. */
int tree_open(struct ctx *ctx, const char *path, const struct tree_opts *opts, struct tree *ret,
              struct err *err);

/* The same of a tree that is open and was not mapped before. Waits. */
int tree_map(struct ctx *ctx, int tree_fd, const struct idmap *ids, const char *what,
             struct err *err);

/* The root file system of a pod that comes without one (containerd's sandboxer "shim"): one
 * program, which waits and lets the kernel reap the pod's orphans. Read-only; nothing of it is on a
 * disk. Waits until ctx ends. Caller closes *ret_fd. */
#define TREE_PAUSE_NAME "pause"
#define TREE_PAUSE_PROGRAM "/" TREE_PAUSE_NAME
int tree_open_pause(struct ctx *ctx, int *ret_fd, struct err *err);
