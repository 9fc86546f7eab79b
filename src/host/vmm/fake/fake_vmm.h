/* fake_vmm.h - a VMM that is none: for tests and simulation. Each operation can succeed after a
 * delay, fail, or hang until it is cancelled or the VM terminated; the "VMM process" can die at
 * any moment. Guest-dialled streams are pairs in memory. What it "creates" are real files under a
 * real ledger, so that what is not taken back can be found.
 *
 * It also watches its caller: what vmm.h forbids (two operations at once, a release while someone
 * is inside accept, a port opened twice …) is kept as a violation. */
#pragma once
#include "host/vmm/vmm.h"

struct cancel;
struct loop;
struct sbuf;

enum fake_how {
    FAKE_OK,
    FAKE_FAIL,
    FAKE_HANG, /* until ctx ends or the VM is terminated or gone */
};
struct fake_step {
    enum fake_how how;
    uint64_t delay_ns; /* before it succeeds or fails */
};

enum fake_death {
    FAKE_KILLED,      /* by someone else's SIGKILL */
    FAKE_CRASHED,     /* exit status 1 */
    FAKE_POWERED_OFF, /* by the guest, in order */
    FAKE_OOM,
};

#define FAKE_SLOTS 256
#define FAKE_THINGS 3 /* files made by create, and one more by start */

struct fake_vmm_opts {
    struct loop *loop;
    const char *dir; /* made by create, gone after release; copied. NULL: no files, no ledger */
    struct fake_step create, start, quit, stats, release;
    struct fake_step scsi_add, scsi_remove, share_add, share_remove, nic_add, nic_remove, pci_add,
        pci_remove, set_memory, set_cpus;
    unsigned release_failures; /* the first so many fail, each half-way */
    bool start_fails_early;    /* before the process exists, else behind it */
    bool clone;                /* it says that it is one */
    bool deaf;                 /* create and start end with ctx, not with terminate */
    uint64_t kill_ns;          /* from terminate until the process is gone */
    uint64_t dies_after_ns;    /* from the start; 0: it lives */
    enum fake_death death;
    unsigned listen_fails_at; /* the n-th listen fails; 0: none */
    size_t stream_bytes;      /* what a stream holds; 0: 64 KiB */
    /* The process runs: the place to start a guest. It may live until power fires. */
    void (*on_power)(void *arg, struct vmm *v, struct cancel *power);
    void *on_power_arg;
    void (*trace)(void *arg, const char *what); /* may be NULL */
    void *trace_arg;
};

struct vmm *fake_vmm_new(const struct fake_vmm_opts *opts);

/* The guest's side: dial a port. 0, or -ECONNREFUSED if nobody listens (any more). Caller frees. */
int fake_vmm_dial(struct vmm *v, uint32_t port, struct stream **ret);
/* The guest powers off in order, or something kills the VMM: now. */
void fake_vmm_die(struct vmm *v, enum fake_death how);

/* What really happened, for the checks of tests. */
struct fake_facts {
    bool created, started, gone, released;
    bool died; /* by itself: neither asked for nor powered off */
    bool powered_off;
    uint64_t terminated_ns; /* the first terminate, 0 if never */
    uint64_t gone_ns;
    unsigned terminates, quits, releases, things, listeners;
    unsigned disks, shares, nics, devices; /* that the VM has now */
    unsigned judged;                       /* how often */
    char judged_why[160];                  /* the last time; "": good */
    const char *violation;                 /* "" if none */
};
void fake_vmm_facts(struct vmm *v, struct fake_facts *ret);
/* Inode of the image on this slot, 0 if there is none. */
uint64_t fake_vmm_disk(struct vmm *v, struct scsi_slot slot);
bool fake_vmm_has_share(struct vmm *v, const char *name);
bool fake_vmm_has_device(struct vmm *v, const char *address);
/* To change how it behaves while it runs. Borrowed. */
struct fake_vmm_opts *fake_vmm_tune(struct vmm *v);
/* Is everything that exists in dir on record? Then a crash now would leave nothing behind that
 * clean-up cannot find. Appends what is not to out; the number of those. */
unsigned fake_vmm_audit(const char *dir, struct sbuf *out);
