/* layers_priv.h - between layers.c, layers_scan.c, layers_build.c and their tests. */
#pragma once
#include "host/files/layers.h"

#define LAYERS_NEW ".new-"
#define LAYERS_DEPTH_MAX 500
#define LAYERS_ENTRIES_MAX 250000 /* mkfs.erofs takes 1.1 GiB of memory for them */
#define LAYERS_XATTR_MAX 65535    /* bytes of a value: erofs has 16 bits for its length */

/* Identity of an open directory, which is at path; ERR_UNIMPLEMENTED: it cannot have an image. */
int layers_identify(const struct layers_opts *o, const char *path, int fd, char **ret,
                    struct err *err);
void layers_key_of(const char *identity, char ret[LAYERS_KEY_SIZE]);
/* Opens an image that has this key and, unless NULL, this identity. */
int layers_open_key(const char *dir, const char *key, const char *identity,
                    struct layers_image *ret, struct err *err);
/* Prunes for an image of `need` bytes: what was used within the last hour stays, since a start that
 * needs more than max_mib would otherwise evict its own layers each time. *ret: bytes of all others
 * that are left. ERR_EXHAUSTED: it does not fit, and nothing was evicted. The caller has the lock.
 */
int layers_make_room(const struct layers_opts *o, uint64_t need, uint64_t *ret, struct err *err);
void layers_remember_failure(const char *dir, const char *key, const char *why);

/* layers_scan.c: what is in a tree. */
struct layers_scan {
    char stamp[65];
    uint64_t entries;
    uint64_t bytes; /* of files, with their holes */
};
/* ERR_UNIMPLEMENTED: something in it cannot be in an image. */
int layers_scan(int dir_fd, struct layers_scan *ret, struct err *err);

/* layers_confine.c: refuses system calls that mkfs.erofs does not need. For a child's setup, after
 * jail_setup(): without the right to get new rights. */
int layers_confine(struct err *err);

/* layers_verity.c: appends superblock and hash tree of dm-verity (SHA-256) to an image of whole 4
 * KiB blocks, which is open for reading and writing. */
int layers_add_verity(int fd, const void *salt, size_t salt_len, char ret_root[65],
                      struct err *err);
