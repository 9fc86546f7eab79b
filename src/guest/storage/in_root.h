/* in_root.h - opens and makes files in an untrusted tree (a container's root):
 * symlinks are followed, but never out of the tree. Leaf code: 0 or more, or -errno. Blocks in the
 * kernel: call it through base/offload. */
#pragma once
#include <stddef.h>
#include <sys/types.h>

/* Checks that name, one component of root, is a directory or absent. -ELOOP: it is a symlink, and
 * *ret_link is its target, caller frees. -ENOTDIR: it is something else. */
int in_root_check_dir(const char *root, const char *name, char **ret_link);
/* Makes a directory and its missing parents. */
int in_root_mkdir(const char *root, const char *path, mode_t mode);
/* Reads a regular file. Caller frees. -EFBIG beyond max. */
int in_root_read(const char *root, const char *path, size_t max, char **ret_text, size_t *ret_len);

/* Runs a program of the VM inside such a tree: the VM's static tools see a container's files as the
 * container does, whatever symlinks are there and whatever it lacks itself. Replaces this process;
 * argv[0] is the name that program gets. Returns only on failure: the exit status, after a message
 * on stderr. */
int in_root_exec(const char *root, const char *program, char **argv);
