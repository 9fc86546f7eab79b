/* qemu_plug.h - for qemu_*.c only: a hot-plugged device and the parts of it that QEMU has. They are
 * made one after the other and removed in reverse order. A part is noted before QEMU is asked for
 * it, so an answer that was never read does not lose it. Undoing and removing are the same walk
 * backwards, which can stop anywhere and be repeated. Calls with ctx wait. */
#pragma once
#include "host/vmm/qemu/qemu_priv.h"

/* In the order in which they are made. */
enum plug_part {
    PLUG_FD,    /* a descriptor by name; what is made next takes it */
    PLUG_FDSET, /* a descriptor by number */
    PLUG_FILE,  /* a block node that stands on the descriptor alone */
    PLUG_NODE,
    PLUG_NETDEV,
    PLUG_DEVICE,
    PLUG_PART_COUNT
};

struct plug;
struct plug_kind {
    const char *what;                   /* for people */
    const char *names[PLUG_PART_COUNT]; /* QEMU's name of a part is this and the plug's id */
    unsigned fdset_base;                /* a set's number is this and the plug's number */
    uint64_t undo_ns;
    /* The guest has so long to release the device; then QEMU is asked again, so many times.
     * 0: until ctx ends. */
    uint64_t release_ns;
    unsigned release_tries;
    /* For the log if the guest keeps the device, and what to do then (may be NULL). */
    const char *kept;
    int (*on_kept)(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err);
};

struct plug {
    struct list node; /* of qemu.plugs */
    const struct plug_kind *kind;
    const char *id, *label; /* owned: in QEMU's names; for people */
    unsigned number;        /* of a disk its slot, of a PCI device its port */
    unsigned parts;         /* bit N: QEMU has part N, or may have it */
    bool inside;            /* an add or a remove works on it */
    bool attached;          /* all of it is there */
    bool deserted;          /* the guest keeps the device */
    bool deleted;           /* DEVICE_DELETED came */
    struct waitq deleted_q;
};

/* NULL: there is none. */
struct plug *plug_find(struct qemu *q, const struct plug_kind *kind, const char *id);
/* Makes the device with `make`; if that fails, removes what was made. Copies id and label. */
int plug_add(struct ctx *ctx, struct qemu *q, const struct plug *what,
             int (*make)(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                         struct err *err),
             const void *arg, struct err *err);
/* Unknown, or kept by the guest: 0. ERR_STATE: another call works on it. */
int plug_remove(struct ctx *ctx, struct qemu *q, const struct plug_kind *kind, const char *id,
                struct err *err);
/* Removes what guests have released since they were given up. What fails is tried again with the
 * next call. */
void plug_sweep(struct ctx *ctx, struct qemu *q);

/* For `make`: one part, with these arguments beside its name (taken; may be NULL) and this
 * descriptor (borrowed; -1: none). */
int plug_make(struct ctx *ctx, struct qemu *q, struct plug *p, enum plug_part part, int fd,
              json_t *args, struct err *err);
/* Removes all parts; the plug stays. */
int plug_unmake(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err);
/* QEMU's path of PLUG_FDSET. Caller frees. */
char *plug_fdset(const struct plug *p);
