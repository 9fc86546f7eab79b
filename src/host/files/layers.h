/* layers.h - the store of layer images: an erofs image of each read-only directory of a snapshot,
 * made once by mkfs.erofs, which VMs get as a disk instead of a share (docs/decisions/0034). The
 * store has one directory per key:
 *     <dir>/<key>/image    the erofs image; with layer_verity its hash tree behind it
 *     <dir>/<key>/header   what it is: a checksum, then JSON
 *     <dir>/.new-<key>     what a builder makes, renamed when it is complete
 *     <dir>/failed-<key>   exists if it failed: how often and why; its time is the last one
 * A builder locks <dir>: there is one at a time, and nothing is pruned meanwhile.
 * The key is a hash of the directory's identity (path, device, inode, times of birth and of the
 * last change) and of the program's. Only root can access them. What is damaged, a symlink or
 * another user's is ignored, and a builder replaces it. All but layers_build block for local file
 * systems; a layer's own directory may be on a dead one, so layers_open is for threads
 * (base/offload). */
#pragma once
#include "base/mem.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct jsw;

#define LAYERS_KEY_SIZE 33 /* hexadecimal, with its NUL */
#define LAYERS_PROGRAM "mkfs.erofs"

/* The steps of a build. */
enum layers_step {
    LAYERS_LOCKED,
    LAYERS_SCANNED,
    LAYERS_PACKED,
    LAYERS_SEALED,
    LAYERS_RENAMED,
    LAYERS_STEP_COUNT
};

struct layers_opts {
    const char *dir;
    uint32_t max_mib;                       /* of all images */
    uint32_t free_mib;                      /* to be left in the file system */
    bool verity;                            /* with a hash tree */
    uint64_t now_ns;                        /* wall clock, for layers_prune */
    uint32_t worth;                         /* files in a layer, on average, to attach a disk */
    void (*on_step)(enum layers_step step); /* for tests; NULL */
};

struct layers_info {
    char key[LAYERS_KEY_SIZE];
    char *identity;                 /* the lines the key is a hash of */
    char *path;                     /* of the directory */
    char *stamp;                    /* a hash of names, sizes and times of all that was in it */
    char *tool;                     /* version of mkfs.erofs */
    char sha256[65], root_hash[65]; /* root_hash "": not verified */
    uint64_t size, inode, mtime_ns;
    uint64_t data_bytes, entries; /* without the hash tree; files and directories */
    uint64_t created_ns, used_ns; /* wall clock */
};
void layers_info_release(struct layers_info *i); /* repeatable */
AUTO_VALUE(struct layers_info, layers_info_release);
/* As one JSON object. */
void layers_info_write(const struct layers_info *i, struct jsw *w, const char *key);
/* Encode and decode the header; ERR_DATA_LOSS names the invalid member. Caller frees. Fuzzed. */
char *layers_header_format(const struct layers_info *i, size_t *ret_len);
int layers_header_parse(const char *text, size_t len, struct layers_info *ret, struct err *err);

struct layers_image {
    struct layers_info info;
    int fd;     /* for reading */
    char *path; /* of the image */
};
void layers_close(struct layers_image *i); /* repeatable */
AUTO_VALUE(struct layers_image, layers_close);

/* The image of a directory, with the quick check of each use: owners, kinds, the header's checksum,
 * identity, size, inode and time. It counts as used now. ERR_NOT_FOUND: there is none yet;
 * ERR_DATA_LOSS, ERR_PERMISSION: it is damaged; ERR_UNIMPLEMENTED: this directory cannot have one
 * (FUSE, NFS), or mkfs.erofs is missing. Caller closes *ret. */
int layers_open(const struct layers_opts *o, const char *path, struct layers_image *ret,
                struct err *err);
/* After layers_open failed: a builder should be started. Not if it failed a short time ago (10 min
 * after the first failure, doubling up to 24 h). */
bool layers_wanted(const struct layers_opts *o, const char *path, uint64_t now_ns);

/* Waits for the end of other builders, at most until ctx ends, and keeps them away until the caller
 * closes *ret. ERR_NOT_FOUND: there is no store. */
int layers_lock(struct ctx *ctx, const char *dir, int *ret, struct err *err);
/* Builds the image of a directory unless there is a good one (*ret_made false), and prunes first.
 * Waits for its turn (at most 1 h, or until ctx ends; this is not remembered), then at most 15 min:
 * mkfs.erofs 1.8 may never exit if a file shrinks meanwhile. ERR_EXHAUSTED: no space, or it does
 * not fit into max_mib beside images that were used within the last hour. A failure is remembered.
 * Caller releases *ret. */
int layers_build(struct ctx *ctx, const struct layers_opts *o, const char *path,
                 struct layers_info *ret, bool *ret_made, struct err *err);
/* The version of mkfs.erofs; caller frees. ERR_NOT_FOUND: it is not installed. Waits. */
int layers_program(struct ctx *ctx, char **ret_version, struct err *err);

/* All keys, sorted, in any state; a missing store is empty. */
int layers_list(const char *dir, struct strv *ret_keys, struct err *err);
/* One by its key: the quick check. */
int layers_look(const char *dir, const char *key, struct layers_info *ret, struct err *err);
/* The same, reads all of it and compares its checksum; then, that the directory still is as it was
 * when the image was made (ERR_STATE). Caller releases *ret. */
int layers_verify(const char *dir, const char *key, struct layers_info *ret, struct err *err);
int layers_remove(const char *dir, const char *key, struct err *err);
/* The same for an image that a VM could not use, although the quick check did not find why: the
 * failure is remembered as one of its build. Without the lock: at worst a new one is made again.
 * Waits until ctx ends. */
int layers_discard(struct ctx *ctx, const char *dir, const char *key, const char *why,
                   struct err *err);
/* Removes incomplete images of builders that are gone, failures that are older than a week, images
 * that are damaged, those whose directory is gone or another one by now, and, while all have more
 * than max_mib, the longest unused that no VM has open. The caller has the lock. Calls removed,
 * which may be NULL, with the name of each image and draft. dry_run: nothing is removed. */
int layers_prune(const struct layers_opts *o, bool dry_run,
                 void (*removed)(void *arg, const char *name, const char *why), void *arg,
                 struct err *err);
