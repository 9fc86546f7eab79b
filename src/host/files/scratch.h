/* scratch.h - the scratch disk of a VM: a sparse ext4 image that containers write to, formatted for
 * each VM: <dir>/sandboxes/<namespace>/<id>/scratch.img, 0600, root's. QEMU gets its descriptor.
 *
 * Life: make -> … -> remove -> free. The directory is on record in the ledger before it exists,
 * and locked for as long as we live: scratch_sweep, which takes the others, never touches a living
 * one. Calls with ctx work in a thread or a child process: the disk may be slow. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct saved;
struct ledger;
struct scratch;

#define SCRATCH_MIB_MIN 64
#define SCRATCH_MIB_MAX (16u * 1024 * 1024)

struct scratch_opts {
    const char *dir;     /* the configuration's scratch_dir */
    const char *ns, *id; /* containerd's namespace, the sandbox; no '/' in them */
    uint32_t size_mib;
    uint32_t free_mib;     /* as for scratch_room */
    struct ledger *ledger; /* borrows; must outlive the scratch */
};

/* A full disk is ERR_EXHAUSTED and names the directory. Caller frees. */
int scratch_make(struct ctx *ctx, const struct scratch_opts *opts, struct scratch **ret,
                 struct err *err);
/* Whether the file system of dir has free_mib left for what is already there: ERR_EXHAUSTED if not,
 * with the numbers. Disks are sparse, so they may grow into more than there is. */
int scratch_room(struct ctx *ctx, const char *dir, uint32_t free_mib, struct err *err);
/* The program that formats disks: a path, or a name to be looked up in PATH. Static. */
const char *scratch_mke2fs(void);
int scratch_fd(const struct scratch *s); /* borrows; for reading and writing */
/* File, directory and record. Repeatable. The VM must be done with it. */
int scratch_remove(struct ctx *ctx, struct scratch *s, struct err *err);
/* Closes; what was not removed stays on record. */
void scratch_free(struct scratch *s);
AUTO_DEFINE(struct scratch *, scratch_free);

/* Removes the namespace's directory if it is empty; called after a ledger record was cleaned up. */
void scratch_drop_empty(const char *dir, const char *ns);

/* Removes the directories that no ledger names any more, and the formatted disks that older
 * versions of lcow kept. fn (may be NULL) gets "namespace/id" (or "template/name"), the path and
 * "removed", "would be removed" or what went wrong. Blocks: for tools. A missing dir is fine.
 * Continues after a failure and fails at the end. */
int scratch_sweep(const char *dir, bool dry_run,
                  void (*fn)(void *arg, const char *name, const char *path, int taken,
                             const char *result),
                  void *arg, struct err *err);

/* For saved.h. NULL: none. */
void scratch_saved(struct saved *s, uint32_t field, struct ledger *ledger,
                   struct scratch **scratch);
