/* scsi_save.c - the disks of a VM. Not saved: the number of slots, which the VM has anyway; the
 * holders of a mount, which its reservations count. */
#include "base/saved.h"
#include "host/device/scsi_priv.h"

#include <stdlib.h>

struct things {
    struct reserved **v;
    size_t n, cap;
};

static void add_thing(struct things *all, struct mount *m)
{
    all->v = mem_grow(all->v, all->n, &all->cap, sizeof(struct reserved *));
    all->v[all->n++] = &m->held;
}

static void mount_saved(struct saved *s, struct mount *m)
{
    struct guest_disk *g = &m->guest;

    SAVED_ENUM(s, 1, m->state, PART_STATE_COUNT);
    saved_bool(s, 2, &m->held.leaving);
    saved_u64(s, 3, &g->partition);
    saved_str(s, 4, (char **)&g->mount_path);
    saved_bool(s, 5, &g->read_only);
    saved_bool(s, 6, &g->encrypted);
    saved_bool(s, 7, &g->ensure_filesystem);
    saved_bool(s, 8, &g->block_device);
    saved_bool(s, 9, &g->verity);
    saved_str(s, 10, (char **)&g->root_hash);
    saved_str(s, 11, (char **)&g->filesystem);
    saved_strv(s, 12, &m->options);
    saved_u32(s, 13, &g->fs_group);
    saved_str(s, 14, (char **)&g->fs_group_policy);
    g->options = (const char *const *)m->options.v;
    g->controller = m->disk->slot.controller;
    g->lun = m->disk->slot.lun;
}

static void disk_saved(struct saved *s, struct disk *d)
{
    uint64_t dev = d->image.dev, ino = d->image.ino;

    saved_u8(s, 1, &d->slot.controller);
    saved_u8(s, 2, &d->slot.lun);
    SAVED_ENUM(s, 3, d->state, DISK_STATE_COUNT);
    saved_bool(s, 4, &d->leaving);
    saved_bool(s, 5, &d->deserted);
    saved_u64(s, 6, &dev);
    saved_u64(s, 7, &ino);
    saved_u64(s, 8, &d->image.bytes);
    saved_str(s, 9, &d->host_path);
    saved_fd(s, 10, "the image of a disk", &d->fd);
    saved_bool(s, 11, &d->read_only);
    d->image.dev = (dev_t)dev;
    d->image.ino = (ino_t)ino;
}

static void mounts_saved(struct saved *s, struct disk *d, struct things *all)
{
    for (size_t i = saved_count(s, 12, 0); i > 0; i--)
        list_append(&d->mounts, &mem_new(struct mount)->node);
    LIST_FOR (struct mount, m, &d->mounts, node) {
        m->disk = d;
        if (!saved_open(s, 12))
            return;
        mount_saved(s, m);
        saved_close(s);
        add_thing(all, m);
    }
}

static void take_slot(struct saved *s, struct scsi *c, struct disk *d)
{
    unsigned slot = d->slot.controller * SCSI_LUNS + d->slot.lun;

    if (slot >= c->n_slots || c->slots[slot] || !d->host_path || d->fd < 0 ||
        list_empty(&d->mounts))
        saved_fail(s, "disk %u:%u is invalid", d->slot.controller, d->slot.lun);
    else
        c->slots[slot] = d;
}

static struct disk *disk_new(void)
{
    struct disk *d = mem_new(struct disk);

    d->fd = -1;
    list_init(&d->mounts);
    return d;
}

/* Slots of which the guest did not release the disk. */
static void lost_saved(struct saved *s, struct scsi *c)
{
    size_t n = saved_count(s, 3, scsi_lost_slots(c));

    for (uint32_t slot = 0; n > 0 && saved_open(s, 3); n--, slot++) {
        while (!saved_reads(s) && !c->lost[slot])
            slot++;
        saved_u32(s, 1, &slot);
        saved_close(s);
        if (slot < c->n_slots)
            c->lost[slot] = true;
        else
            saved_fail(s, "slot %u is invalid", slot);
    }
}

static void disks_saved(struct saved *s, struct scsi *c, struct things *all)
{
    size_t n = 0;

    for (unsigned i = 0; i < c->n_slots; i++)
        n += c->slots[i] != NULL;
    n = saved_count(s, 4, n);
    for (unsigned i = 0; n > 0 && saved_open(s, 4); n--, i++) {
        while (!saved_reads(s) && !c->slots[i])
            i++;

        struct disk *d = saved_reads(s) ? disk_new() : c->slots[i];

        disk_saved(s, d);
        mounts_saved(s, d, all);
        saved_close(s);
        if (saved_reads(s))
            take_slot(s, c, d);
    }
}

void scsi_saved(struct saved *s, struct scsi *c)
{
    struct things all = { 0 };

    saved_bool(s, 1, &c->keeps_first);
    saved_bool(s, 2, &c->silent);
    lost_saved(s, c);
    disks_saved(s, c, &all);
    if (saved_open(s, 5)) {
        reservations_saved(s, &c->reservations, all.v, all.n);
        saved_close(s);
    }
    free(all.v);
}
