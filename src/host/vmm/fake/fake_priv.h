/* fake_priv.h - the inside of the fake backend. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/list.h"
#include "base/str.h"
#include "host/vmm/fake/fake_vmm.h"

struct ledger;

struct vmm_listener {
    struct list node;
    struct fake *fake;
    uint32_t port;
    struct stream *stream; /* ours, dialled and not accepted */
    struct waitq q;
};

struct fake {
    struct vmm vmm;
    struct fake_vmm_opts opts;
    unsigned refs;
    char *dir;
    struct ledger *ledger;            /* while something may exist */
    uint64_t things[FAKE_THINGS + 1]; /* ledger ids, oldest first */
    unsigned n_things, made;

    char op[16]; /* create, start, release: one at a time */
    bool created, spawned, started, terminated, quitting, gone, released, freed;
    unsigned inside; /* fibers in wait, accept, stats */
    uint64_t terminated_ns, gone_ns;
    struct vmm_exit exit;
    struct waitq changed;
    struct cancel power;
    unsigned terminates, quits, releases, listens, judged;
    char judged_why[160];

    struct list listeners;
    unsigned n_listeners;
    uint32_t *ports; /* ever opened */
    size_t n_ports, ports_cap;
    char violation[128];

    uint32_t least_mib, most_mib; /* of memory */
    uint64_t disks[FAKE_SLOTS];   /* inode on each slot, 0: free */
    bool disks_read_only[FAKE_SLOTS];
    struct strv shares, share_names; /* there now; ever used */
    struct strv nics;
    struct strv pci_ids, pci_ids_ever, pci_addresses; /* the third goes with the first */
};

static inline struct fake *fake_of(struct vmm *v)
{
    return CONTAINER_OF(v, struct fake, vmm);
}

/* One step of an operation: as opts want it; ends early with ctx, terminate and the VMM. */
int fake_step_run(struct ctx *ctx, struct fake *f, const struct fake_step *s, const char *op,
                  struct err *err);
void fake_violation(struct fake *f, const char *what);
/* Records it, then makes it. */
int fake_thing_make(struct fake *f, struct err *err);
/* The newest: removes it, then strikes it out. */
int fake_thing_unmake(struct fake *f, struct err *err);
/* All are gone: the ledger too. */
int fake_things_done(struct fake *f, struct err *err);

/* fake_devices.c */
int fake_scsi_add(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, int image_fd,
                  bool read_only, struct err *err);
int fake_scsi_remove(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, struct err *err);
int fake_share_add(struct ctx *ctx, struct vmm *v, const char *name, int tree_fd, bool read_only,
                   struct err *err);
int fake_share_remove(struct ctx *ctx, struct vmm *v, const char *name, struct err *err);
int fake_set_memory(struct ctx *ctx, struct vmm *v, uint32_t mib, struct err *err);
int fake_set_cpus(struct ctx *ctx, struct vmm *v, uint32_t cpus, struct err *err);
int fake_nic_add(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err);
int fake_nic_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err);
int fake_pci_add(struct ctx *ctx, struct vmm *v, const char *address, const char *id,
                 char **ret_place, struct err *err);
int fake_pci_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err);
void fake_devices_release(struct fake *f);
void fake_devices_facts(const struct fake *f, struct fake_facts *ret);
