/* registry.h - all there is in one shim, by id: its VM, its pods, its containers.
 *
 * The first container needs the VM, which is opened then; it is closed with the last one. A VM that
 * dies ends every process from host knowledge alone, within 100 ms.
 *
 * Life: new -> … -> close -> free. registry_need_vm and registry_close wait until ctx ends; all
 * others never wait. */
#pragma once
#include "base/fiber.h"
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct annotations;
struct cgroup;
struct config;
struct container;
struct ctx;
struct err;
struct events;
struct guest;
struct io_hub;
struct ledger;
struct loop;
struct pod;
struct saved;
struct sandbox;
struct span_sink;
struct spec;
struct strv;
struct vm;
struct vm_opts;
struct vmm;

struct registry_opts {
    struct loop *loop;
    const char *ns, *id; /* containerd namespace, sandbox id */
    /* What the guest calls the container or pod that containerd calls id; the caller frees it.
     * NULL: the same (docs/decisions/0027). */
    char *(*guest_id)(void *arg, const char *id);
    const struct config *config; /* borrows */
    struct events *events;       /* borrows */
    struct span_sink *spans;     /* borrows; NULL: nothing is traced */
    /* The seams: made when the VM is needed. */
    struct vmm *(*make_vmm)(void *arg);
    struct guest *(*make_guest)(void *arg, struct vmm *vmm);
    /* A VM of this size had to start cold because there is no template yet. May be NULL; may not
     * wait. */
    void (*want_template)(void *arg, uint32_t memory_mib);
    /* Images of these layers are wanted (files/layers.h). ctx: waits until they are made, or it
     * ends; NULL: does not wait. May be NULL. */
    void (*want_layers)(void *arg, struct ctx *ctx, const struct strv *dirs);
    void *arg;
    /* shim_cgroup = pod: the shim joins its VM's cgroup, and goes back to this one before that one
     * is removed. NULL: it stays where it is. Borrows. */
    struct cgroup *home;
    const char *address; /* where this shim listens, for the run file; NULL: there is no run file */
    const char *bundle;  /* that the shim was started for; may be NULL */
    /* A container that containerd had given up is gone. May be NULL; may not wait. */
    void (*on_forsaken)(void *arg);
};
/* All controllers hold it and read it. registry*.c changes it, with three exceptions: a new sandbox
 * sets `sandbox`, a process adds to `lost_bytes` when its stdio is freed, and a create clears
 * `forsook`. */
struct registry {
    struct registry_opts o;
    char *ns, *id, *guest_id;
    struct container **containers; /* counted; oldest first, hidden ones too */
    size_t n_containers, containers_cap;
    struct vm *vm;           /* NULL before the first create, and after the last delete */
    struct waitq changed;    /* woken with its containers and its VM */
    struct sandbox *sandbox; /* of the Sandbox API; NULL if there is none (sandbox.h) */
    struct fibers fibers;    /* of all controllers; registry_close awaits them */
    struct fibers drivers;   /* log drivers */
    struct io_hub *hub;      /* of stdio that clients have as streams */
    uint64_t lost_bytes;     /* of output, over all processes that are gone */
    uint64_t record;         /* ledger record of the file that names our address; 0: none */
    bool closing;
    bool forsook; /* containerd has given up a container, and has not come with a new one */
};
struct registry *registry_new(const struct registry_opts *o);
/* Only after registry_close. */
void registry_free(struct registry *r);
AUTO_DEFINE(struct registry *, registry_free);
/* Ends the VM and everything; for shutdown. Bounded by ctx. */
int registry_close(struct ctx *ctx, struct registry *r, struct err *err);

/* --- ids --- */

#define REGISTRY_ID_MAX 128
/* registry_opts.guest_id: for everything that is sent to the guest or to the VMM. All else, up to
 * events, logs, errors and the ledger, has containerd's ids. The caller frees it. */
char *registry_guest_id(const struct registry *r, const char *id);
int registry_check_id(const char *what, const char *id, size_t max, struct err *err);
/* One that clients see. Borrowed; NULL with ERR_NOT_FOUND. */
struct container *registry_find(struct registry *r, const char *id, struct err *err);
/* One that other containers may join. Borrowed; NULL with ERR_NOT_FOUND. */
struct pod *registry_find_pod(struct registry *r, const char *id, struct err *err);
/* Refers to c until it is dropped. With the last one the VM is closed. Repeatable. */
void registry_add(struct registry *r, struct container *c);
void registry_drop(struct registry *r, struct container *c);
/* All of them, for a caller that waits: each counted, NULL-terminated. Release the whole. */
struct container **registry_all(const struct registry *r);
void registry_release_all(struct container **all);
AUTO_DEFINE(struct container **, registry_release_all);
bool registry_idle(const struct registry *r); /* nothing left to serve */
/* The bundles of everything there is. */
void registry_bundles(const struct registry *r, struct strv *ret);

/* --- the VM (registry_vm.c) --- */

/* Opens a VM if there is none, and waits until things can be made for it; it boots meanwhile.
 * spec: whose limits size it. */
int registry_need_vm(struct ctx *ctx, struct registry *r, const struct spec *spec,
                     const struct annotations *options, struct err *err);
/* With a new VMM and guest, which the caller takes; what depends on a spec is not set. */
struct vm_opts registry_vm_opts(struct registry *r);
/* A VM that the caller has started, and ends after yield. It answers queries, and gets no
 * containers. ledger: its own, for the run file. A failure wants yield, too. */
int registry_adopt(struct registry *r, struct vm *vm, struct ledger *ledger, struct err *err);
int registry_yield(struct registry *r, struct ledger *ledger, struct err *err);
/* Moves its VM to that group of host CPUs (cpugroup.h). ERR_STATE: there is no VM. */
int registry_set_cpu_group(struct ctx *ctx, struct registry *r, const char *name, struct err *err);
/* The list of containers has changed, which the file beside the ledger repeats. */
void registry_update_run_file(struct registry *r);

/* registry_save.c: all there is in the shim, for saved.h. It must be settled (settled.h). Reading:
 * into a new registry. */
void registry_saved(struct saved *s, struct registry *r);
