/* scsi_mount.c - one partition in the guest. Leaf object: no gate of its own, its controller's
 * orders the calls. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/device/gone.h"
#include "host/device/scsi_priv.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const states[] = { "Reserved", "Mounted", "Invalid", "Unmounted" };
static const char *const events[] = { "be mounted", "fail to be mounted", "be unmounted",
                                      "be dropped" };

static const struct fsm_edge edges[] = {
    { MOUNT_RESERVED, MOUNT_EV_MOUNTED, MOUNT_MOUNTED },
    { MOUNT_RESERVED, MOUNT_EV_MOUNT_FAILED, MOUNT_INVALID },
    { MOUNT_RESERVED, MOUNT_EV_DROPPED, MOUNT_UNMOUNTED },
    { MOUNT_MOUNTED, MOUNT_EV_UNMOUNTED, MOUNT_UNMOUNTED },
    { MOUNT_INVALID, MOUNT_EV_UNMOUNTED, MOUNT_UNMOUNTED },
};
FSM_DEFINE(scsi_mount_fsm, "disk mount", states, MOUNT_STATE_COUNT, events, MOUNT_EV_COUNT, edges);

static size_t count(const char *const *v)
{
    size_t n = 0;

    while (v && v[n])
        n++;
    return n;
}

struct mount *scsi_mount_new(struct scsi_slot slot, const struct scsi_mount *m)
{
    struct mount *c = mem_new(struct mount);
    size_t n = count(m->options);

    c->partition = m->partition;
    c->read_only = m->read_only;
    c->encrypted = m->encrypted;
    c->verity = m->verity;
    if (m->root_hash && *m->root_hash)
        c->root_hash = str_dup(m->root_hash);
    c->ensure_filesystem = m->ensure_filesystem;
    c->block_device = m->block_device;
    if (m->filesystem && *m->filesystem)
        c->filesystem = str_dup(m->filesystem);
    c->options = mem_zalloc((n + 1) * sizeof(*c->options));
    for (size_t i = 0; i < n; i++)
        c->options[i] = str_dup(m->options[i]);
    c->path = str_format("/run/mounts/scsi/%u_%u_%llu", slot.controller, slot.lun,
                         (unsigned long long)m->partition);
    return c;
}

void scsi_mount_free(struct mount *m)
{
    if (!m)
        return;
    list_remove(&m->node);
    for (char **o = m->options; o && *o; o++)
        free(*o);
    free(m->options);
    free(m->root_hash);
    free(m->filesystem);
    free(m->path);
    free(m);
}

static int check_root_hash(const struct scsi_mount *m, struct err *err)
{
    size_t len = m->root_hash ? strlen(m->root_hash) : 0;

    if (len == 0)
        return 0;
    if (!m->verity)
        return err_set(err, ERR_INVALID, "a root hash without dm-verity");
    if (len != SCSI_ROOT_HASH_LEN || strspn(m->root_hash, "0123456789abcdefABCDEF") != len)
        return err_set(err, ERR_INVALID, "the root hash \"%.80s\" is not %d hex digits (SHA-256)",
                       m->root_hash, SCSI_ROOT_HASH_LEN);
    return 0;
}

int scsi_mount_check(const struct scsi_disk *disk, const struct scsi_mount *m, struct err *err)
{
    bool read_only = disk->read_only || m->read_only;

    if (m->verity && (!disk->read_only || m->encrypted))
        return err_set(err, ERR_INVALID, "dm-verity is for read-only disks that are not encrypted");
    if (m->encrypted && read_only)
        return err_set(err, ERR_INVALID, "an encrypted disk is made anew, so not read-only");
    if (m->encrypted && !m->ensure_filesystem && !m->block_device)
        return err_set(err, ERR_INVALID,
                       "an encrypted disk holds nothing: it needs "
                       "ensure-filesystem, or to be a block device");
    return check_root_hash(m, err);
}

static size_t times(const char *word, const char *const *list)
{
    size_t n = 0;

    for (; list && *list; list++)
        n += strcasecmp(word, *list) == 0;
    return n;
}

bool scsi_mount_same(const struct mount *a, const struct scsi_mount *b)
{
    const char *const *mine = (const char *const *)a->options;
    const char *fs = b->filesystem && *b->filesystem ? b->filesystem : NULL;

    const char *hash = b->root_hash && *b->root_hash ? b->root_hash : NULL;

    if (a->read_only != b->read_only || a->encrypted != b->encrypted ||
        a->ensure_filesystem != b->ensure_filesystem || a->block_device != b->block_device ||
        a->verity != b->verity || !str_eq(a->filesystem, fs) || count(mine) != count(b->options))
        return false;
    if (!a->root_hash != !hash || (hash && strcasecmp(a->root_hash, hash) != 0))
        return false;
    for (const char *const *o = mine; *o; o++) /* in any order */
        if (times(*o, mine) != times(*o, b->options))
            return false;
    return true;
}

bool scsi_silent(struct ctx *ctx, const struct err *err)
{
    struct err ended = ERR_INIT;

    return err->code == ERR_DEADLINE && ctx_check(ctx, &ended) == 0;
}

static struct guest_disk words(const struct mount *m, struct scsi_slot slot)
{
    return (struct guest_disk){ .controller = slot.controller,
                                .lun = slot.lun,
                                .partition = m->partition,
                                .mount_path = m->path,
                                .read_only = m->read_only,
                                .encrypted = m->encrypted,
                                .ensure_filesystem = m->ensure_filesystem,
                                .block_device = m->block_device,
                                .verity = m->verity,
                                .root_hash = m->root_hash,
                                .filesystem = m->filesystem,
                                .options = (const char *const *)m->options };
}

int scsi_mount_mount(struct ctx *ctx, struct mount *m, struct scsi_slot slot, struct guest *guest,
                     struct err *err)
{
    const struct guest_disk d = words(m, slot);

    if (m->state == MOUNT_MOUNTED)
        return 0;
    if (fsm_check(&scsi_mount_fsm, m->state, MOUNT_EV_MOUNTED, err) < 0)
        return -1;
    if (guest->ops->mount_disk(ctx, guest, &d, err) < 0) {
        fsm_step(&scsi_mount_fsm, &m->state, MOUNT_EV_MOUNT_FAILED);
        return err_wrap(err, "mount disk %u:%u partition %llu in the guest", slot.controller,
                        slot.lun, (unsigned long long)m->partition);
    }
    fsm_step(&scsi_mount_fsm, &m->state, MOUNT_EV_MOUNTED);
    return 0;
}

int scsi_mount_unmount(struct ctx *ctx, struct mount *m, struct scsi_slot slot, struct guest *guest,
                       struct err *err)
{
    const struct guest_disk d = words(m, slot);

    if (m->state == MOUNT_RESERVED) {
        fsm_step(&scsi_mount_fsm, &m->state, MOUNT_EV_DROPPED);
        return 0;
    }
    if (fsm_check(&scsi_mount_fsm, m->state, MOUNT_EV_UNMOUNTED, err) < 0)
        return -1;
    /* After a failed mount too: its answer may have been lost. Not mounted is success. */
    struct ctx limited = ctx_with_timeout(ctx, SCSI_GUEST_S * NS_PER_S);
    if (gone_is_done(guest->ops->unmount_disk(&limited, guest, &d, err), ctx, err) < 0)
        return err_wrap(err, "unmount disk %u:%u partition %llu in the guest", slot.controller,
                        slot.lun, (unsigned long long)m->partition);
    fsm_step(&scsi_mount_fsm, &m->state, MOUNT_EV_UNMOUNTED);
    return 0;
}
