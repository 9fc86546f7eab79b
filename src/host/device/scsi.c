#include "host/device/scsi.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/offload.h"
#include "host/device/scsi_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

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
    F_STR(LK_HOST_PATH, (d)->host_path), F_U(LK_CONTROLLER, (d)->slot.controller),                 \
        F_U(LK_LUN, (d)->slot.lun)

/* --- images --- */

struct look {
    int fd; /* a copy */
    struct scsi_image image;
};

static void look_close(void *job)
{
    fd_close_later(((struct look *)job)->fd);
}

static int look(void *job, struct err *err)
{
    struct look *l = job;
    struct stat st;
    uint64_t bytes = 0;

    if (fstat(l->fd, &st) < 0 || (S_ISBLK(st.st_mode) && ioctl(l->fd, BLKGETSIZE64, &bytes) < 0))
        return err_sys(err, errno, "look at the image");
    l->image = S_ISBLK(st.st_mode)
                   ? (struct scsi_image){ .dev = st.st_rdev, .bytes = bytes }
                   : (struct scsi_image){ st.st_dev, st.st_ino, (uint64_t)st.st_size };
    return 0;
}

int scsi_image_look(struct ctx *ctx, int fd, struct scsi_image *ret, struct err *err)
{
    struct look l = { .fd = fcntl(fd, F_DUPFD_CLOEXEC, 3) };

    if (OFFLOAD(ctx, look, &l, 0, look_close, "scsi: look at an image", err) < 0)
        return -1;
    *ret = l.image;
    look_close(&l);
    return 0;
}

/* --- one partition in the guest --- */

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

static struct mount *mount_new(struct disk *d, const struct guest_disk *how)
{
    struct mount *m = mem_new(struct mount);

    for (size_t i = 0; i < count(how->options); i++)
        strv_add(&m->options, how->options[i]);
    m->disk = d;
    m->guest = *how;
    m->guest.controller = d->slot.controller;
    m->guest.lun = d->slot.lun;
    m->guest.mount_path = str_format("/run/mounts/scsi/%u_%u_%llu", d->slot.controller, d->slot.lun,
                                     (unsigned long long)how->partition);
    m->guest.root_hash = str_dup(given(how->root_hash));
    m->guest.filesystem = str_dup(given(how->filesystem));
    m->guest.fs_group_policy = str_dup(given(how->fs_group_policy));
    m->guest.options = (const char *const *)m->options.v;
    list_append(&d->mounts, &m->node);
    return m;
}

static int check_root_hash(const struct guest_disk *m, struct err *err)
{
    size_t len = m->root_hash ? strlen(m->root_hash) : 0;

    if (len == 0)
        return 0;
    if (!m->verity)
        return err_because(err, REASON_VERITY_MISSING, ERR_INVALID,
                           "a root hash without dm-verity");
    if (len != SCSI_ROOT_HASH_LEN || strspn(m->root_hash, "0123456789abcdefABCDEF") != len)
        return err_because(err, REASON_VERITY_MISSING, ERR_INVALID,
                           "the root hash \"%.80s\" is not %d hex digits (SHA-256)", m->root_hash,
                           SCSI_ROOT_HASH_LEN);
    return 0;
}

static int check_mount(const struct scsi_disk *disk, const struct guest_disk *m, struct err *err)
{
    bool read_only = disk->read_only || m->read_only;

    if (m->verity && (!disk->read_only || m->encrypted))
        return err_because(err, REASON_VERITY_MISSING, ERR_INVALID,
                           "dm-verity is for read-only disks that are not encrypted");
    if (m->encrypted && read_only)
        return err_set(err, ERR_INVALID,
                       "encrypted disks are formatted on attach and cannot be read-only");
    if (m->encrypted && !m->ensure_filesystem && !m->block_device)
        return err_set(err, ERR_INVALID,
                       "an encrypted disk is empty when attached: set ensure-filesystem, or use it "
                       "as a block device");
    return check_root_hash(m, err);
}

static size_t times(const char *word, const char *const *list)
{
    size_t n = 0;

    for (; list && *list; list++)
        n += strcasecmp(word, *list) == 0;
    return n;
}

/* The same way of mounting; the partition is not compared. */
static bool mounted_so(const struct mount *m, const struct guest_disk *b)
{
    const struct guest_disk *a = &m->guest;
    const char *hash = given(b->root_hash);

    if (a->read_only != b->read_only || a->encrypted != b->encrypted ||
        a->ensure_filesystem != b->ensure_filesystem || a->block_device != b->block_device ||
        a->verity != b->verity || !str_eq(a->filesystem, given(b->filesystem)) ||
        a->fs_group != b->fs_group || !str_eq(a->fs_group_policy, given(b->fs_group_policy)) ||
        m->options.n != count(b->options))
        return false;
    if (!a->root_hash != !hash || (hash && strcasecmp(a->root_hash, hash) != 0))
        return false;
    for (size_t i = 0; i < m->options.n; i++) /* in any order */
        if (times(a->options[i], a->options) != times(a->options[i], b->options))
            return false;
    return true;
}

/* A call failed for want of an answer, and the caller still has time. */
static bool is_silent(struct ctx *ctx, const struct err *err)
{
    struct err ended = ERR_INIT;

    return err->code == ERR_DEADLINE && ctx_check(ctx, &ended) == 0;
}

/* Says which one. */
static int failed(const struct mount *m, const char *what, struct err *err)
{
    return err_wrap_because(err, REASON_DISK_FAILED, "%s disk %u:%u partition %llu in the guest",
                            what, m->guest.controller, m->guest.lun,
                            (unsigned long long)m->guest.partition);
}

/* Both are idempotent. */
static int mount_mount(struct ctx *ctx, struct mount *m, struct guest *guest, struct err *err)
{
    if (m->state == PART_ADDED)
        return 0;
    if (fsm_check(&part_fsm, m->state, PART_EV_ADDED, err) < 0)
        return -1;
    int r = guest->ops->mount_disk(ctx, guest, &m->guest, err);
    fsm_step(&part_fsm, &m->state, r < 0 ? PART_EV_ADD_FAILED : PART_EV_ADDED);
    return r < 0 ? failed(m, "mount", err) : 0;
}

static int mount_unmount(struct ctx *ctx, struct mount *m, struct guest *guest, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, SCSI_GUEST_S * NS_PER_S);

    if (m->state == PART_RESERVED)
        fsm_step(&part_fsm, &m->state, PART_EV_DROPPED);
    if (m->state == PART_REMOVED)
        return 0;
    /* After a failed mount too: its answer may have been lost. Not mounted is success. */
    int r = guest->ops->unmount_disk(&limited, guest, &m->guest, err);
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return failed(m, "unmount", err);
    fsm_step(&part_fsm, &m->state, PART_EV_REMOVED);
    return 0;
}

/* --- one disk: attach, eject, remove --- */

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
        return err_wrap_because(err, REASON_DISK_FAILED, "attach %s as disk %u:%u", d->host_path,
                                d->slot.controller, d->slot.lun);
    log_info(ctx, "disk attached", F_DISK(d));
    return 0;
}

/* The guest did not release the disk in time. The disk gets no new holder, and is removed with its
 * last one. */
static void disk_desert(struct ctx *ctx, struct disk *d, struct err *err)
{
    d->deserted = true;
    log_warn(ctx, "the guest did not release a disk; detaching it, and its slot stays unusable",
             F_DISK(d), F_STR("why", err->msg), F_REASON(REASON_DISK_BUSY));
    err_clear(err);
}

static int disk_eject(struct ctx *ctx, struct disk *d, struct guest *guest, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, SCSI_GUEST_S * NS_PER_S);
    int r = d->deserted
                ? 0
                : guest->ops->eject_disk(&limited, guest, d->slot.controller, d->slot.lun, err);

    if (r < 0 && is_silent(ctx, err)) {
        disk_desert(ctx, d, err);
        r = 0;
    }
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return err_wrap_because(err, REASON_DISK_FAILED, "eject disk %u:%u (%s)",
                                d->slot.controller, d->slot.lun, d->host_path);
    fsm_step(&scsi_disk_fsm, &d->state, DISK_EV_EJECTED);
    return 0;
}

/* Logs a file that has become shorter: QEMU reads zeros there, without an error. */
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
        log_warn(ctx,
                 "a disk's image was truncated while the VM used it; the VM read the rest as zeros",
                 F_DISK(d), F_U("bytes-before", d->image.bytes), F_U("bytes", now.bytes),
                 F_REASON(REASON_DISK_TRUNCATED));
}

static int disk_remove(struct ctx *ctx, struct scsi *c, struct disk *d, struct err *err)
{
    struct vmm *vmm = c->vmm;
    int r = vmm->ops->scsi_remove ? vmm->ops->scsi_remove(ctx, vmm, d->slot, err) : 0;

    if (vmm_gone_is_done(r, ctx, err) < 0)
        return err_wrap_because(err, REASON_DISK_FAILED, "detach disk %u:%u (%s)",
                                d->slot.controller, d->slot.lun, d->host_path);
    fsm_step(&scsi_disk_fsm, &d->state, DISK_EV_REMOVED);
    look_if_cut(ctx, c, d);
    log_info(ctx, "disk detached", F_DISK(d));
    return 0;
}

/* From the disk's current state, step by step, until one fails; the next call continues there. */
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
    struct mount *m = mount_of(t);
    struct disk *d = m->disk;

    list_remove(&m->node);
    strv_release(&m->options);
    free((char *)m->guest.root_hash);
    free((char *)m->guest.filesystem);
    free((char *)m->guest.fs_group_policy);
    free((char *)m->guest.mount_path);
    free(m);
    if (!list_empty(&d->mounts))
        return;
    fd_close_later(d->fd);
    free(d->host_path);
    free(d);
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
    LIST_FOR (struct mount, m, &d->mounts, node)
        if (m->guest.partition == partition)
            return m;
    return NULL;
}

/* Only a disk that can still be used. A disk that failed or is being detached counts as another
 * one: no call waits for it, and its slot is free when its last holder has released it. */
static struct disk *find_disk(struct scsi *c, dev_t dev, ino_t ino, uint64_t partition)
{
    for (unsigned i = 0; i < c->n_slots; i++) {
        struct disk *d = c->slots[i];
        if (!d || d->image.dev != dev || d->image.ino != ino || d->leaving || d->deserted ||
            (d->state != DISK_RESERVED && d->state != DISK_ATTACHED))
            continue;
        struct mount *m = find_mount(d, partition);
        if (!m || (!m->held.leaving && m->state != PART_INVALID))
            return d;
    }
    return NULL;
}

/* The same file in a slot that find_disk does not offer. If one of the two writes, only one of them
 * may be attached. */
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
        err_because(
            err, REASON_DISK_NO_SLOT, ERR_EXHAUSTED,
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
static struct mount *take_mount(struct disk *d, const struct guest_disk *o, struct err *err)
{
    struct mount *m = find_mount(d, o->partition);

    if (m && !mounted_so(m, o)) {
        err_because(err, REASON_DISK_CONFLICT, ERR_STATE,
                    "partition %llu of %s is mounted in another way already",
                    (unsigned long long)o->partition, d->host_path);
        return NULL;
    }
    return m ? m : mount_new(d, o);
}

int scsi_reserve(struct ctx *ctx, struct scsi *c, const struct scsi_disk *disk,
                 const struct guest_disk *mount, uint64_t *ret_id, struct err *err)
{
    struct scsi_image file;

    /* Before the gate: a file that does not answer must not delay other calls. */
    if (c->look(ctx, disk->fd, &file, err) < 0)
        return err_wrap_because(err, REASON_DISK_FAILED, "disk %s", disk->host_path);
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.reserve", err);
    if (!held)
        return -1;
    if (check_mount(disk, mount, err) < 0)
        return err_wrap_because(err, REASON_DISK_FAILED, "disk %s", disk->host_path);
    struct disk *d = find_disk(c, file.dev, file.ino, mount->partition);
    const struct disk *other = d ? d : find_other(c, file.dev, file.ino, disk->read_only);
    if (other && other->read_only != disk->read_only)
        return err_because(err, REASON_DISK_CONFLICT, ERR_STATE,
                           "%s is disk %u:%u already, %s: it cannot be both", disk->host_path,
                           other->slot.controller, other->slot.lun,
                           other->read_only ? "read-only" : "writable");
    if (d && file.bytes < d->image.bytes)
        return err_because(err, REASON_DISK_TRUNCATED, ERR_STATE,
                           "%s was cut from %llu to %llu bytes while the VM has it",
                           disk->host_path, (unsigned long long)d->image.bytes,
                           (unsigned long long)file.bytes);
    if (other && !d)
        return err_because(err, REASON_DISK_BUSY, ERR_STATE,
                           "%s is still disk %u:%u, which is being released", disk->host_path,
                           other->slot.controller, other->slot.lun);
    if (!d)
        d = new_disk(c, disk, &file, err);
    if (!d)
        return -1;
    struct guest_disk wanted = *mount;
    wanted.read_only |= disk->read_only;
    struct mount *m = take_mount(d, &wanted, err); /* cannot fail on a new disk */
    if (!m)
        return -1;
    *ret_id = reservations_take(&c->reservations, &m->held);
    return 0;
}

/* Its mount, with the disk attached; the caller is inside the gate. */
static struct mount *attach(struct ctx *ctx, struct scsi *c, uint64_t id, struct err *err)
{
    struct mount *m = mount_of(reservations_use(&c->reservations, id, err));

    if (!m)
        return NULL;
    if (m->disk->deserted && m->state != PART_ADDED) {
        err_because(err, REASON_DISK_BUSY, ERR_STATE,
                    "the disk of reservation %llu is being released", (unsigned long long)id);
        return NULL;
    }
    return disk_attach(ctx, m->disk, c->vmm, err) < 0 ? NULL : m;
}

int scsi_attach(struct ctx *ctx, struct scsi *c, uint64_t id, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.attach", err);

    return held && attach(ctx, c, id, err) ? 0 : -1;
}

int scsi_map(struct ctx *ctx, struct scsi *c, uint64_t id, char **ret_path, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.map", err);
    struct mount *m = held ? attach(ctx, c, id, err) : NULL;

    if (!m || mount_mount(ctx, m, c->guest, err) < 0)
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
        if (!d->deserted && mount_unmount(ctx, m, c->guest, err) < 0) {
            if (!is_silent(ctx, err))
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

int scsi_resize(struct ctx *ctx, struct scsi *c, const char *host_path, uint64_t *ret_bytes,
                struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.resize", err);
    struct scsi_image now = { 0 };
    struct disk *d = NULL;

    if (!held)
        return -1;
    for (unsigned i = 0; i < c->n_slots && !d; i++)
        if (c->slots[i] && c->slots[i]->state == DISK_ATTACHED &&
            str_eq(c->slots[i]->host_path, host_path))
            d = c->slots[i];
    if (!d)
        return err_set(err, ERR_STATE, "%s is not a disk of this VM", host_path);
    if (c->look(ctx, d->fd, &now, err) < 0)
        return err_wrap_because(err, REASON_DISK_FAILED, "disk %s", host_path);
    if (now.bytes < d->image.bytes)
        return err_set(err, ERR_INVALID,
                       "%s has %llu bytes, and had %llu: a disk in use cannot shrink", host_path,
                       (unsigned long long)now.bytes, (unsigned long long)d->image.bytes);
    int r = c->vmm->ops->scsi_resize
                ? c->vmm->ops->scsi_resize(ctx, c->vmm, d->slot, now.bytes, err)
                : vmm_unsupported("scsi_resize", err);
    if (r < 0)
        return err_wrap_because(err, REASON_DISK_FAILED, "resize disk %u:%u (%s)",
                                d->slot.controller, d->slot.lun, host_path);
    *ret_bytes = d->image.bytes = now.bytes;
    log_info(ctx, "disk resized", F_DISK(d), F_U("bytes", now.bytes));
    return 0;
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
    jsw_str(w, "state", fsm_state_name(&part_fsm, m->state));
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

/* Of dm-verity; NULL: what the guest reads of it is not verified. */
static const char *root_hash(const struct disk *d)
{
    LIST_EACH (&d->mounts, at)
        if (LIST_ENTRY(at, struct mount, node)->guest.verity)
            return LIST_ENTRY(at, struct mount, node)->guest.root_hash;
    return NULL;
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
        jsw_str(w, "root_hash", root_hash(d));
        jsw_arr(w, "mounts");
        LIST_EACH (&d->mounts, at)
            describe_mount(LIST_ENTRY(at, struct mount, node), w);
        jsw_end_arr(w);
        jsw_end_obj(w);
    }
}
