/* qemu_scsi.c - disks: the image's descriptor goes to QEMU over its monitor (add-fd), becomes a
 * block node, then a disk on a controller, which is added if need be; or it is put below the disk
 * that was there from the beginning, of which the guest notices nothing. A step is noted before it
 * is asked for: an answer that was never read does not lose the thing. Undoing and removing are the
 * same walk backwards, which can stop anywhere and be repeated. */
#include "base/child.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/jail/jail.h"
#include "host/vmm/qemu/qemu_priv.h"
#include "proto/qmp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LUNS 64
#define UNDO_NS (10 * NS_PER_S)
/* The guest need not agree; QEMU waits for its own I/O on that disk. Then it is asked again. */
#define DELETED_NS (5 * NS_PER_S)
#define FDSET_BASE 1000

struct qemu_disk {
    struct list node;
    struct scsi_slot slot;
    bool inside;   /* an add or a remove works on it */
    bool attached; /* all of it is there */
    bool has_fdset, has_file, has_node, has_device, read_only, is_block;
    uint64_t bytes; /* of a file */
    bool deleted;   /* the event came */
    struct waitq deleted_q;
};

/* --- words for QEMU --- */

static uint64_t fdset_id(const struct qemu_disk *d)
{
    return FDSET_BASE + (uint64_t)d->slot.controller * LUNS + d->slot.lun;
}

/* "sd-0-7" is the device, "disk-0-7" its node. */
static void put_name(struct jsw *w, const char *key, const char *what, const struct qemu_disk *d)
{
    AUTO_FREE char *name = str_format("%s-%u-%u", what, d->slot.controller, d->slot.lun);

    jsw_str(w, key, name);
}

static void fdset_args(struct jsw *w, const void *arg)
{
    jsw_u64(w, "fdset-id", fdset_id(arg));
}

static void put_node(struct jsw *w, const char *driver, const struct qemu_disk *d)
{
    jsw_str(w, "driver", driver);
    jsw_bool(w, "read-only", d->read_only);
    jsw_str(w, "discard", "unmap");
}

static void put_file(struct jsw *w, const struct qemu_disk *d)
{
    AUTO_FREE char *path = str_format("/dev/fdset/%llu", (unsigned long long)fdset_id(d));

    put_node(w, d->is_block ? "host_device" : "file", d);
    jsw_str(w, "filename", path);
}

static void node_args(struct jsw *w, const void *arg)
{
    const struct qemu_disk *d = arg;

    put_node(w, "raw", d);
    put_name(w, "node-name", "disk", d);
    jsw_obj(w, "file");
    put_file(w, d);
    jsw_end_obj(w);
}

/* By itself, to be put below a node that is there. */
static void file_args(struct jsw *w, const void *arg)
{
    put_file(w, arg);
    put_name(w, "node-name", "file", arg);
}

static void reopen_args(struct jsw *w, const void *arg)
{
    const struct qemu_disk *d = arg;

    jsw_arr(w, "options");
    jsw_obj(w, NULL);
    put_node(w, "raw", d);
    put_name(w, "node-name", "disk", d);
    put_name(w, "file", "file", d);
    jsw_end_obj(w);
    jsw_end_arr(w);
}

static void device_args(struct jsw *w, const void *arg)
{
    const struct qemu_disk *d = arg;
    AUTO_FREE char *bus = str_format("scsi%u.0", d->slot.controller);

    jsw_str(w, "driver", "scsi-hd");
    put_name(w, "id", "sd", d);
    jsw_str(w, "bus", bus);
    jsw_u64(w, "channel", 0);
    jsw_u64(w, "scsi-id", 0);
    jsw_u64(w, "lun", d->slot.lun);
    put_name(w, "drive", "disk", d);
    put_name(w, "serial", "sd", d);
    jsw_u64(w, "rotation_rate", 1); /* no seeks: the guest need not sort */
    /* A full host disk is an I/O error in the guest; QEMU's default stops the whole VM. */
    jsw_str(w, "werror", "report");
    jsw_str(w, "rerror", "report");
}

static void device_id_args(struct jsw *w, const void *arg)
{
    put_name(w, "id", "sd", arg);
}

static void node_name_args(struct jsw *w, const void *arg)
{
    put_name(w, "node-name", "disk", arg);
}

static void file_name_args(struct jsw *w, const void *arg)
{
    put_name(w, "node-name", "file", arg);
}

/* --- records --- */

static struct qemu_disk *find_disk(struct qemu *q, struct scsi_slot slot)
{
    LIST_EACH (&q->disks, n) {
        struct qemu_disk *d = LIST_ENTRY(n, struct qemu_disk, node);
        if (d->slot.controller == slot.controller && d->slot.lun == slot.lun)
            return d;
    }
    return NULL;
}

static void drop_disk(struct qemu_disk *d)
{
    list_remove(&d->node);
    free(d);
}

void qemu_disks_forget(struct qemu *q)
{
    while (!list_empty(&q->disks))
        drop_disk(LIST_FIRST(&q->disks, struct qemu_disk, node));
    q->n_controllers = 0;
    q->has_spare = false;
}

void qemu_disk_deleted(struct qemu *q, const char *device)
{
    LIST_EACH (&q->disks, n) {
        struct qemu_disk *d = LIST_ENTRY(n, struct qemu_disk, node);
        AUTO_FREE char *name = str_format("sd-%u-%u", d->slot.controller, d->slot.lun);
        if (!str_eq(name, device))
            continue;
        d->deleted = true;
        waitq_wake_all(&d->deleted_q);
    }
}

bool qemu_is_gone(const struct qemu *q)
{
    return q->dying || q->ended.set || !q->proc || child_done(q->proc->child, NULL);
}

int qemu_check_runs(const struct qemu *q, const char *what, struct err *err)
{
    if (q->dying || q->ended.set)
        return err_set(err, ERR_UNAVAILABLE, "%s: the VM is gone", what);
    if (q->state != QEMU_RUNNING || !q->proc)
        return err_set(err, ERR_STATE, "%s: the VM does not run", what);
    return 0;
}

/* --- backwards --- */

static int remove_device(struct ctx *ctx, struct qemu *q, struct qemu_disk *d, struct err *err)
{
    for (;;) {
        d->deleted = false;
        if (qmp_client_call(ctx, q->proc->qmp, "device_del", device_id_args, d, NULL, err) < 0) {
            if (err->code == ERR_NOT_FOUND)
                return 0;
            /* Asked before, and still under way there. */
            if (err->code != ERR_UNKNOWN || !strstr(err->msg, "unplug"))
                return -1;
        }
        struct ctx limited = ctx_with_timeout(ctx, DELETED_NS);
        int r = 0;

        while (!d->deleted && r == 0)
            r = waitq_wait(&limited, &d->deleted_q, "qemu: disk to be removed", err);
        if (d->deleted)
            return 0;
        if (err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0)
            return -1;
    }
}

static int remove_node(struct ctx *ctx, struct qemu *q, struct qemu_disk *d,
                       void (*args)(struct jsw *w, const void *arg), struct err *err)
{
    if (qmp_client_call(ctx, q->proc->qmp, "blockdev-del", args, d, NULL, err) < 0 &&
        !(err->code == ERR_UNKNOWN && strstr(err->msg, "find node")))
        return -1;
    return 0;
}

static int walk_back(struct ctx *ctx, struct qemu *q, struct qemu_disk *d, struct err *err)
{
    if (d->has_device && remove_device(ctx, q, d, err) < 0)
        return -1;
    d->has_device = false;
    if (d->has_node && remove_node(ctx, q, d, node_name_args, err) < 0)
        return -1;
    d->has_node = false;
    if (d->has_file && remove_node(ctx, q, d, file_name_args, err) < 0)
        return -1;
    d->has_file = false;
    /* QEMU refuses this only if there is no such set. */
    if (d->has_fdset &&
        qmp_client_call(ctx, q->proc->qmp, "remove-fd", fdset_args, d, NULL, err) < 0 &&
        err->code != ERR_UNKNOWN)
        return -1;
    d->has_fdset = false;
    return 0;
}

/* Takes the record with it when nothing is left. */
static int take_back(struct ctx *ctx, struct qemu *q, struct qemu_disk *d, struct err *err)
{
    struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);

    d->inside = true;
    d->attached = false;
    int r = qemu_is_gone(q) ? 0 : walk_back(&inner, q, d, err);
    d->inside = false;
    if (r < 0 && qemu_is_gone(q))
        r = 0;
    if (r == 0)
        drop_disk(d);
    qemu_op_end(&op);
    return r;
}

/* --- forwards --- */

/* The guest has been told of a disk for writing, and of its size. */
static bool fits_spare(const struct qemu *q, const struct qemu_disk *d)
{
    return !d->read_only && !d->is_block && d->bytes == (uint64_t)q->doc.disk_mib << 20;
}

static int fill_spare(struct ctx *ctx, struct qemu *q, struct qemu_disk *d, struct err *err)
{
    d->has_file = true;
    if (qmp_client_call(ctx, q->proc->qmp, "blockdev-add", file_args, d, NULL, err) < 0)
        return -1;
    return qmp_client_call(ctx, q->proc->qmp, "blockdev-reopen", reopen_args, d, NULL, err);
}

static int walk_on(struct ctx *ctx, struct qemu *q, struct qemu_disk *d, int image_fd,
                   struct err *err)
{
    bool spare = q->has_spare && d->slot.controller == 0 && d->slot.lun == 0;

    if (spare) {
        q->has_spare = false;
        d->has_node = d->has_device = true;
        spare = fits_spare(q, d);
        if (!spare && walk_back(ctx, q, d, err) < 0)
            return -1;
    }
    d->has_fdset = true;
    if (qmp_client_call_fd(ctx, q->proc->qmp, "add-fd", image_fd, fdset_args, d, NULL, err) < 0)
        return -1;
    if (spare)
        return fill_spare(ctx, q, d, err);
    d->has_node = true;
    if (qmp_client_call(ctx, q->proc->qmp, "blockdev-add", node_args, d, NULL, err) < 0)
        return -1;
    d->has_device = true;
    return qmp_client_call(ctx, q->proc->qmp, "device_add", device_args, d, NULL, err);
}

static void undo(struct qemu *q, struct qemu_disk *d)
{
    struct ctx limited = ctx_with_timeout(&q->root, UNDO_NS);
    struct err err = ERR_INIT;

    if (take_back(&limited, q, d, &err) < 0)
        log_warn(&q->life, "a disk that was not attached is not taken back yet; its next use does",
                 F_U("controller", d->slot.controller), F_U("lun", d->slot.lun), F_ERR(&err));
}

static int check_slot(struct ctx *ctx, struct qemu *q, struct scsi_slot slot, struct err *err)
{
    if (slot.controller >= QEMU_SCSI_MAX || slot.lun >= LUNS)
        return err_set(err, ERR_INVALID, "no such slot: a VM has %d controllers of %d",
                       QEMU_SCSI_MAX, LUNS);
    struct qemu_disk *old = find_disk(q, slot);
    if (!old)
        return 0;
    /* What an undo could not finish is finished now. */
    if (old->inside || old->attached)
        return err_set(err, ERR_STATE, "the slot is in use");
    return take_back(ctx, q, old, err);
}

/* --- the descriptor that QEMU gets --- */

struct image {
    int given; /* ours, a copy */
    int fd;    /* out */
    bool read_only, is_block;
    uint64_t bytes;
};

static void image_free(void *arg)
{
    struct image *i = arg;

    if (!i)
        return;
    fd_close_later(i->given);
    fd_close_later(i->fd);
    free(i);
}

/* In a thread: the image may be on a file system that does not answer. QEMU can open its
 * descriptors anew (jail.h, fd_links), so a file that it may only read comes from a read-only
 * mount, and a device is one that cannot be opened again. */
static int image_prepare(void *arg, struct err *err)
{
    struct image *i = arg;
    struct stat st;
    int flags = fcntl(i->given, F_GETFL);

    if (flags < 0 || fstat(i->given, &st) < 0)
        return err_sys(err, errno, "look at the image");
    if ((flags & O_ACCMODE) != (i->read_only ? O_RDONLY : O_RDWR))
        return err_set(err, ERR_INVALID, "the image is not opened for %s",
                       i->read_only ? "reading alone" : "reading and writing");
    i->is_block = S_ISBLK(st.st_mode);
    i->bytes = (uint64_t)st.st_size;
    if (i->is_block) {
        i->fd = jail_device(i->given, flags & O_ACCMODE);
        return i->fd < 0 ? err_sys(err, -i->fd, "open the device for qemu") : 0;
    }
    if (!i->read_only) {
        i->fd = TAKE_FD(i->given);
        return 0;
    }
    AUTO_FD int tree = jail_tree(i->given);
    if (tree < 0)
        return err_sys(err, -tree, "make a read-only mount of the image");
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", tree);
    i->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return i->fd < 0 ? err_sys(err, errno, "open the image for reading") : 0;
}

/* *ret_fd: caller closes. */
static int image_open(struct ctx *ctx, int image_fd, struct qemu_disk *d, int *ret_fd,
                      struct err *err)
{
    struct image *i = mem_new(struct image);
    void *arg = i;

    *i = (struct image){ .given = fcntl(image_fd, F_DUPFD_CLOEXEC, 3),
                         .fd = -1,
                         .read_only = d->read_only };
    int r = offload_run(ctx, image_prepare, &arg, image_free, "qemu: open a disk's image", err);
    i = arg;
    if (r == 0) {
        d->is_block = i->is_block;
        d->bytes = i->bytes;
        *ret_fd = TAKE_FD(i->fd);
    }
    image_free(i);
    return r;
}

static int walk_all(struct ctx *ctx, struct qemu *q, struct qemu_disk *d, int image_fd,
                    struct err *err)
{
    AUTO_FD_LATER int fd = -1;

    if (image_open(ctx, image_fd, d, &fd, err) < 0 || qemu_check_runs(q, "attach", err) < 0 ||
        qemu_need_controller(ctx, q, d->slot.controller, err) < 0)
        return -1;
    return walk_on(ctx, q, d, fd, err);
}

static int add_disk(struct ctx *ctx, struct qemu *q, struct scsi_slot slot, int image_fd,
                    bool read_only, struct err *err)
{
    if (qemu_check_runs(q, "attach", err) < 0 || check_slot(ctx, q, slot, err) < 0)
        return -1;
    struct qemu_disk *d = mem_new(struct qemu_disk);
    struct qemu_op op;

    d->slot = slot;
    d->read_only = read_only;
    d->inside = true;
    waitq_init(&d->deleted_q);
    list_append(&q->disks, &d->node);
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = walk_all(&inner, q, d, image_fd, err);

    d->inside = false;
    d->attached = r == 0;
    if (r < 0)
        undo(q, d);
    qemu_op_end(&op);
    return r;
}

int qemu_scsi_add(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, int image_fd,
                  bool read_only, struct err *err)
{
    if (add_disk(ctx, qemu_of(v), slot, image_fd, read_only, err) < 0)
        return err_wrap(err, "disk %u:%u", slot.controller, slot.lun);
    return 0;
}

int qemu_scsi_remove(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, struct err *err)
{
    struct qemu *q = qemu_of(v);
    struct qemu_disk *d = find_disk(q, slot);

    if (!d)
        return 0;
    if (d->inside)
        return err_set(err, ERR_STATE, "disk %u:%u: another call works on it", slot.controller,
                       slot.lun);
    if (take_back(ctx, q, d, err) < 0)
        return err_wrap(err, "remove disk %u:%u", slot.controller, slot.lun);
    return 0;
}
