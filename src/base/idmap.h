/* idmap.h - the ids of a user namespace, as text: lines CONTAINER:HOST:SIZE, joined by commas, as
 * containerd writes them. Leaf code. A user namespace lives as long as a process, a mount or a
 * descriptor of it. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct err;

#define IDMAP_LINES_MAX 339        /* the kernel's 340, less one for QEMU's own ids */
#define IDMAP_TEXT_MAX (4095 - 33) /* it takes less than a page; the same */

struct idmap {
    char *uid, *gid; /* both or none; NULL: no mapping */
};
void idmap_release(struct idmap *m);
AUTO_VALUE(struct idmap, idmap_release);
struct idmap idmap_copy(const struct idmap *m); /* caller releases */
bool idmap_eq(const struct idmap *a, const struct idmap *b);

/* ERR_INVALID names the line: size 0, ids beyond 4294967295, an overlap, none, too many. what: as
 * messages call the map ("uidMappings"). */
int idmap_check(const char *map, const char *what, struct err *err);
/* What id of the container is outside; false: it is not mapped. Of a checked map, as below. */
bool idmap_outside(const char *map, uint32_t id, uint32_t *ret);
/* Adds one line that maps the ids from outside on, too, to ids that no file has. Both maps
 * get it; an overlap is ERR_INVALID and names the key vm_uid_base. Caller releases *ret. */
int idmap_with(const struct idmap *m, uint32_t outside, uint32_t size, struct idmap *ret,
               struct err *err);
/* A user namespace with these ids. Blocks shortly: call it through base/offload. The fd, or -1. */
int idmap_userns(const struct idmap *m, struct err *err);
/* The detached mount tree shows its files with the ids of that namespace. ERR_UNIMPLEMENTED: the
 * kernel cannot do it for this file system, or does not know id-mapped mounts. what: for messages.
 */
int idmap_mount(int tree, int userns, bool recursive, const char *what, struct err *err);
