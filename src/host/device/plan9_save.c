/* plan9_save.c - the shares of a VM. Not saved: the holders of a share, which its reservations
 * count; its tree and what it follows, which only an add reads. */
#include "base/saved.h"
#include "host/device/plan9_priv.h"

#include <stdlib.h>

static void share_saved(struct saved *s, struct share *share)
{
    uint64_t dev = share->dev, ino = share->ino;

    SAVED_ENUM(s, 1, share->state, PART_STATE_COUNT);
    SAVED_ENUM(s, 2, share->mount, PART_STATE_COUNT);
    saved_bool(s, 3, &share->held.leaving);
    saved_str(s, 4, &share->name);
    saved_str(s, 5, &share->host_path);
    saved_str(s, 6, &share->path);
    saved_u64(s, 7, &dev);
    saved_u64(s, 8, &ino);
    saved_bool(s, 9, &share->read_only);
    saved_bool(s, 10, &share->unique);
    share->dev = (dev_t)dev;
    share->ino = (ino_t)ino;
    if (!share->name || !share->host_path || !share->path)
        saved_fail(s, "a share has no name");
    else if (share->state == PART_RESERVED && !share->held.leaving)
        saved_fail(s, "%s is being shared with the VM", share->host_path);
}

static struct share *share_new(void)
{
    struct share *share = mem_new(struct share);

    share->tree_fd = -1;
    return share;
}

void plan9_saved(struct saved *s, struct plan9 *c)
{
    struct reserved **things = NULL;
    size_t n = 0, cap = 0;

    saved_u64(s, 1, &c->next_name);
    for (size_t i = saved_count(s, 2, 0); i > 0; i--)
        list_append(&c->shares, &share_new()->node);
    LIST_FOR (struct share, share, &c->shares, node) {
        if (!saved_open(s, 2))
            break;
        share_saved(s, share);
        saved_close(s);
        things = mem_grow(things, n, &cap, sizeof(struct reserved *));
        things[n++] = &share->held;
    }
    if (saved_open(s, 3)) {
        reservations_saved(s, &c->reservations, things, n);
        saved_close(s);
    }
    free(things);
}
