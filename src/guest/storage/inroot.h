/* inroot.h - opens and makes files in a tree that somebody else wrote (a container's root):
 * symlinks are followed, but never out of the tree. Leaf code: 0 or more, or -errno. Blocks in the
 * kernel: call it through base/offload. */
#pragma once
#include <stddef.h>
#include <sys/types.h>

/* An fd, CLOEXEC. path may begin with a slash. */
int inroot_open(const char *root, const char *path, int flags);
/* Checks that name, one component of root, is a directory or absent. -ELOOP: it is a symlink, and
 * *ret_link says to where, caller frees. -ENOTDIR: it is something else. */
int inroot_check_dir(const char *root, const char *name, char **ret_link);
/* Makes a directory and its missing parents. */
int inroot_mkdir(const char *root, const char *path, mode_t mode);
/* Reads a regular file. Caller frees. -EFBIG beyond max. */
int inroot_read(const char *root, const char *path, size_t max, char **ret_text, size_t *ret_len);
