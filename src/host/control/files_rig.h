/* files_rig.h - for tests of disks and shares: the fake VMM, and a guest that only keeps count of
 * what is mounted. Each of its calls can be told to fail, to lose its answer, or to be gone. */
#pragma once
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "harness/place.h"
#include "harness/tap.h"
#include "host/bridge/guest.h"
#include "host/vmm/fake/fake_vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum rig_call {
    RIG_MOUNT_DISK,
    RIG_UNMOUNT_DISK,
    RIG_EJECT,
    RIG_MOUNT_SHARE,
    RIG_UNMOUNT_SHARE,
    RIG_ADD_DEVICE,
    RIG_CALLS
};
enum rig_fault {
    RIG_OK,
    RIG_FAIL, /* nothing happened */
    RIG_LOST, /* it happened, but the answer says otherwise */
    RIG_GONE, /* the guest is not there */
    RIG_HANG, /* until ctx ends */
};

#define RIG_PATHS 512

struct files_rig {
    struct guest guest;
    struct vmm *vmm;
    enum rig_fault faults[RIG_CALLS]; /* of the next call; then RIG_OK again */
    unsigned calls[RIG_CALLS];
    char paths[RIG_PATHS][48]; /* mounted in the guest */
    uint64_t inodes[RIG_PATHS];
    struct guest_disk last_disk; /* that was to be mounted; its strings are gone but */
    char last_hash[80];
    struct waitq never;
    char wrong[128]; /* what a guest would refuse; "" if nothing */
};

static inline struct files_rig *rig_of(struct guest *g)
{
    return CONTAINER_OF(g, struct files_rig, guest);
}

static inline int rig_find(struct files_rig *r, const char *path)
{
    for (int i = 0; i < RIG_PATHS; i++)
        if (str_eq(r->paths[i], path))
            return i;
    return -1;
}

static inline unsigned rig_mounted(struct files_rig *r)
{
    unsigned n = 0;

    for (int i = 0; i < RIG_PATHS; i++)
        n += r->paths[i][0] != '\0';
    return n;
}

/* Whether the call takes effect; *ret is what it answers. */
static inline bool rig_effect(struct ctx *ctx, struct files_rig *r, enum rig_call call, int *ret,
                              struct err *err)
{
    enum rig_fault f = r->faults[call];

    r->calls[call]++;
    r->faults[call] = RIG_OK;
    *ret = 0;
    switch (f) {
    case RIG_OK:
        return true;
    case RIG_FAIL:
    case RIG_LOST:
        *ret = err_set(err, ERR_INTERNAL, "the guest says no");
        return f == RIG_LOST;
    case RIG_GONE:
        *ret = err_set(err, ERR_UNAVAILABLE, "no guest");
        return false;
    case RIG_HANG:
        *ret = waitq_wait(ctx, &r->never, "the guest", err);
        return false;
    }
    return true;
}

static inline void rig_wrong(struct files_rig *r, const char *what, const char *path)
{
    if (!r->wrong[0])
        snprintf(r->wrong, sizeof(r->wrong), "%s %s", what, path);
}

static inline int rig_put(struct files_rig *r, const char *path, uint64_t inode, int ret,
                          struct err *err)
{
    int i = rig_find(r, path);

    if (i >= 0) {
        rig_wrong(r, "mounted twice:", path);
        return err_set(err, ERR_EXISTS, "%s is mounted", path);
    }
    i = rig_find(r, "");
    ASSERT(i >= 0);
    snprintf(r->paths[i], sizeof(r->paths[i]), "%s", path);
    r->inodes[i] = inode;
    return ret;
}

static inline void rig_take(struct files_rig *r, const char *path)
{
    int i = rig_find(r, path);

    if (i >= 0)
        r->paths[i][0] = '\0';
}

static inline int rig_mount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                                 struct err *err)
{
    struct files_rig *r = rig_of(g);
    uint64_t inode = fake_vmm_disk(r->vmm, (struct scsi_slot){ d->controller, d->lun });
    int ret;

    r->last_disk = *d;
    snprintf(r->last_hash, sizeof(r->last_hash), "%s", d->root_hash ? d->root_hash : "");
    if (inode == 0)
        rig_wrong(r, "mounted without a disk:", d->mount_path);
    if (!rig_effect(ctx, r, RIG_MOUNT_DISK, &ret, err))
        return ret;
    return rig_put(r, d->mount_path, inode, ret, err);
}

static inline int rig_unmount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                                   struct err *err)
{
    int ret;

    if (rig_effect(ctx, rig_of(g), RIG_UNMOUNT_DISK, &ret, err))
        rig_take(rig_of(g), d->mount_path);
    return ret;
}

static inline int rig_eject(struct ctx *ctx, struct guest *g, uint8_t controller, uint8_t lun,
                            struct err *err)
{
    struct files_rig *r = rig_of(g);
    AUTO_FREE char *prefix = str_format("/run/mounts/scsi/%u_%u_", controller, lun);
    int ret;

    for (int i = 0; i < RIG_PATHS && r->faults[RIG_EJECT] != RIG_GONE; i++)
        if (str_starts(r->paths[i], prefix))
            rig_wrong(r, "ejected while mounted:", r->paths[i]);
    (void)rig_effect(ctx, r, RIG_EJECT, &ret, err);
    return ret;
}

static inline int rig_mount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                                  struct err *err)
{
    struct files_rig *r = rig_of(g);
    int ret;

    if (!fake_vmm_has_share(r->vmm, s->name))
        rig_wrong(r, "mounted without a share:", s->name);
    if (!rig_effect(ctx, r, RIG_MOUNT_SHARE, &ret, err))
        return ret;
    return rig_put(r, s->mount_path, 0, ret, err);
}

static inline int rig_unmount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                                    struct err *err)
{
    int ret;

    if (rig_effect(ctx, rig_of(g), RIG_UNMOUNT_SHARE, &ret, err))
        rig_take(rig_of(g), s->mount_path);
    return ret;
}

static inline int rig_add_device(struct ctx *ctx, struct guest *g, const char *place,
                                 struct err *err)
{
    int ret;

    (void)rig_effect(ctx, rig_of(g), RIG_ADD_DEVICE, &ret, err);
    return ret;
}

static const struct guest_ops rig_guest_ops = { .mount_disk = rig_mount_disk,
                                                .unmount_disk = rig_unmount_disk,
                                                .eject_disk = rig_eject,
                                                .mount_share = rig_mount_share,
                                                .unmount_share = rig_unmount_share,
                                                .add_device = rig_add_device };

static inline void files_rig_start(struct ctx *ctx, struct files_rig *r)
{
    const struct vm_doc doc = { .id = "test@vm" };
    struct err err = ERR_INIT;

    *r = (struct files_rig){ .guest = { &rig_guest_ops } };
    waitq_init(&r->never);
    r->vmm = fake_vmm_new(&(struct fake_vmm_opts){ .loop = ctx->loop, .kill_ns = NS_PER_MS });
    ASSERT_OK(r->vmm->ops->create(ctx, r->vmm, &doc, &err), err);
    ASSERT_OK(r->vmm->ops->start(ctx, r->vmm, &err), err);
}

static inline void files_rig_finish(struct ctx *ctx, struct files_rig *r)
{
    struct fake_facts facts;
    struct vmm_exit e;
    struct err err = ERR_INIT;

    ASSERT_STR(r->wrong, "");
    r->vmm->ops->terminate(r->vmm);
    ASSERT_OK(r->vmm->ops->wait(ctx, r->vmm, &e, &err), err);
    fake_vmm_facts(r->vmm, &facts);
    ASSERT_STR(facts.violation, "");
    ASSERT_OK(r->vmm->ops->release(ctx, r->vmm, &err), err);
    r->vmm->ops->free(r->vmm);
}

/* Nothing is left anywhere. */
static inline void files_rig_clean(struct files_rig *r)
{
    struct fake_facts facts;

    fake_vmm_facts(r->vmm, &facts);
    ASSERT_STR(facts.violation, "");
    ASSERT_STR(r->wrong, "");
    ASSERT_EQ(facts.disks, 0);
    ASSERT_EQ(facts.shares, 0);
    ASSERT_EQ(facts.devices, 0);
    ASSERT_EQ(rig_mounted(r), 0);
}

/* A file of its own identity. */
static inline int rig_file(void)
{
    int fd = memfd_create("disk", MFD_CLOEXEC);

    ASSERT(fd >= 0);
    return fd;
}

/* What tests of both controllers do with a reservation. The fixture's controller is f->c. */
#define FILES_RIG_CALLS(prefix)                                                                    \
    static void map(struct ctx *ctx, struct fixture *f, uint64_t id, const char *want)             \
    {                                                                                              \
        AUTO_FREE char *path = NULL;                                                               \
        struct err err = ERR_INIT;                                                                 \
        ASSERT_OK(prefix##_map(ctx, f->c, id, &path, &err), err);                                  \
        ASSERT_STR(path, want);                                                                    \
    }                                                                                              \
    static void unmap(struct ctx *ctx, struct fixture *f, uint64_t id)                             \
    {                                                                                              \
        struct err err = ERR_INIT;                                                                 \
        ASSERT_OK(prefix##_unmap(ctx, f->c, id, &err), err);                                       \
        ASSERT_FAIL(prefix##_unmap(ctx, f->c, id, &err), err, ERR_NOT_FOUND);                      \
    }                                                                                              \
    static void map_fails(struct ctx *ctx, struct fixture *f, uint64_t id, enum err_code code)     \
    {                                                                                              \
        char *path = NULL;                                                                         \
        struct err err = ERR_INIT;                                                                 \
        ASSERT_FAIL(prefix##_map(ctx, f->c, id, &path, &err), err, code);                          \
        ASSERT(!path);                                                                             \
    }                                                                                              \
    static void unmap_fails(struct ctx *ctx, struct fixture *f, uint64_t id, enum err_code code)   \
    {                                                                                              \
        struct err err = ERR_INIT;                                                                 \
        ASSERT_FAIL(prefix##_unmap(ctx, f->c, id, &err), err, code);                               \
    }
