/* pod.h - what the containers of one pod have in common: the VM that they run in, the network, the
 * emptyDirs, and the container that holds the pod. That is a pause container, a plain container
 * (each is a pod of its own), or one that the sandbox made and clients do not see.
 *
 * Life: made with its holder; a workload container looks its pod up once (registry_find_pod) and
 * keeps it. Counted: freed with the last container and process of it. A VM may have several pods.
 *
 * pod_kill, pod_attach_network, pod_detach_network, pod_take_volume and pod_take_disk wait until
 * ctx ends; the holder's gate orders the two of the network. All others never wait. */
#pragma once
#include "base/gate.h"
#include "base/idmap.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/spec.h"
#include <stdbool.h>
#include <stdint.h>

struct container;
struct ctx;
struct err;
struct jsw;
struct network;
struct network_dns;
struct registry;
struct saved;
struct sizing_pod;
struct vm;
struct volumes_record;

/* Its containers read it. Besides pod*.c only its holder changes it, while that is created. */
struct pod {
    unsigned refs;
    struct registry *r;         /* borrows */
    char *id;                   /* containerd's */
    char *guest_id;             /* registry_guest_id */
    struct vm *vm;              /* counted; NULL until the holder needs it */
    struct container *holder;   /* borrows; NULL once it is deleted */
    struct container **members; /* borrows: all of its containers, oldest first */
    size_t n_members, members_cap;
    bool takes_workloads;   /* other containers may join it */
    bool hidden;            /* its holder is ours: clients do not see it */
    bool shares_empty_dirs; /* they are the host's, not the VM's */
    bool has_scratch;       /* the holder's files are on the VM's scratch disk */
    struct idmap ids;       /* of its user namespace; empty: none */
    struct list volumes;    /* emptyDirs (pod_volumes.c) */
    struct list disks;      /* volumes that are disks (the same) */
    struct gate disks_gate;
    char *netns; /* on the host; NULL: none */
    struct network *network;
    const struct network_dns *dns; /* borrows: its sandbox's; NULL: as the host says */
};

/* c holds it. The caller unrefs. */
struct pod *pod_new(struct registry *r, const char *id, struct container *c);
struct pod *pod_ref(struct pod *pod);
void pod_unref(struct pod *pod);
void pod_join(struct pod *pod, struct container *c);
void pod_leave(struct pod *pod, struct container *c);
/* Another container than c; alive: that has not ended. NULL. */
struct container *pod_other(const struct pod *pod, const struct container *c, bool alive);
/* Takes the VM that it lives in. */
void pod_set_vm(struct pod *pod, struct vm *vm);
/* What its containers need of the VM, if this one has these limits. */
void pod_size(const struct pod *pod, const struct container *one, const struct spec_limits *limits,
              struct sizing_pod *ret);

/* Kill with `all` on its holder: every process of every container, all at once. Ended ones count as
 * killed. The first error is the one that is reported. */
int pod_kill(struct ctx *ctx, struct pod *pod, uint32_t signo, struct err *err);

/* pod_save.c, in a message that is open; its containers are not in it. Reading: *pod is made, in
 * the registry's VM, which is read already. */
void pod_saved(struct saved *s, struct registry *r, struct pod **pod);

/* pod_network.c: attached while the holder is created or, if CNI may come between Create and Start,
 * when it is started; detached when it is deleted. pid: of the holder's anchor. */
void pod_set_netns(struct pod *pod, const struct spec *spec, uint32_t pid);
int pod_attach_network(struct ctx *ctx, struct pod *pod, struct err *err);
int pod_detach_network(struct ctx *ctx, struct pod *pod, struct err *err);
/* Its interfaces, if it is attached, in an object that is open. */
void pod_describe_network(const struct pod *pod, struct jsw *w);

/* pod_volumes.c: *ret_local: this mount is an emptyDir that lives in the VM, and says so now. */
int pod_take_volume(struct ctx *ctx, struct pod *pod, const char *source, json_t *mount,
                    bool *ret_local, struct err *err);
/* The volume that source is, or is a part of (host/config/volumes.h): its device is opened by its
 * first container and held until the pod ends. *ret: NULL if it is not one; else borrowed from pod.
 * *ret_fd, *ret_below: the device, and which part; caller closes and frees. */
int pod_take_disk(struct ctx *ctx, struct pod *pod, const char *source,
                  const struct volumes_record **ret, int *ret_fd, char **ret_below,
                  struct err *err);
void pod_release_volumes(struct pod *pod);
