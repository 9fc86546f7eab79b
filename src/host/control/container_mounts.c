/* container_mounts.c - what a container sees of the host beside its root file system: directories
 * and files by shares, images and devices as disks of the VM; and what it is given in the VM
 * instead (pod_volumes.c). Opened while the VM comes up, shared with it when it is there. */
#include "base/fd.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/config/annotations.h"
#include "host/config/volumes.h"
#include "host/control/container_priv.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/files/blockimage.h"
#include "oci/document.h"
#include "oci/spec.h"
#include "oci/userns.h"
#include "oci/volume.h"
#include <stdlib.h>
#include <string.h>

void mounts_release(struct mounts *m)
{
    for (size_t i = 0; i < m->n; i++) {
        fd_close_later(m->v[i].tree.fd);
        free(m->v[i].tree.followed);
        idmap_release(&m->v[i].ids);
        fd_close_later(m->v[i].disk);
        free(m->v[i].source);
        free(m->v[i].below);
    }
    free(m->v);
    *m = (struct mounts){ 0 };
}

/* Takes what is open in it. */
static void add(struct mounts *m, const struct mount_entry *entry)
{
    m->v = mem_grow(m->v, m->n, &m->cap, sizeof(*m->v));
    m->v[m->n++] = *entry;
}

/* --- opening --- */

/* Without a pause container these files do not exist on the host; containerd 1.7 then names
 * directories that it made in their place. The guest has the real ones. */
static bool is_no_file(const struct container *c, const char *to, const struct tree *tree)
{
    static const char *const files[] = { "/etc/hosts", "/etc/hostname", "/etc/resolv.conf" };
    bool known = false;

    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        known = known || str_eq(to, files[i]);
    return known && !tree->name[0] && c->p.pod->hidden;
}

int container_share_ids(const struct container *c, const struct idmap *ids, struct idmap *ret,
                        struct err *err)
{
    const struct config *config = c->r->o.config;

    return idmap_with(ids, config->vm_uid_base, config->vm_uid_count, ret, err);
}

static int mount_failed(const struct document_mount *d, struct err *err)
{
    return err_wrap_because(
        err, err->code == ERR_NOT_FOUND ? REASON_MOUNT_SOURCE_MISSING : REASON_MOUNT_FAILED,
        "mount %s on %s", d->source, d->destination);
}

static int open_share(struct ctx *ctx, struct container *c, const struct document_mount *d,
                      const struct idmap *ids, struct mount_entry *entry, bool *ret_drop,
                      struct err *err)
{
    const struct tree_opts opts = { d->read_only, d->recursive,
                                    d->top_only && !c->no_writable_shares, d->follow, &entry->ids };

    if (ids->uid && container_share_ids(c, ids, &entry->ids, err) < 0)
        return mount_failed(d, err);
    if (tree_open(ctx, d->source, &opts, &entry->tree, err) < 0)
        return mount_failed(d, err);
    if (entry->tree.writable) {
        entry->read_only = false;
        document_mount_writable(entry->json);
    }
    *ret_drop = is_no_file(c, d->destination, &entry->tree);
    return 0;
}

static int refuse_disk(const struct container *c, const char *what, const char *path,
                       struct err *err)
{
    if (!c->p.pod->ids.uid)
        return 0;
    return err_because(
        err, REASON_USERNS_DEVICE, ERR_INVALID,
        "%s %.200s: a container with a user namespace cannot have a disk, since its ids "
        "are not mapped; use a directory, or set hostUsers: true",
        what, path);
}

static int open_disk(struct ctx *ctx, struct container *c, const struct document_mount *d,
                     struct mount_entry *entry, struct err *err)
{
    enum blockimage_kind kind =
        d->kind == DOCUMENT_MOUNT_IMAGE ? BLOCKIMAGE_FILE : BLOCKIMAGE_DEVICE;

    if (refuse_disk(c, "mount on", d->destination, err) < 0)
        return -1;

    entry->kind = MOUNT_DISK;
    entry->raw = d->raw;
    if (blockimage_open(ctx, d->source, kind, d->read_only, &entry->disk, err) < 0)
        return mount_failed(d, err);
    return 0;
}

/* *ret_there: it is one of `lcow volume`, and a disk. */
static int open_volume(struct ctx *ctx, struct container *c, const struct document_mount *d,
                       json_t *json, struct mounts *m, bool *ret_there, struct err *err)
{
    struct mount_entry entry = {
        .json = json, .kind = MOUNT_DISK, .tree = { .fd = -1 }, .disk = -1
    };

    if (pod_take_disk(ctx, c->p.pod, d->source, &entry.volume, &entry.disk, &entry.below, err) < 0)
        return mount_failed(d, err);
    *ret_there = entry.volume != NULL;
    if (!entry.volume)
        return 0;
    entry.read_only = entry.volume->read_only;
    entry.source = str_dup(entry.volume->path);
    add(m, &entry);
    return refuse_disk(c, "mount on", d->destination, err);
}

/* *ret_drop: the container is better off without it. */
static int open_one(struct ctx *ctx, struct container *c, json_t *json, struct mounts *m,
                    bool *ret_drop, struct err *err)
{
    struct mount_entry entry = { .json = json, .tree = { .fd = -1 }, .disk = -1 };
    AUTO(idmap_release) struct idmap ids = { 0 };
    struct document_mount d;
    bool local = false;
    int r;

    *ret_drop = false;
    if (userns_take_mount(json, &c->p.pod->ids, &ids, err) < 0 || document_mount(json, &d, err) < 0)
        return -1;
    if (d.kind == DOCUMENT_MOUNT_GUEST)
        return 0;
    if (d.kind == DOCUMENT_MOUNT_HOST && open_volume(ctx, c, &d, json, m, &local, err) < 0)
        return -1;
    if (d.kind == DOCUMENT_MOUNT_HOST && !local && c != c->p.pod->holder &&
        pod_take_volume(ctx, c->p.pod, d.source, json, &local, err) < 0)
        return mount_failed(&d, err);
    if (local)
        return 0;
    if (d.kind == DOCUMENT_MOUNT_HOST && !d.read_only && c->no_writable_shares)
        return err_because(
            err, REASON_WRITABLE_SHARE_FORBIDDEN, ERR_PERMISSION,
            "mount %.200s: it is writable and, though an emptyDir, on the host, which "
            "%s forbids",
            d.source, annotations_no_writable_shares);
    entry.read_only = d.read_only;
    entry.recursive = d.recursive;
    r = d.kind == DOCUMENT_MOUNT_HOST ? open_share(ctx, c, &d, &ids, &entry, ret_drop, err)
                                      : open_disk(ctx, c, &d, &entry, err);
    if (r < 0 || *ret_drop) {
        fd_close_later(entry.tree.fd);
        free(entry.tree.followed);
        idmap_release(&entry.ids);
        return r;
    }
    entry.source = str_dup(d.source);
    add(m, &entry);
    return 0;
}

/* A raw block volume is a disk of the VM. Other devices are the VM's own; those that a client names
 * because the host has them all need not be there. Never a disk of the host by accident: only what
 * is allowed by its number counts as asked for. */
static int open_device(struct ctx *ctx, struct container *c, const struct spec *spec, json_t *json,
                       struct mounts *m, bool *ret_drop, struct err *err)
{
    struct mount_entry entry = {
        .json = json, .kind = MOUNT_DEVICE, .tree = { .fd = -1 }, .raw = true, .disk = -1
    };
    struct document_device d;

    *ret_drop = false;
    if (document_device(spec, json, &d, err) < 0)
        return -1;
    device_clear(json);
    if (d.type != 'b') {
        if (!d.asked)
            device_set_optional(json);
        return 0;
    }
    *ret_drop = !d.asked;
    if (!d.asked)
        return 0;
    if (refuse_disk(c, "device", d.path, err) < 0)
        return -1;
    entry.read_only = !d.writable;
    if (blockimage_open_number(ctx, d.major, d.minor, !d.writable, &entry.disk, err) < 0)
        return err_wrap_because(err, REASON_MOUNT_FAILED, "device %s", d.path);
    entry.source = str_dup(d.path);
    add(m, &entry);
    return 0;
}

int mounts_open(struct ctx *ctx, struct container *c, struct spec *spec, struct mounts *m,
                struct err *err)
{
    json_t *list = js_get(spec_json(spec), "mounts"), *json;
    bool drop;
    size_t i;

    json_array_foreach(list, i, json)
    {
        if (open_one(ctx, c, json, m, &drop, err) < 0)
            return -1;
        if (drop)
            json_array_remove(list, i--);
    }
    list = js_get(js_get(spec_json(spec), "linux"), "devices");
    json_array_foreach(list, i, json)
    {
        if (open_device(ctx, c, spec, json, m, &drop, err) < 0)
            return -1;
        if (drop)
            json_array_remove(list, i--);
    }
    return 0;
}

/* --- sharing --- */

static int share_tree(struct ctx *ctx, struct container *c, const struct mount_entry *m,
                      char **ret_path, struct err *err)
{
    const struct plan9_share share = {
        .host_path = m->source,
        .tree_fd = m->tree.fd,
        .read_only = m->read_only,
        .follow = { m->tree.followed, m->tree.mount, .late = !m->recursive, .ids = m->ids },
        .unique = m->recursive || m->ids.uid || m->tree.name[0] || m->tree.followed
    };
    AUTO_FREE char *path = NULL;

    if (container_share(ctx, c, &share, &path, err) < 0)
        return -1;
    *ret_path = m->tree.name[0] ? str_format("%s/%s", path, m->tree.name) : TAKE_PTR(path);
    return 0;
}

static int attach_disk(struct ctx *ctx, struct container *c, const struct mount_entry *m,
                       char **ret_path, struct err *err)
{
    const struct scsi_disk disk = { .host_path = m->source,
                                    .fd = m->disk,
                                    .read_only = m->read_only };
    struct guest_disk mount = { .read_only = m->read_only, .block_device = m->raw };

    if (m->volume) {
        mount.filesystem = m->volume->fstype;
        mount.options = (const char *const *)m->volume->options;
        mount.fs_group = m->volume->group;
        mount.fs_group_policy = m->volume->group_policy;
    }
    uint64_t id;

    return container_attach(ctx, c, &disk, &mount, &id, err) < 0
               ? -1
               : container_mount(ctx, c, id, ret_path, err);
}

/* A part of a volume: the guest makes what is missing of it, and follows no symlink. */
static void set_below(const struct mount_entry *m, const char *path)
{
    const struct volumes_record *volume = m->volume;
    bool group = volume->group_policy != NULL;
    AUTO(volume_release) struct volume v = { 0 };

    v.at = str_format(VOLUME_DISK "%s", path + strlen(VOLUME_DISK_DIR "/"));
    for (const char *at = m->below; *at; at += *at == '/') {
        at += strcspn(at, "/");
        AUTO_FREE char *dir = str_ndup(m->below, (size_t)(at - m->below));
        volume_add_dir(&v, dir, group ? 02775 : 0755, 0, volume->group);
    }
    volume_write(&v, m->below, m->json);
}

static int share_one(struct ctx *ctx, struct container *c, struct mount_entry *m, struct err *err)
{
    AUTO_FREE char *path = NULL;

    if ((m->kind == MOUNT_SHARE ? share_tree(ctx, c, m, &path, err)
                                : attach_disk(ctx, c, m, &path, err)) < 0)
        return err_wrap_because(err, REASON_MOUNT_FAILED, "%s %s",
                                m->kind == MOUNT_DEVICE ? "device" : "mount", m->source);
    if (m->kind == MOUNT_DEVICE)
        device_set_symlink(m->json, path, m->read_only);
    else
        document_mount_set(m->json, path);
    if (m->kind == MOUNT_SHARE || m->volume)
        document_mount_nodev(m->json);
    if (m->volume && m->below[0])
        set_below(m, path);
    return 0;
}

int mounts_share(struct ctx *ctx, struct container *c, struct mounts *m, struct err *err)
{
    if (m->n == 0)
        return 0;

    SPAN(step, ctx, vm_timeline(c->p.pod->vm), TRACK_HOST, "share mounts", err);

    for (size_t i = 0; i < m->n; i++)
        if (share_one(step.ctx, c, &m->v[i], err) < 0)
            return -1;
    return 0;
}
