/* plan9.h - host directories in the VM: a share per host directory (by identity and mode), mounted
 * once in the guest, counted. Reserve -> map -> unmap as in scsi.h; an unmap before map releases
 * the share only if no other reservation holds it (weak spot 17). Names are never reused.
 * docs/reference/host.md §11. */
#pragma once
#include "base/mem.h"
#include "host/vmm/vmm.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct guest;
struct jsw;
struct plan9;
struct saved;

struct plan9_share {
    const char *host_path; /* for people and logs; with read_only the identity of the share */
    int tree_fd;           /* borrowed during reserve (dup'ed): a detached mount (open_tree clone or
                              fsmount) of exactly what is to be seen. Close your own copy soon: it
                              keeps the mount busy when it is to be removed */
    bool read_only;
    struct vmm_follow follow; /* source NULL: it does not; else unique */
    bool unique;              /* never shared with another reservation (a container's rootfs) */
};
struct plan9 *plan9_new(struct vmm *vmm, struct guest *guest);
void plan9_free(struct plan9 *c);
AUTO_DEFINE(struct plan9 *, plan9_free);
int plan9_reserve(struct ctx *ctx, struct plan9 *c, const struct plan9_share *share,
                  uint64_t *ret_id, struct err *err);
/* *ret_path: in the guest, /run/mounts/plan9/<name>. Caller frees. */
int plan9_map(struct ctx *ctx, struct plan9 *c, uint64_t id, char **ret_path, struct err *err);
int plan9_unmap(struct ctx *ctx, struct plan9 *c, uint64_t id, struct err *err);
/* Of a reservation, for people: the name of its share, "" if it is not known. Borrowed. */
const char *plan9_name(const struct plan9 *c, uint64_t id);
/* An object for each share, into the array that is open (inspect.h). Never waits. */
void plan9_describe(const struct plan9 *c, struct jsw *w);
/* plan9_save.c, in a message that is open, inside no call. Reading: into one that is new. */
void plan9_saved(struct saved *s, struct plan9 *c);
