#include "host/device/scsi.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "host/device/scsi_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

static const char *const states[] = { "Reserved", "Attached", "Ejected", "Invalid", "Detached" };
static const char *const events[] = { "be attached", "fail to be attached", "be ejected",
                                      "be removed", "be dropped" };

static const struct fsm_edge edges[] = {
    { DISK_RESERVED, DISK_EV_ATTACHED, DISK_ATTACHED },
    { DISK_RESERVED, DISK_EV_ATTACH_FAILED, DISK_INVALID },
    { DISK_RESERVED, DISK_EV_DROPPED, DISK_DETACHED },
    { DISK_ATTACHED, DISK_EV_EJECTED, DISK_EJECTED },
    { DISK_EJECTED, DISK_EV_REMOVED, DISK_DETACHED },
    { DISK_INVALID, DISK_EV_REMOVED, DISK_DETACHED },
};
FSM_DEFINE(scsi_disk_fsm, "disk", states, DISK_STATE_COUNT, events, DISK_EV_COUNT, edges);

#define LOOK_NS (2 * NS_PER_S)
#define F_DISK(d)                                                                                  \
    F_STR("host-path", (d)->host_path), F_U("controller", (d)->slot.controller),                   \
        F_U("lun", (d)->slot.lun)

/* --- one disk: attach, eject, remove --- */

static void disk_free(struct disk *d)
{
    fd_close_later(d->fd);
    free(d->host_path);
    free(d);
}

static int disk_attach(struct ctx *ctx, struct disk *d, struct vmm *vmm, struct err *err)
{
    if (d->state == DISK_ATTACHED)
        return 0;
    if (fsm_check(&scsi_disk_fsm, d->state, DISK_EV_ATTACHED, err) < 0)
        return err_wrap(err, "%s", d->host_path);
    int r = vmm->ops->scsi_add ? vmm->ops->scsi_add(ctx, vmm, d->slot, d->fd, d->read_only, err)
                               : vmm_unsupported("scsi_add", err);
    fsm_step(&scsi_disk_fsm, &d->state, r < 0 ? DISK_EV_ATTACH_FAILED : DISK_EV_ATTACHED);
    if (r < 0)
        return err_wrap(err, "attach %s as disk %u:%u", d->host_path, d->slot.controller,
                        d->slot.lun);
    log_info(ctx, "disk attached", F_DISK(d));
    return 0;
}

/* It has had its time. Nobody new gets the disk; it goes when its last holder does. */
static void disk_desert(struct ctx *ctx, struct disk *d, struct err *err)
{
    d->deserted = true;
    log_warn(ctx, "the guest does not let go of a disk: it is taken from it, its slot is lost",
             F_DISK(d), F_ERR(err));
    err_clear(err);
}

static int disk_eject(struct ctx *ctx, struct disk *d, struct guest *guest, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, SCSI_GUEST_S * NS_PER_S);
    int r = d->deserted
                ? 0
                : guest->ops->eject_disk(&limited, guest, d->slot.controller, d->slot.lun, err);

    if (r < 0 && scsi_silent(ctx, err)) {
        disk_desert(ctx, d, err);
        r = 0;
    }
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return err_wrap(err, "eject disk %u:%u (%s)", d->slot.controller, d->slot.lun,
                        d->host_path);
    fsm_step(&scsi_disk_fsm, &d->state, DISK_EV_EJECTED);
    return 0;
}

/* QEMU reads zeros where the file ended before; nobody would know. */
static void look_if_cut(struct ctx *ctx, struct scsi *c, const struct disk *d)
{
    struct ctx limited = ctx_with_timeout(ctx, LOOK_NS);
    struct scsi_image now = { 0 };
    struct err err = ERR_INIT;

    if (c->silent)
        return;
    if (c->look(&limited, d->fd, &now, &err) < 0)
        c->silent = err.code == ERR_DEADLINE; /* two hundred of these are not waited for */
    else if (now.bytes < d->image.bytes)
        log_warn(ctx, "the image of a disk was cut while the VM had it: the rest was read as zeros",
                 F_DISK(d), F_U("bytes-before", d->image.bytes), F_U("bytes", now.bytes));
}

static int disk_remove(struct ctx *ctx, struct scsi *c, struct disk *d, struct err *err)
{
    struct vmm *vmm = c->vmm;
    int r = vmm->ops->scsi_remove ? vmm->ops->scsi_remove(ctx, vmm, d->slot, err) : 0;

    if (vmm_gone_is_done(r, ctx, err) < 0)
        return err_wrap(err, "detach disk %u:%u (%s)", d->slot.controller, d->slot.lun,
                        d->host_path);
    fsm_step(&scsi_disk_fsm, &d->state, DISK_EV_REMOVED);
    look_if_cut(ctx, c, d);
    log_info(ctx, "disk detached", F_DISK(d));
    return 0;
}

/* From wherever it is, as far as it goes; the next call goes on from there. */
static int disk_detach(struct ctx *ctx, struct scsi *c, struct disk *d, struct err *err)
{
    d->leaving = true;
    if (d->state == DISK_RESERVED)
        fsm_step(&scsi_disk_fsm, &d->state, DISK_EV_DROPPED);
    if (d->state == DISK_ATTACHED && disk_eject(ctx, d, c->guest, err) < 0)
        return -1;
    /* After a failed attach too: what the VMM could not undo then is undone now. */
    if (d->state != DISK_DETACHED && disk_remove(ctx, c, d, err) < 0)
        return -1;
    unsigned n = d->slot.controller * SCSI_LUNS + d->slot.lun;
    c->slots[n] = NULL;
    c->lost[n] = d->deserted;
    return 0;
}

/* --- the controller --- */

static struct mount *mount_of(struct reserved *t)
{
    return t ? CONTAINER_OF(t, struct mount, held) : NULL;
}

/* With its last mount the disk. */
static void mount_free(struct reserved *t)
{
    struct disk *d = mount_of(t)->disk;

    scsi_mount_free(mount_of(t));
    if (list_empty(&d->mounts))
        disk_free(d);
}

struct scsi *scsi_new(struct vmm *vmm, struct guest *guest, unsigned n_controllers)
{
    struct scsi *c = mem_new(struct scsi);

    c->vmm = vmm;
    c->guest = guest;
    c->look = scsi_image_look;
    if (n_controllers > SCSI_CONTROLLERS_MAX)
        n_controllers = SCSI_CONTROLLERS_MAX;
    c->n_slots = n_controllers * SCSI_LUNS;
    gate_init(&c->gate, "scsi");
    reservations_init(&c->reservations, "disk", mount_free);
    return c;
}

void scsi_keep_first(struct scsi *c)
{
    c->keeps_first = true;
}

void scsi_free(struct scsi *c)
{
    if (!c)
        return;
    reservations_release(&c->reservations);
    free(c);
}

static struct mount *find_mount(struct disk *d, uint64_t partition)
{
    LIST_EACH (&d->mounts, n) {
        struct mount *m = LIST_ENTRY(n, struct mount, node);
        if (m->guest.partition == partition)
            return m;
    }
    return NULL;
}

/* Only what can still be used. What failed or is on its way out counts as another disk: nobody
 * waits for it, and its slot is free when its last holder has released it. */
static struct disk *find_disk(struct scsi *c, dev_t dev, ino_t ino, uint64_t partition)
{
    for (unsigned i = 0; i < c->n_slots; i++) {
        struct disk *d = c->slots[i];
        if (!d || d->image.dev != dev || d->image.ino != ino || d->leaving || d->deserted ||
            (d->state != DISK_RESERVED && d->state != DISK_ATTACHED))
            continue;
        struct mount *m = find_mount(d, partition);
        if (!m || (!m->held.leaving && m->state != MOUNT_INVALID))
            return d;
    }
    return NULL;
}

/* The same file on a slot that nobody new can have: one of them writes, so there may be only one.
 */
static const struct disk *find_other(const struct scsi *c, dev_t dev, ino_t ino, bool read_only)
{
    for (unsigned i = 0; i < c->n_slots; i++) {
        const struct disk *d = c->slots[i];
        if (d && d->image.dev == dev && d->image.ino == ino && !(d->read_only && read_only))
            return d;
    }
    return NULL;
}

static struct disk *new_disk(struct scsi *c, const struct scsi_disk *o,
                             const struct scsi_image *file, struct err *err)
{
    unsigned slot = c->keeps_first && !o->first ? 1 : 0;

    while (slot < c->n_slots && (c->slots[slot] || c->lost[slot]))
        slot++;
    if (slot == c->n_slots) {
        err_set(
            err, ERR_EXHAUSTED,
            "no free slot for disk %s: a VM takes %u disks (%u controllers of %d), and %zu slots "
            "are lost",
            o->host_path, c->n_slots, c->n_slots / SCSI_LUNS, SCSI_LUNS, scsi_lost_slots(c));
        return NULL;
    }
    int fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) {
        err_sys(err, errno, "copy the descriptor of %s", o->host_path);
        return NULL;
    }
    struct disk *d = mem_new(struct disk);
    *d = (struct disk){ .slot = { (uint8_t)(slot / SCSI_LUNS), (uint8_t)(slot % SCSI_LUNS) },
                        .image = *file,
                        .host_path = str_dup(o->host_path),
                        .fd = fd,
                        .read_only = o->read_only };
    list_init(&d->mounts);
    c->slots[slot] = d;
    return d;
}

/* The partition's mount, shared or new. */
static struct mount *take_mount(struct disk *d, const struct scsi_mount *o, struct err *err)
{
    struct mount *m = find_mount(d, o->partition);

    if (m && !scsi_mount_same(m, o)) {
        err_set(err, ERR_STATE, "partition %llu of %s is mounted in another way already",
                (unsigned long long)o->partition, d->host_path);
        return NULL;
    }
    return m ? m : scsi_mount_new(d, o);
}

int scsi_reserve(struct ctx *ctx, struct scsi *c, const struct scsi_disk *disk,
                 const struct scsi_mount *mount, uint64_t *ret_id, struct err *err)
{
    struct scsi_image file;

    /* Before the gate: one that does not answer holds up nobody else. */
    if (c->look(ctx, disk->fd, &file, err) < 0)
        return err_wrap(err, "disk %s", disk->host_path);
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.reserve", err);
    if (!held)
        return -1;
    if (scsi_mount_check(disk, mount, err) < 0)
        return err_wrap(err, "disk %s", disk->host_path);
    struct disk *d = find_disk(c, file.dev, file.ino, mount->partition);
    const struct disk *other = d ? d : find_other(c, file.dev, file.ino, disk->read_only);
    if (other && other->read_only != disk->read_only)
        return err_set(err, ERR_STATE, "%s is disk %u:%u already, %s: it cannot be both",
                       disk->host_path, other->slot.controller, other->slot.lun,
                       other->read_only ? "read-only" : "writable");
    if (d && file.bytes < d->image.bytes)
        return err_set(err, ERR_STATE, "%s was cut from %llu to %llu bytes while the VM has it",
                       disk->host_path, (unsigned long long)d->image.bytes,
                       (unsigned long long)file.bytes);
    if (other && !d)
        return err_set(err, ERR_STATE, "%s is still disk %u:%u, which is being released",
                       disk->host_path, other->slot.controller, other->slot.lun);
    if (!d)
        d = new_disk(c, disk, &file, err);
    if (!d)
        return -1;
    struct scsi_mount wanted = *mount;
    wanted.read_only |= disk->read_only;
    struct mount *m = take_mount(d, &wanted, err); /* cannot fail on a new disk */
    if (!m)
        return -1;
    *ret_id = reservations_take(&c->reservations, &m->held);
    return 0;
}

int scsi_map(struct ctx *ctx, struct scsi *c, uint64_t id, char **ret_path, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.map", err);
    struct mount *m = held ? mount_of(reservations_use(&c->reservations, id, err)) : NULL;

    if (!m)
        return -1;
    if (m->disk->deserted && m->state != MOUNT_MOUNTED)
        return err_set(err, ERR_STATE, "the disk of reservation %llu is being released",
                       (unsigned long long)id);
    if (disk_attach(ctx, m->disk, c->vmm, err) < 0 || scsi_mount_mount(ctx, m, c->guest, err) < 0)
        return -1;
    *ret_path = str_dup(m->guest.mount_path);
    return 0;
}

int scsi_unmap(struct ctx *ctx, struct scsi *c, uint64_t id, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.unmap", err);
    struct mount *m = held ? mount_of(reservations_find(&c->reservations, id, err)) : NULL;

    if (!m)
        return -1;
    if (m->held.refs == 1) {
        struct disk *d = m->disk;

        m->held.leaving = true;
        if (!d->deserted && scsi_mount_unmount(ctx, m, c->guest, err) < 0) {
            if (!scsi_silent(ctx, err))
                return -1;
            disk_desert(ctx, d, err);
        }
        bool last = d->mounts.next == &m->node && d->mounts.prev == &m->node;
        if (last && disk_detach(ctx, c, d, err) < 0)
            return -1;
    }
    reservations_drop(&c->reservations, id);
    return 0;
}

size_t scsi_used_slots(const struct scsi *c)
{
    size_t n = 0;

    for (unsigned i = 0; i < c->n_slots; i++)
        n += c->slots[i] != NULL;
    return n;
}

size_t scsi_lost_slots(const struct scsi *c)
{
    size_t n = 0;

    for (unsigned i = 0; i < c->n_slots; i++)
        n += c->lost[i];
    return n;
}

static void describe_mount(const struct mount *m, struct jsw *w)
{
    jsw_obj(w, NULL);
    jsw_u64(w, "partition", m->guest.partition);
    jsw_str(w, "path", m->guest.mount_path);
    jsw_str(w, "state", fsm_state_name(&mount_fsm, m->state));
    jsw_u64(w, "holders", m->held.refs);
    jsw_end_obj(w);
}

static unsigned holders(const struct disk *d)
{
    unsigned n = 0;

    LIST_EACH (&d->mounts, at)
        n += LIST_ENTRY(at, struct mount, node)->held.refs;
    return n;
}

void scsi_describe(const struct scsi *c, struct jsw *w)
{
    for (unsigned i = 0; i < c->n_slots; i++) {
        const struct disk *d = c->slots[i];

        if (!d)
            continue;

        AUTO_FREE char *slot = str_format("%u:%u", d->slot.controller, d->slot.lun);

        jsw_obj(w, NULL);
        jsw_str(w, "slot", slot);
        jsw_str(w, "path", d->host_path);
        jsw_bool(w, "read_only", d->read_only);
        jsw_str(w, "state", fsm_state_name(&scsi_disk_fsm, d->state));
        jsw_u64(w, "holders", holders(d));
        jsw_arr(w, "mounts");
        LIST_EACH (&d->mounts, at)
            describe_mount(LIST_ENTRY(at, struct mount, node), w);
        jsw_end_arr(w);
        jsw_end_obj(w);
    }
}
