/* fake_devices.c - disks, shares, NICs and PCI devices of the fake VMM: only kept count of, with
 * what vmm.h forbids as a violation. They go with the process. */
#include "base/err.h"
#include "base/str.h"
#include "host/vmm/fake/fake_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static int begin(struct ctx *ctx, struct fake *f, const struct fake_step *s, const char *op,
                 struct err *err)
{
    if (f->freed)
        fake_violation(f, "a device call after free");
    if (f->terminated || f->gone)
        return err_set(err, ERR_UNAVAILABLE, "%s: the VM is gone", op);
    if (!f->spawned)
        return err_set(err, ERR_STATE, "%s: the VM does not run", op);
    f->inside++;
    int r = fake_step_run(ctx, f, s, op, err);
    f->inside--;
    return r;
}

static unsigned number(struct scsi_slot slot)
{
    return (unsigned)slot.controller * 64 + slot.lun;
}

static int check_slot(struct fake *f, struct scsi_slot slot, struct err *err)
{
    if (number(slot) < FAKE_SLOTS && slot.lun < 64)
        return 0;
    fake_violation(f, "a slot that no VM has");
    return err_set(err, ERR_INVALID, "no slot %u:%u", slot.controller, slot.lun);
}

int fake_scsi_add(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, int image_fd,
                  bool read_only, struct err *err)
{
    struct fake *f = fake_of(v);
    struct stat st;

    if (check_slot(f, slot, err) < 0)
        return -1;
    if (f->disks[number(slot)] && !f->gone)
        fake_violation(f, "a disk on a slot that is in use");
    if (fstat(image_fd, &st) < 0) {
        fake_violation(f, "a disk without a file");
        return err_set(err, ERR_INVALID, "no file");
    }
    for (unsigned i = 0; i < FAKE_SLOTS && !f->gone; i++)
        if (f->disks[i] == st.st_ino && (!read_only || !f->disks_read_only[i]))
            fake_violation(f, "a file that somebody writes is attached twice");
    if (begin(ctx, f, &f->opts.scsi_add, "scsi_add", err) < 0)
        return -1;
    f->disks[number(slot)] = st.st_ino;
    f->disks_read_only[number(slot)] = read_only;
    return 0;
}

int fake_scsi_remove(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, struct err *err)
{
    struct fake *f = fake_of(v);

    if (check_slot(f, slot, err) < 0)
        return -1;
    if (f->gone)
        return 0;
    if (begin(ctx, f, &f->opts.scsi_remove, "scsi_remove", err) < 0)
        return f->gone || f->terminated ? 0 : -1;
    f->disks[number(slot)] = 0;
    return 0;
}

static size_t find(const struct strv *l, const char *name)
{
    size_t i = 0;

    while (i < l->n && !str_eq(l->v[i], name))
        i++;
    return i;
}

static void take_out(struct strv *l, const char *name)
{
    size_t i = find(l, name);

    if (i == l->n)
        return;
    free(l->v[i]);
    l->v[i] = l->v[--l->n];
    l->v[l->n] = NULL;
}

int fake_share_add(struct ctx *ctx, struct vmm *v, const char *name, int tree_fd, bool read_only,
                   struct err *err)
{
    struct fake *f = fake_of(v);
    struct stat st;

    (void)read_only;
    if (fstat(tree_fd, &st) < 0)
        fake_violation(f, "a share without a tree");
    for (size_t i = 0; i < f->share_names.n; i++)
        if (str_eq(f->share_names.v[i], name))
            fake_violation(f, "the name of a share was used before");
    strv_add(&f->share_names, name);
    if (begin(ctx, f, &f->opts.share_add, "share_add", err) < 0)
        return -1;
    strv_add(&f->shares, name);
    return 0;
}

int fake_share_remove(struct ctx *ctx, struct vmm *v, const char *name, struct err *err)
{
    struct fake *f = fake_of(v);

    if (f->gone)
        return 0;
    if (begin(ctx, f, &f->opts.share_remove, "share_remove", err) < 0)
        return f->gone || f->terminated ? 0 : -1;
    take_out(&f->shares, name);
    return 0;
}

int fake_set_memory(struct ctx *ctx, struct vmm *v, uint32_t mib, struct err *err)
{
    struct fake *f = fake_of(v);

    if (mib < f->least_mib || mib > f->most_mib)
        return err_set(err, ERR_RANGE, "memory of %u MiB: this VM can have %u to %u", mib,
                       f->least_mib, f->most_mib);
    return begin(ctx, f, &f->opts.set_memory, "set_memory", err);
}

int fake_set_cpus(struct ctx *ctx, struct vmm *v, uint32_t cpus, struct err *err)
{
    struct fake *f = fake_of(v);

    return begin(ctx, f, &f->opts.set_cpus, "set_cpus", err);
}

int fake_nic_add(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err)
{
    struct fake *f = fake_of(v);
    struct stat st;

    if (fstat(nic->tap_fd, &st) < 0)
        fake_violation(f, "a NIC without a tap");
    if (find(&f->nics, nic->id) < f->nics.n)
        fake_violation(f, "a NIC that is there already");
    if (begin(ctx, f, &f->opts.nic_add, "nic_add", err) < 0)
        return -1;
    strv_add(&f->nics, nic->id);
    return 0;
}

int fake_nic_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err)
{
    struct fake *f = fake_of(v);

    if (f->gone)
        return 0;
    if (begin(ctx, f, &f->opts.nic_remove, "nic_remove", err) < 0)
        return f->gone || f->terminated ? 0 : -1;
    take_out(&f->nics, id);
    return 0;
}

int fake_pci_add(struct ctx *ctx, struct vmm *v, const char *address, const char *id,
                 char **ret_place, struct err *err)
{
    struct fake *f = fake_of(v);

    if (find(&f->pci_ids_ever, id) < f->pci_ids_ever.n)
        fake_violation(f, "the name of a PCI device was used before");
    strv_add(&f->pci_ids_ever, id);
    if (find(&f->pci_addresses, address) < f->pci_addresses.n && !f->gone)
        fake_violation(f, "a PCI device that the VM has already");
    if (begin(ctx, f, &f->opts.pci_add, "pci_add", err) < 0)
        return -1;
    strv_add(&f->pci_ids, id);
    strv_add(&f->pci_addresses, address);
    *ret_place = str_format("0000:00:10.0/%02zx.0", f->pci_ids.n);
    return 0;
}

int fake_pci_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err)
{
    struct fake *f = fake_of(v);

    if (f->gone)
        return 0;
    if (begin(ctx, f, &f->opts.pci_remove, "pci_remove", err) < 0)
        return f->gone || f->terminated ? 0 : -1;
    size_t i = find(&f->pci_ids, id);
    if (i < f->pci_ids.n) {
        AUTO_FREE char *address = str_dup(f->pci_addresses.v[i]);

        take_out(&f->pci_addresses, address); /* both put their last in its stead */
        take_out(&f->pci_ids, id);
    }
    return 0;
}

void fake_devices_release(struct fake *f)
{
    strv_release(&f->pci_ids);
    strv_release(&f->pci_ids_ever);
    strv_release(&f->pci_addresses);
    strv_release(&f->shares);
    strv_release(&f->share_names);
    strv_release(&f->nics);
}

void fake_devices_facts(const struct fake *f, struct fake_facts *ret)
{
    for (unsigned i = 0; i < FAKE_SLOTS && !f->gone; i++)
        ret->disks += f->disks[i] != 0;
    ret->shares = f->gone ? 0 : (unsigned)f->shares.n;
    ret->nics = f->gone ? 0 : (unsigned)f->nics.n;
    ret->devices = f->gone ? 0 : (unsigned)f->pci_ids.n;
}

uint64_t fake_vmm_disk(struct vmm *v, struct scsi_slot slot)
{
    return number(slot) < FAKE_SLOTS ? fake_of(v)->disks[number(slot)] : 0;
}

bool fake_vmm_has_share(struct vmm *v, const char *name)
{
    return find(&fake_of(v)->shares, name) < fake_of(v)->shares.n;
}

bool fake_vmm_has_device(struct vmm *v, const char *address)
{
    return find(&fake_of(v)->pci_addresses, address) < fake_of(v)->pci_addresses.n;
}

struct fake_vmm_opts *fake_vmm_tune(struct vmm *v)
{
    return &fake_of(v)->opts;
}
