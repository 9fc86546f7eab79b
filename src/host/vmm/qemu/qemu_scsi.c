/* qemu_scsi.c - disks: the image's descriptor travels to QEMU over its monitor (add-fd), becomes a
 * block node, then a disk on a controller, which is added if need be; or it is put below the disk
 * that was there from the beginning, of which the guest notices nothing. */
#include "base/offload.h"
#include "host/jail/jail.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LUNS 64

/* Controller 1 is 0x1d, 3 the last place. Devices that do not ask for one take the first. */
#define PLACE_BASE 0x1c

static const struct plug_kind disk_kind = {
    .what = "disk",
    .names = { [PLUG_FILE] = "file-", [PLUG_NODE] = "disk-", [PLUG_DEVICE] = "sd-" },
    .fdset_base = 1000,
    .undo_ns = 10 * NS_PER_S,
    .release_ns = 5 * NS_PER_S, /* the guest need not agree; QEMU waits for its own I/O */
};

/* "0-7", as in QEMU's "disk-0-7", or "0:7". */
static const char *slot_name(struct scsi_slot slot, char between, char ret[16])
{
    snprintf(ret, 16, "%u%c%u", slot.controller, between, slot.lun);
    return ret;
}

/* --- controllers beyond those of boot, which cost time there --- */

/* Each is added when its first disk comes, on the bridge that takes hot-added devices, and stays.
 * Its place there tells the guest which one it is (guest/storage/scsi.c), whatever came and went
 * before. */
static int add_controller(struct ctx *ctx, struct qemu *q, unsigned n, struct err *err)
{
    char id[16], addr[16];

    snprintf(id, sizeof(id), "scsi%u", n);
    snprintf(addr, sizeof(addr), "%x", PLACE_BASE + n);
    /* With legacy support each one takes I/O ports, of which there are few. */
    json_t *args = json_pack("{ss,ss,ss,ss,ss}", "driver", "virtio-scsi-pci", "id", id, "bus", "hp",
                             "addr", addr, "disable-legacy", "on");
    if (qmp_client_call(ctx, q->proc->qmp, "device_add", args, NULL, err) < 0) {
        /* Asked for before; its answer was lost. */
        if (err->code != ERR_UNKNOWN || !strstr(err->msg, "Duplicate"))
            return err_wrap(err, "add SCSI controller %u", n);
        err_clear(err);
    }
    q->n_controllers = n + 1;
    log_info(&q->life, "SCSI controller added", F_U("controller", n));
    return 0;
}

static int need_controller(struct ctx *ctx, struct qemu *q, unsigned controller, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&q->controllers, ctx, "qemu.controller", err);

    if (!held)
        return -1;
    if (q->n_controllers < q->doc.scsi_controllers)
        q->n_controllers = q->doc.scsi_controllers;
    while (q->n_controllers <= controller) {
        /* Others were waited for: look again. */
        if (qemu_check_runs(q, "add a SCSI controller", err) < 0 ||
            add_controller(ctx, q, q->n_controllers, err) < 0)
            return -1;
    }
    return 0;
}

/* --- the descriptor that QEMU gets --- */

struct image {
    int given; /* ours, a copy */
    int fd;    /* out */
    bool read_only, is_block;
    uint64_t bytes; /* of a file */
};

static void image_close(void *job)
{
    struct image *i = job;

    fd_close_later(i->given);
    fd_close_later(i->fd);
}

/* In a thread: the image may be on a file system that does not answer. QEMU can open its
 * descriptors anew (jail.h, fd_links), so a file that it may only read comes from a read-only
 * mount, and a device is one that cannot be opened again. */
static int image_prepare(void *job, struct err *err)
{
    struct image *i = job;
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

/* --- forwards --- */

/* The guest has been told of a disk for writing, and of its size. */
static bool fits_spare(const struct qemu *q, const struct image *i)
{
    return !i->read_only && !i->is_block && i->bytes == (uint64_t)q->doc.disk_mib << 20;
}

static json_t *file_args(const struct plug *p, const struct image *i)
{
    AUTO_FREE char *path = plug_fdset(p);

    return json_pack("{ss,sb,ss,ss}", "driver", i->is_block ? "host_device" : "file", "read-only",
                     i->read_only, "discard", "unmap", "filename", path);
}

/* The file by itself, then below the node that is there. */
static int fill_spare(struct ctx *ctx, struct qemu *q, struct plug *p, const struct image *i,
                      struct err *err)
{
    if (plug_make(ctx, q, p, PLUG_FILE, -1, file_args(p, i), err) < 0)
        return -1;
    json_t *args =
        json_pack("{s[{ss,sb,ss,ss+,ss+}]}", "options", "driver", "raw", "read-only", i->read_only,
                  "discard", "unmap", "node-name", "disk-", p->id, "file", "file-", p->id);
    return qmp_client_call(ctx, q->proc->qmp, "blockdev-reopen", args, NULL, err);
}

static int make_parts(struct ctx *ctx, struct qemu *q, struct plug *p, const struct image *i,
                      struct err *err)
{
    bool spare = q->has_spare && p->number == 0;
    char bus[16];

    if (spare) {
        q->has_spare = false;
        p->parts = 1u << PLUG_NODE | 1u << PLUG_DEVICE;
        spare = fits_spare(q, i);
        if (!spare && plug_unmake(ctx, q, p, err) < 0)
            return -1;
    }
    if (plug_make(ctx, q, p, PLUG_FDSET, i->fd, NULL, err) < 0)
        return -1;
    if (spare)
        return fill_spare(ctx, q, p, i, err);
    json_t *node = json_pack("{ss,sb,ss,so}", "driver", "raw", "read-only", i->read_only, "discard",
                             "unmap", "file", file_args(p, i));
    if (plug_make(ctx, q, p, PLUG_NODE, -1, node, err) < 0)
        return -1;
    snprintf(bus, sizeof(bus), "scsi%u.0", p->number / LUNS);
    /* rotation_rate 1: no seeks, so the guest need not sort. A full host disk is an I/O error in
     * the guest; QEMU's default stops the whole VM. */
    json_t *device = json_pack("{ss,ss,si,si,si,ss+,ss+,si,ss,ss}", "driver", "scsi-hd", "bus", bus,
                               "channel", 0, "scsi-id", 0, "lun", (int)(p->number % LUNS), "drive",
                               "disk-", p->id, "serial", "sd-", p->id, "rotation_rate", 1, "werror",
                               "report", "rerror", "report");
    return plug_make(ctx, q, p, PLUG_DEVICE, -1, device, err);
}

struct wanted {
    int image_fd;
    bool read_only;
};

static int make_disk(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                     struct err *err)
{
    const struct wanted *w = arg;
    struct image image = { .given = fcntl(w->image_fd, F_DUPFD_CLOEXEC, 3),
                           .fd = -1,
                           .read_only = w->read_only };

    if (OFFLOAD(ctx, image_prepare, &image, 0, image_close, "qemu: open a disk's image", err) < 0)
        return -1;
    int r = qemu_check_runs(q, "attach", err);
    if (r == 0)
        r = need_controller(ctx, q, p->number / LUNS, err);
    if (r == 0)
        r = make_parts(ctx, q, p, &image, err);
    image_close(&image);
    return r;
}

static int add_disk(struct ctx *ctx, struct qemu *q, const struct plug *what,
                    const struct wanted *w, struct err *err)
{
    if (qemu_check_runs(q, "attach", err) < 0)
        return -1;
    if (what->number >= QEMU_SCSI_MAX * LUNS)
        return err_set(err, ERR_INVALID, "no such slot: a VM has %d controllers of %d",
                       QEMU_SCSI_MAX, LUNS);
    const struct plug *old = plug_find(q, &disk_kind, what->id);
    if (old && (old->inside || old->attached))
        return err_set(err, ERR_STATE, "the slot is in use");
    /* What an undo could not finish is finished now. */
    if (old && plug_remove(ctx, q, &disk_kind, what->id, err) < 0)
        return -1;
    return plug_add(ctx, q, what, make_disk, w, err);
}

int qemu_scsi_add(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, int image_fd,
                  bool read_only, struct err *err)
{
    char id[16], label[16];
    const struct plug what = {
        .kind = &disk_kind, .id = id, .label = label, .number = slot.controller * LUNS + slot.lun
    };

    slot_name(slot, '-', id);
    slot_name(slot, ':', label);
    if (add_disk(ctx, qemu_of(v), &what, &(struct wanted){ image_fd, read_only }, err) < 0)
        return err_wrap(err, "disk %s", label);
    return 0;
}

int qemu_scsi_remove(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, struct err *err)
{
    char id[16];

    return plug_remove(ctx, qemu_of(v), &disk_kind, slot_name(slot, '-', id), err);
}
