/* pod_volumes.c - a pod's volumes that are disks of its VM, by a record of `lcow volume`; and its
 * emptyDirs, which live in its VM: a directory on the scratch disk,
 * or a tmpfs, that stands for the kubelet's directory on the host. Sockets and fifos work there,
 * and nothing that is written crosses the share. Whether a volume is one of these is decided once,
 * when its first container is made: all containers of the pod must see the same. */
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/str.h"
#include "host/config/config.h"
#include "host/control/pod_priv.h"
#include "host/control/registry.h"
#include "host/files/blockimage.h"
#include "host/files/emptydir.h"
#include "oci/volume.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define MIB2 (UINT64_C(2) << 20)
#define GIB1 (UINT64_C(1) << 30)

void pod_release_volumes(struct pod *pod)
{
    LIST_FOR (struct pod_disk, d, &pod->disks, node) {
        list_remove(&d->node);
        volumes_release(&d->v);
        fd_close_later(d->fd);
        free(d);
    }
    LIST_FOR (struct pod_volume, v, &pod->volumes, node) {
        list_remove(&v->node);
        free(v->dir);
        free(v->key);
        free(v);
    }
}

static struct pod_volume *find(struct pod *pod, const char *dir)
{
    LIST_FOR (struct pod_volume, v, &pod->volumes, node)
        if (str_eq(v->dir, dir))
            return v;
    return NULL;
}

/* Its name for people, and what distinguishes it from others of that name. */
static char *key_of(const char *dir)
{
    const char *name = strrchr(dir, '/') + 1;
    char hex[SHA256_HEX_SIZE];

    sha256_of(dir, strlen(dir), hex);
    for (const char *at = name; *at; at++)
        if ((!isalnum((unsigned char)*at) && *at != '-') || at - name > 63)
            return str_format("volume-%.16s", hex);
    return str_format("%s-%.16s", name, hex);
}

static struct pod_volume *decide(struct ctx *ctx, struct pod *pod, const char *dir,
                                 const struct emptydir *found)
{
    struct pod_volume *v = mem_new(struct pod_volume);

    v->dir = str_dup(dir);
    v->key = key_of(dir);
    v->local = !found->has_files;
    list_append(&pod->volumes, &v->node);
    if (v->local)
        log_debug(ctx, "emptyDir lives in the VM", F_STR(LK_HOST_PATH, dir));
    else
        log_info(ctx, "emptyDir is shared with the host, since it is not empty",
                 F_STR(LK_HOST_PATH, dir));
    return v;
}

static int write_huge(const struct emptydir *found, const char *key, json_t *mount, struct err *err)
{
    const char *size = found->page_size == MIB2 ? "2M" : found->page_size == GIB1 ? "1G" : NULL;

    if (!size)
        return err_because(err, REASON_HUGE_PAGES, ERR_INVALID,
                           "unsupported huge page size of %llu bytes: must be 2 MiB or 1 GiB",
                           (unsigned long long)found->page_size);
    AUTO_FREE char *source = str_format("hugepages://%s/%s", size, key);
    json_object_set_new(mount, "source", json_string(source));
    return 0;
}

static int write(const struct emptydir *found, const char *key, json_t *mount, struct err *err)
{
    AUTO(volume_release)
    struct volume v = { .tmpfs = found->kind == EMPTYDIR_MEMORY, .bytes = found->bytes };

    if (found->kind == EMPTYDIR_HUGE)
        return write_huge(found, key, mount, err);
    v.at = str_format("sandbox://empty-dir/%s", key);
    for (size_t i = 0; i < found->n; i++)
        volume_add_dir(&v, found->dirs[i].path, found->dirs[i].mode, found->dirs[i].uid,
                       found->dirs[i].gid);
    volume_write(&v, found->dirs[found->at].path, mount);
    return 0;
}

int pod_take_volume(struct ctx *ctx, struct pod *pod, const char *source, json_t *mount,
                    bool *ret_local, struct err *err)
{
    AUTO_FREE char *dir = NULL;
    struct emptydir found = { 0 };
    int r = 0;

    *ret_local = false;
    /* Only in a pod whose own files are on the scratch disk. */
    if (!pod->has_scratch || pod->shares_empty_dirs || !volume_is_empty_dir(source, &dir))
        return 0;
    if (emptydir_look(ctx, dir, source, &found, err) < 0)
        return -1;
    if (found.kind != EMPTYDIR_NONE) {
        struct pod_volume *v = find(pod, dir); /* after the wait */

        if (!v)
            v = decide(ctx, pod, dir, &found);
        *ret_local = v->local;
        /* Never another directory of it instead. */
        if (v->local && found.elsewhere)
            r = err_because(
                err, REASON_MOUNT_FAILED, ERR_STATE,
                "emptyDir %s is in the VM, but the mount's source was not found in it: check "
                "whether another program created it on the host",
                dir);
        else if (v->local)
            r = write(&found, v->key, mount, err);
    }
    emptydir_release(&found);
    return r;
}

/* --- disks --- */

/* Which directory of the volume the kubelet has bound there. It made that on the host, in the
 * directory that stands for the volume. */
static int find_below(struct ctx *ctx, const char *dir, const char *source, char **ret,
                      struct err *err)
{
    struct emptydir found = { 0 };

    if (emptydir_look(ctx, dir, source, &found, err) < 0)
        return -1;
    if (found.kind != EMPTYDIR_NONE && !found.elsewhere)
        *ret = str_dup(found.dirs[found.at].path);
    emptydir_release(&found);
    return *ret ? 0
                : err_because(err, REASON_MOUNT_FAILED, ERR_STATE,
                              "volume %s: %s is not a bind mount of a directory in it; check "
                              "whether another program created files there",
                              dir, source);
}

static struct pod_disk *find_disk(struct pod *pod, const char *path)
{
    LIST_FOR (struct pod_disk, d, &pod->disks, node)
        if (str_eq(d->v.path, path))
            return d;
    return NULL;
}

/* The pod's, opened if it is new; then it takes *v. */
static struct pod_disk *need_disk(struct ctx *ctx, struct pod *pod, struct volumes_record *v,
                                  struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&pod->disks_gate, ctx, "pod.disk", err);
    struct pod_disk *d = held ? find_disk(pod, v->path) : NULL;
    int fd = -1;

    if (!held || d)
        return d;
    if (blockimage_open(ctx, v->device, BLOCKIMAGE_HELD, v->read_only, &fd, err) < 0) {
        (void)err_wrap_because(err, REASON_MOUNT_FAILED, "volume %s", v->path);
        return NULL;
    }
    log_info(ctx, "volume is a disk of the VM", F_STR(LK_HOST_PATH, v->path),
             F_STR("device", v->device));
    d = mem_new(struct pod_disk);
    *d = (struct pod_disk){ .v = *v, .fd = fd };
    *v = (struct volumes_record){ 0 };
    list_append(&pod->disks, &d->node);
    return d;
}

int pod_take_disk(struct ctx *ctx, struct pod *pod, const char *source,
                  const struct volumes_record **ret, int *ret_fd, char **ret_below, struct err *err)
{
    AUTO(volumes_release) struct volumes_record v = { 0 };
    AUTO_FREE char *part = NULL;
    const char *below = NULL;
    bool there;

    *ret = NULL;
    if (volumes_find(pod->r->o.config->run_root, source, &v, &there, &below, err) < 0)
        return -1;
    if (!there)
        return 0;
    if (!below && find_below(ctx, v.path, source, &part, err) < 0)
        return -1;

    struct pod_disk *d = need_disk(ctx, pod, &v, err);

    if (!d)
        return -1;
    *ret_fd = fcntl(d->fd, F_DUPFD_CLOEXEC, 3);
    if (*ret_fd < 0)
        return err_sys(err, errno, "copy the descriptor of %s", d->v.device);
    *ret_below = below ? str_dup(below) : TAKE_PTR(part);
    *ret = &d->v;
    return 0;
}
