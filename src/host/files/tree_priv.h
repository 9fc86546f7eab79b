/* tree_priv.h - what tree.c and rootfs.c do in their threads. */
#pragma once
#include <stdbool.h>

struct err;

/* Where a thread with a mount namespace of its own puts what it makes: it exists everywhere, and
 * no other thread sees this namespace. */
#define TREE_SPOT "/proc"

/* A mount namespace for this thread alone; what is mounted in it is not seen elsewhere. */
int tree_enter_private(struct err *err);
/* O_PATH; ERR_NOT_FOUND names path. The fd, or -1. */
int tree_open_path(const char *path, bool must_be_dir, struct err *err);
/* A detached copy of what fd shows; what: for messages. The fd, or -1. */
int tree_clone(int fd, bool recursive, const char *what, struct err *err);
/* A process that gets the mount later cannot undo it unless it is root in our namespace. */
int tree_set_read_only(int tree_fd, bool recursive, const char *what, struct err *err);
