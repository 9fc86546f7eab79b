/* registry.h - all there is in one shim: the VM, its device controllers, pods and containers.
 * What the Task service calls. The first create without a sandbox makes the VM; the VM ends with
 * its last container (unless a sandbox was made on purpose). A VM that dies stops every process
 * from host knowledge alone, within 100 ms. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct cgroup;
struct config;
struct container;
struct ctx;
struct err;
struct event_mount;
struct events;
struct guest;
struct ledger;
struct loop;
struct registry;
struct strv;
struct vm;
struct vmm;

struct registry_opts {
    struct loop *loop;
    const char *ns, *id;         /* containerd namespace, sandbox id */
    const struct config *config; /* borrows */
    struct events *events;       /* borrows */
    /* The seams: made when the VM is needed. */
    struct vmm *(*make_vmm)(void *arg);
    struct guest *(*make_guest)(void *arg, struct vmm *vmm);
    /* A VM of this size had to start cold because there is no template yet. May be NULL; may not
     * wait. */
    void (*want_template)(void *arg, uint32_t memory_mib);
    void *arg;
    /* shim_cgroup = pod: the shim joins its VM's cgroup, and goes back to this one before that one
     * is removed. NULL: it stays where it is. Borrows. */
    struct cgroup *home;
    const char *address; /* where this shim listens, for lcow(1); NULL: nobody is told */
    const char *bundle;  /* that the shim was started for; may be NULL */
    /* A container that containerd had given up is gone. May be NULL; may not wait. */
    void (*on_forsaken)(void *arg);
};
struct registry *registry_new(const struct registry_opts *o);
/* Only after registry_close. */
void registry_free(struct registry *r);
AUTO_DEFINE(struct registry *, registry_free);

struct registry_create {
    const char *id, *bundle, *in, *out, *err;
    bool terminal;
    const struct event_mount *rootfs; /* borrowed */
    size_t n_rootfs;
    const char *checkpoint; /* not "": ERR_UNIMPLEMENTED */
};
/* Waits: VM, files, guest. A failure leaves the id unknown and nothing behind; if something cannot
 * be taken back now, delete on that id takes it back. Publishes create. */
int registry_create(struct ctx *ctx, struct registry *r, const struct registry_create *c,
                    uint32_t *ret_pid, struct err *err);
/* Borrowed; NULL with ERR_NOT_FOUND. */
struct container *registry_find(struct registry *r, const char *id, struct err *err);
struct registry_deleted {
    uint32_t pid, exit_status;
    uint64_t exited_wall_ns;
};
/* exec_id "": the container with all it holds. Running: ERR_STATE, before anything is touched.
 * Resumable. Publishes delete last. A pod's sandbox with other containers left: ERR_STATE. */
int registry_delete(struct ctx *ctx, struct registry *r, const char *id, const char *exec_id,
                    struct registry_deleted *ret, struct err *err);
/* Queries. */
size_t registry_containers(const struct registry *r);
bool registry_idle(const struct registry *r); /* nothing left to serve */
struct vm *registry_vm(struct registry *r);   /* NULL before the first create */
/* `delete` may have left notes for us (run_note.h): each container that they name is killed and
 * deleted, and nothing more of it is told to anybody. Never waits. */
void registry_obey(struct registry *r);
bool registry_is_forsaken(struct registry *r, const char *id);
/* All that is left was given up by containerd: the VM may end. */
bool registry_given_up(const struct registry *r);
/* The bundles of everything there is. */
void registry_bundles(const struct registry *r, struct strv *ret);
/* Ends the VM and everything; for shutdown. Bounded by ctx. */
int registry_close(struct ctx *ctx, struct registry *r, struct err *err);
