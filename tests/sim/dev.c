/* dev.c - disks, shares and PCI devices under several callers: no slot is lost, nobody ever sees a
 * wrong file, no device is there twice. */
#include "dev.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/rand.h"
#include "base/str.h"
#include "fixture/device_fixture.h"
#include "fixture/fake_vmm.h"
#include "host/bridge/guest.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define FILES 6
#define CLIENTS_MAX 6
#define HELD 4 /* by each, of every kind */
#define STEPS_MAX 20
#define MOUNTS 256
#define END_LIMIT (200 * NS_PER_S)
#define FILLERS_MAX 240 /* disks of somebody else's, so that there is more than one controller */

const char *const dev_fault_names[] = { "none",      "guest", "vmm",       "hang",
                                        "cancelled", "death", "everything" };
_Static_assert(ARRAY_LEN(dev_fault_names) == DEV_FAULT_COUNT, "a name for each fault");

struct mount {
    char path[64];
    uint64_t inode; /* of the disk's file when it was mounted; 0: a share */
};

struct dev {
    enum dev_fault fault;
    struct cli_result *result;
    struct loop *loop;
    struct rng rng;
    bool calm;
    struct vmm *vmm;
    struct guest guest;
    struct scsi *scsi;
    struct plan9 *plan9;
    struct vpci *vpci;
    int files[FILES];
    uint64_t inodes[FILES];
    uint64_t fillers[FILLERS_MAX];
    unsigned n_fillers;
    struct mount mounts[MOUNTS];
    struct fibers clients;
};

static void say(struct dev *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void broken(struct dev *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void say(struct dev *d, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_trace(loop_now(d->loop), fmt, ap);
    va_end(ap);
}

static void broken(struct dev *d, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_broken(d->result, loop_now(d->loop), fmt, ap);
    va_end(ap);
}

static bool has(const struct dev *d, enum dev_fault f)
{
    return !d->calm && (d->fault == f || d->fault == DEV_EVERYTHING);
}

static bool chance(struct dev *d, unsigned of_hundred)
{
    return rng_below(&d->rng, 100) < of_hundred;
}

/* --- the guest --- */

static bool gone(struct dev *d)
{
    struct fake_facts facts;

    fake_vmm_facts(d->vmm, &facts);
    return facts.gone;
}

static struct mount *find(struct dev *d, const char *path)
{
    for (int i = 0; i < MOUNTS; i++)
        if (str_eq(d->mounts[i].path, path))
            return &d->mounts[i];
    return NULL;
}

/* True if the call takes effect; *ret is what it answers. A caller whose deadline ends does not
 * know. */
static bool effect(struct ctx *ctx, struct dev *d, int *ret, struct err *err)
{
    uint64_t ns = chance(d, 50) ? 0 : rng_below(&d->rng, 20 * NS_PER_MS);

    *ret = 0;
    if (has(d, DEV_HANG) && chance(d, 20))
        ns = 60 * NS_PER_S;
    if (fiber_sleep(ctx, ns, err) < 0) {
        *ret = -1;
        return chance(d, 50);
    }
    if (gone(d)) {
        *ret = err_set(err, ERR_UNAVAILABLE, "no guest");
        return false;
    }
    if (!has(d, DEV_GUEST) || !chance(d, 20))
        return true;
    *ret = err_set(err, ERR_INTERNAL, "the guest says no");
    return chance(d, 50);
}

static int put(struct dev *d, const char *path, uint64_t inode, int ret, struct err *err)
{
    struct mount *m = find(d, path);

    if (m) {
        broken(d, "mounted twice: %s", path);
        return err_set(err, ERR_EXISTS, "%s is mounted", path);
    }
    m = find(d, "");
    if (!m) {
        broken(d, "too much is mounted");
        return -1;
    }
    snprintf(m->path, sizeof(m->path), "%s", path);
    m->inode = inode;
    return ret;
}

static int mount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *disk,
                      struct err *err)
{
    struct dev *d = CONTAINER_OF(g, struct dev, guest);
    const struct scsi_slot slot = { disk->controller, disk->lun };
    int ret;

    if (!effect(ctx, d, &ret, err) || gone(d))
        return ret;
    if (fake_vmm_disk(d->vmm, slot) == 0)
        broken(d, "mounted without a disk: %s", disk->mount_path);
    return put(d, disk->mount_path, fake_vmm_disk(d->vmm, slot), ret, err);
}

static int unmount(struct ctx *ctx, struct dev *d, const char *path, struct err *err)
{
    struct mount *m;
    int ret;

    /* It never releases the device. */
    if (has(d, DEV_HANG) && chance(d, 30) && fiber_sleep(ctx, 200 * NS_PER_S, err) < 0)
        return -1;
    if (effect(ctx, d, &ret, err) && (m = find(d, path)))
        m->path[0] = '\0';
    return ret;
}

static int unmount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *disk,
                        struct err *err)
{
    return unmount(ctx, CONTAINER_OF(g, struct dev, guest), disk->mount_path, err);
}

static int eject_disk(struct ctx *ctx, struct guest *g, uint8_t controller, uint8_t lun,
                      struct err *err)
{
    struct dev *d = CONTAINER_OF(g, struct dev, guest);
    AUTO_FREE char *prefix = str_format("/run/mounts/scsi/%u_%u_", controller, lun);
    int ret;

    for (int i = 0; i < MOUNTS && !gone(d); i++)
        if (str_starts(d->mounts[i].path, prefix))
            broken(d, "ejected while mounted: %s", d->mounts[i].path);
    (void)effect(ctx, d, &ret, err);
    return ret;
}

static int mount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                       struct err *err)
{
    struct dev *d = CONTAINER_OF(g, struct dev, guest);
    int ret;

    if (!effect(ctx, d, &ret, err) || gone(d))
        return ret;
    if (!fake_vmm_has_share(d->vmm, s->name))
        broken(d, "mounted without a share: %s", s->name);
    return put(d, s->mount_path, 0, ret, err);
}

static int unmount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                         struct err *err)
{
    return unmount(ctx, CONTAINER_OF(g, struct dev, guest), s->mount_path, err);
}

static int add_device(struct ctx *ctx, struct guest *g, const char *place, struct err *err)
{
    struct dev *d = CONTAINER_OF(g, struct dev, guest);
    int ret;

    (void)effect(ctx, d, &ret, err);
    return ret;
}

static bool connected(const struct guest *g)
{
    return !gone((struct dev *)CONTAINER_OF(g, struct dev, guest));
}

static const struct guest_ops guest_ops = { .connected = connected,
                                            .mount_disk = mount_disk,
                                            .unmount_disk = unmount_disk,
                                            .eject_disk = eject_disk,
                                            .mount_share = mount_share,
                                            .unmount_share = unmount_share,
                                            .add_device = add_device };

/* --- callers --- */

enum kind { DISK, SHARE, DEVICE, KINDS };
static const char *const kind_names[] = { "disk", "share", "device" };

struct held {
    enum kind kind;
    uint64_t id;
    unsigned file; /* of a device: the last part of its address */
    bool failed;
    char *path; /* NULL: not mapped */
};

static void address_of(const struct held *h, char ret[static 16])
{
    snprintf(ret, 16, "0000:03:00.%u", h->file % 8);
}

/* What is mapped is mounted, and it is the right file. */
static void check_held(struct dev *d, const struct held *h)
{
    const struct mount *m = h->path ? find(d, h->path) : NULL;
    char address[16];

    if (!h->path || gone(d))
        return;
    address_of(h, address);
    if (h->kind == DEVICE && !fake_vmm_has_device(d->vmm, address))
        broken(d, "%s was added and is not in the VM", address);
    if (h->kind == DEVICE)
        return;
    if (!m)
        broken(d, "%s is mapped and not mounted", h->path);
    else if (h->kind == DISK && m->inode != d->inodes[h->file])
        broken(d, "%s is another file", h->path);
}

static int reserve(struct ctx *ctx, struct dev *d, struct held *h, struct err *err)
{
    int r;

    h->file = (unsigned)rng_below(&d->rng, FILES);
    h->failed = false;
    if (h->kind == DEVICE) {
        char address[16];

        address_of(h, address);
        r = vpci_reserve(ctx, d->vpci, address, &h->id, err);
    } else if (h->kind == SHARE) {
        const struct plan9_share s = { .host_path = "/x",
                                       .tree_fd = d->files[h->file],
                                       .read_only = chance(d, 50),
                                       .unique = chance(d, 25) };

        r = plan9_reserve(ctx, d->plan9, &s, &h->id, err);
    } else {
        const struct scsi_disk disk = { .host_path = "/x",
                                        .fd = d->files[h->file],
                                        .read_only = chance(d, 50) };
        const struct guest_disk mount = { .partition = rng_below(&d->rng, 2),
                                          .read_only = disk.read_only };

        r = scsi_reserve(ctx, d->scsi, &disk, &mount, &h->id, err);
    }
    if (r < 0)
        h->id = 0;
    return r;
}

static int map(struct ctx *ctx, struct dev *d, struct held *h, struct err *err)
{
    char *path = NULL;
    int r = h->kind == DEVICE  ? vpci_add(ctx, d->vpci, h->id, &path, err)
            : h->kind == SHARE ? plan9_map(ctx, d->plan9, h->id, &path, err)
                               : scsi_map(ctx, d->scsi, h->id, &path, err);

    if (r < 0) {
        h->failed = true;
        /* Once mapped it stays so; only the wait for the answer may end. */
        if (h->path && err->code != ERR_DEADLINE && !gone(d))
            broken(d, "%s was mapped and cannot be mapped again: %s", h->path, err->msg);
        return -1;
    }
    free(h->path);
    h->path = path;
    d->result->figures[DEV_FIG_MAPPED]++;
    check_held(d, h);
    return 0;
}

static int unmap(struct ctx *ctx, struct dev *d, struct held *h, struct err *err)
{
    int r;

    free(TAKE_PTR(h->path));
    h->failed = true; /* no map after a release that failed */
    r = h->kind == DEVICE  ? vpci_remove(ctx, d->vpci, h->id, err)
        : h->kind == SHARE ? plan9_unmap(ctx, d->plan9, h->id, err)
                           : scsi_unmap(ctx, d->scsi, h->id, err);
    if (r == 0)
        h->id = 0;
    return r;
}

static void step(struct dev *d, struct held *h)
{
    struct ctx root = ctx_root(d->loop);
    /* Some wait longer than the guest may take: then the disk is taken from it. */
    uint64_t limit = has(d, DEV_CANCELLED) && chance(d, 40) ? rng_below(&d->rng, 30 * NS_PER_MS)
                     : has(d, DEV_HANG) && chance(d, 60)    ? 3 * SCSI_GUEST_S * NS_PER_S
                                                            : 10 * NS_PER_S;
    struct ctx ctx = ctx_with_timeout(&root, limit);
    struct err err = ERR_INIT;
    const char *what = h->id == 0 ? "reserve" : !h->failed && chance(d, 60) ? "map" : "unmap";
    int r = h->id == 0       ? reserve(&ctx, d, h, &err)
            : what[0] == 'm' ? map(&ctx, d, h, &err)
                             : unmap(&ctx, d, h, &err);

    say(d, "%s of %s %u: %s", what, kind_names[h->kind], h->file, r < 0 ? err.msg : "ok");
    d->result->figures[DEV_FIG_CALLS]++;
    d->result->figures[DEV_FIG_FAILED] += r < 0;
    if (r < 0 && d->fault == DEV_NONE && err.code != ERR_STATE && err.code != ERR_EXHAUSTED)
        broken(d, "%s failed though nothing is wrong: %s", what, err.msg);
}

/* Nothing is wrong any more: what failed before is repeated, and done. */
static void give_back(struct dev *d, struct held *h)
{
    struct ctx root = ctx_root(d->loop), ctx = ctx_with_timeout(&root, END_LIMIT);
    struct err err = ERR_INIT;

    check_held(d, h);
    if (h->id && unmap(&ctx, d, h, &err) < 0)
        broken(d, "%s %u cannot be given back: %s", kind_names[h->kind], h->file, err.msg);
    free(TAKE_PTR(h->path));
}

static void set_vmm_faults(struct dev *d)
{
    struct fake_vmm_opts *o = fake_vmm_tune(d->vmm);
    struct fake_step *steps[] = { &o->scsi_add,     &o->scsi_remove, &o->share_add,
                                  &o->share_remove, &o->pci_add,     &o->pci_remove };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        steps[i]->how = has(d, DEV_VMM) && chance(d, 20)    ? FAKE_FAIL
                        : has(d, DEV_HANG) && chance(d, 10) ? FAKE_HANG
                                                            : FAKE_OK;
        steps[i]->delay_ns = rng_below(&d->rng, 10 * NS_PER_MS);
    }
}

static void client_main(void *arg)
{
    struct dev *d = arg;
    struct ctx root = ctx_root(d->loop);
    struct held held[KINDS * HELD] = { 0 };
    unsigned steps = 1 + (unsigned)rng_below(&d->rng, STEPS_MAX);
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < ARRAY_LEN(held); i++)
        held[i].kind = (enum kind)(i % KINDS);
    for (unsigned n = 0; n < steps; n++) {
        struct held *h = &held[rng_below(&d->rng, ARRAY_LEN(held))];

        if (chance(d, 30))
            (void)fiber_sleep(&root, rng_below(&d->rng, 50 * NS_PER_MS), &err);
        set_vmm_faults(d);
        step(d, h);
        check_held(d, &held[rng_below(&d->rng, ARRAY_LEN(held))]);
    }
    while (!d->calm)
        (void)fiber_sleep(&root, NS_PER_S, &err);
    for (size_t i = 0; i < ARRAY_LEN(held); i++)
        give_back(d, &held[i]);
}

/* --- the schedule --- */

static void fill(struct ctx *ctx, struct dev *d)
{
    unsigned n = chance(d, 25) ? (unsigned)rng_below(&d->rng, FILLERS_MAX) : 0;
    struct err err = ERR_INIT;

    for (; d->n_fillers < n; d->n_fillers++) {
        AUTO_FD int fd = memfd_create("filler", MFD_CLOEXEC);
        const struct scsi_disk disk = { .host_path = "/filler", .fd = fd, .read_only = true };

        if (scsi_reserve(ctx, d->scsi, &disk, &(struct guest_disk){ 0 }, &d->fillers[d->n_fillers],
                         &err) < 0)
            broken(d, "no slot for %u disks: %s", n, err.msg);
    }
}

static void empty(struct ctx *ctx, struct dev *d)
{
    struct err err = ERR_INIT;

    while (d->n_fillers > 0)
        if (scsi_unmap(ctx, d->scsi, d->fillers[--d->n_fillers], &err) < 0)
            broken(d, "a disk that was never attached cannot be given back: %s", err.msg);
}

/* What a guest that did not answer may still have: only on slots that are lost, and as many. */
static void check_left(struct dev *d)
{
    bool seen[SCSI_DISKS_MAX] = { 0 };
    size_t n = 0;

    for (int i = 0; i < MOUNTS; i++) {
        const char *path = d->mounts[i].path;
        unsigned controller, lun;

        if (!path[0])
            continue;
        if (sscanf(path, "/run/mounts/scsi/%u_%u_", &controller, &lun) != 2) {
            broken(d, "left in the guest: %s", path);
            continue;
        }
        n += !seen[controller * SCSI_LUNS + lun];
        seen[controller * SCSI_LUNS + lun] = true;
    }
    if (n > scsi_lost_slots(d->scsi))
        broken(d, "left in the guest: %zu disks, and %zu slots are lost", n,
               scsi_lost_slots(d->scsi));
}

static void check_end(struct dev *d)
{
    struct fake_facts facts;

    fake_vmm_facts(d->vmm, &facts);
    if (facts.violation[0])
        broken(d, "VMM: %s", facts.violation);
    if (scsi_used_slots(d->scsi) || plan9_used(d->plan9) || vpci_used(d->vpci))
        broken(d, "%zu slots, %zu shares and %zu devices are lost", scsi_used_slots(d->scsi),
               plan9_used(d->plan9), vpci_used(d->vpci));
    if (!facts.gone)
        check_left(d);
    if (scsi_lost_slots(d->scsi) > 0 && d->fault != DEV_HANG && d->fault != DEV_EVERYTHING)
        broken(d, "a slot is lost though the guest answers");
    if (!facts.gone && (facts.disks || facts.shares || facts.devices))
        broken(d, "left in the VM: %u disks, %u shares, %u devices", facts.disks, facts.shares,
               facts.devices);
}

static void main_fiber(void *arg)
{
    const struct vm_doc doc = { .id = "sim@vm" };
    struct dev *d = arg;
    struct ctx root = ctx_root(d->loop);
    struct vmm_exit x;
    struct err err = ERR_INIT;

    if (d->vmm->ops->create(&root, d->vmm, &doc, &err) < 0 ||
        d->vmm->ops->start(&root, d->vmm, &err) < 0)
        broken(d, "no VM: %s", err.msg);
    d->scsi = scsi_new(d->vmm, &d->guest, SCSI_CONTROLLERS_MAX);
    d->plan9 = plan9_new(d->vmm, &d->guest);
    d->vpci = vpci_new(d->vmm, &d->guest);
    fill(&root, d);
    for (uint64_t n = 1 + rng_below(&d->rng, CLIENTS_MAX); n > 0; n--)
        fibers_go(&d->clients, d->loop, client_main, d, "client %u", (unsigned)n);
    (void)fiber_sleep(&root, 1000 * NS_PER_S, &err);
    d->calm = true;
    set_vmm_faults(d);
    (void)fibers_wait(&root, &d->clients, "clients", &err);
    empty(&root, d);
    check_end(d);
    scsi_free(d->scsi);
    plan9_free(d->plan9);
    vpci_free(d->vpci);
    d->vmm->ops->terminate(d->vmm);
    (void)d->vmm->ops->wait(&root, d->vmm, &x, &err);
    if (d->vmm->ops->release(&root, d->vmm, &err) < 0)
        broken(d, "the VM cannot be released: %s", err.msg);
    d->vmm->ops->free(d->vmm);
}

void dev_run(uint64_t seed, const char *dir, struct cli_result *ret)
{
    struct dev *d = mem_new(struct dev);
    struct fake_vmm_opts opts = { .kill_ns = NS_PER_MS };

    (void)dir;
    d->fault = (enum dev_fault)(seed % DEV_FAULT_COUNT);
    d->result = ret;
    rng_seed(&d->rng, seed);
    d->loop = opts.loop = loop_new(&(struct loop_opts){ .virtual_time = true, .seed = seed });
    d->guest.ops = &guest_ops;
    if (has(d, DEV_DEATH))
        opts.dies_after_ns = 1 + rng_below(&d->rng, 2 * NS_PER_S);
    d->vmm = fake_vmm_new(&opts);
    for (int i = 0; i < FILES; i++) {
        struct stat st = { 0 };

        d->files[i] = memfd_create("disk", MFD_CLOEXEC);
        (void)fstat(d->files[i], &st);
        d->inodes[i] = st.st_ino;
    }
    fibers_init(&d->clients);
    fiber_go(d->loop, main_fiber, d, "main");
    if (loop_run(d->loop) > 0) {
        AUTO(sbuf_release) struct sbuf dump = { 0 };

        loop_dump(d->loop, &dump);
        broken(d, "fibers hang:\n%.500s", dump.data);
    }
    for (int i = 0; i < FILES; i++)
        fd_close(d->files[i]);
    loop_free(d->loop);
    free(d);
}
