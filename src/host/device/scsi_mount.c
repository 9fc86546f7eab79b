/* scsi_mount.c - one partition in the guest. Leaf object: no gate of its own, its controller's
 * orders the calls. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "host/device/scsi_priv.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static size_t count(const char *const *v)
{
    size_t n = 0;

    while (v && v[n])
        n++;
    return n;
}

/* Nothing for "". */
static const char *given(const char *text)
{
    return text && *text ? text : NULL;
}

struct mount *scsi_mount_new(struct disk *d, const struct scsi_mount *how)
{
    struct mount *m = mem_new(struct mount);

    for (size_t i = 0; i < count(how->options); i++)
        strv_add(&m->options, how->options[i]);
    m->disk = d;
    m->guest = (struct guest_disk){
        .controller = d->slot.controller,
        .lun = d->slot.lun,
        .partition = how->partition,
        .mount_path = str_format("/run/mounts/scsi/%u_%u_%llu", d->slot.controller, d->slot.lun,
                                 (unsigned long long)how->partition),
        .read_only = how->read_only,
        .encrypted = how->encrypted,
        .ensure_filesystem = how->ensure_filesystem,
        .block_device = how->block_device,
        .verity = how->verity,
        .root_hash = str_dup(given(how->root_hash)),
        .filesystem = str_dup(given(how->filesystem)),
        .options = (const char *const *)m->options.v,
    };
    list_append(&d->mounts, &m->node);
    return m;
}

void scsi_mount_free(struct mount *m)
{
    list_remove(&m->node);
    strv_release(&m->options);
    free((char *)m->guest.root_hash);
    free((char *)m->guest.filesystem);
    free((char *)m->guest.mount_path);
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

bool scsi_mount_same(const struct mount *m, const struct scsi_mount *b)
{
    const struct guest_disk *a = &m->guest;
    const char *hash = given(b->root_hash);

    if (a->read_only != b->read_only || a->encrypted != b->encrypted ||
        a->ensure_filesystem != b->ensure_filesystem || a->block_device != b->block_device ||
        a->verity != b->verity || !str_eq(a->filesystem, given(b->filesystem)) ||
        m->options.n != count(b->options))
        return false;
    if (!a->root_hash != !hash || (hash && strcasecmp(a->root_hash, hash) != 0))
        return false;
    for (size_t i = 0; i < m->options.n; i++) /* in any order */
        if (times(a->options[i], a->options) != times(a->options[i], b->options))
            return false;
    return true;
}

bool scsi_silent(struct ctx *ctx, const struct err *err)
{
    struct err ended = ERR_INIT;

    return err->code == ERR_DEADLINE && ctx_check(ctx, &ended) == 0;
}

/* Says which one. */
static int failed(const struct mount *m, const char *what, struct err *err)
{
    return err_wrap(err, "%s disk %u:%u partition %llu in the guest", what, m->guest.controller,
                    m->guest.lun, (unsigned long long)m->guest.partition);
}

int scsi_mount_mount(struct ctx *ctx, struct mount *m, struct guest *guest, struct err *err)
{
    if (m->state == MOUNT_MOUNTED)
        return 0;
    if (fsm_check(&mount_fsm, m->state, MOUNT_EV_MOUNTED, err) < 0)
        return -1;
    int r = guest->ops->mount_disk(ctx, guest, &m->guest, err);
    fsm_step(&mount_fsm, &m->state, r < 0 ? MOUNT_EV_MOUNT_FAILED : MOUNT_EV_MOUNTED);
    return r < 0 ? failed(m, "mount", err) : 0;
}

int scsi_mount_unmount(struct ctx *ctx, struct mount *m, struct guest *guest, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, SCSI_GUEST_S * NS_PER_S);

    if (m->state == MOUNT_RESERVED)
        fsm_step(&mount_fsm, &m->state, MOUNT_EV_DROPPED);
    if (m->state == MOUNT_UNMOUNTED)
        return 0;
    /* After a failed mount too: its answer may have been lost. Not mounted is success. */
    int r = guest->ops->unmount_disk(&limited, guest, &m->guest, err);
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return failed(m, "unmount", err);
    fsm_step(&mount_fsm, &m->state, MOUNT_EV_UNMOUNTED);
    return 0;
}
