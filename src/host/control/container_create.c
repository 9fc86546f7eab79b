/* container_create.c - from a bundle to a container that waits for its start in the guest. Each
 * step sets a field of the container for what it made, so that container_release can undo it
 * whenever the next one fails. */
#include "base/exit_code.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/waits.h"
#include "host/bridge/guest.h"
#include "host/config/annotations.h"
#include "host/config/devices.h"
#include "host/control/bundle.h"
#include "host/control/container_priv.h"
#include "host/control/events.h"
#include "host/control/forsaken.h"
#include "host/control/sandbox.h"
#include "host/files/scratch.h"
#include "host/jail/anchor.h"
#include "host/jail/cgroup.h"
#include "host/jail/pci.h"
#include "host/ledger/ledger.h"
#include "oci/document.h"
#include "oci/hooks.h"
#include "oci/pods.h"
#include "oci/userns.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GUEST_PODS "/run/gcs/pods"

/* --- the spec --- */

static int load_spec(struct ctx *ctx, const char *bundle, struct spec **ret, struct err *err)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    if (bundle_read(ctx, bundle, "read the bundle", &text, &len, err) < 0) {
        if (err->sys == EFBIG)
            err_because(err, REASON_INVALID_BUNDLE, ERR_INVALID,
                        "%s/config.json is larger than %u MiB", bundle, SPEC_MAX_BYTES >> 20);
        return err_blame(err, REASON_INVALID_BUNDLE);
    }
    if (spec_parse(text, len, ret, err) < 0)
        return err_wrap_because(err, REASON_INVALID_BUNDLE, "%s/config.json", bundle);
    pods_drop_ours(*ret);
    return 0;
}

/* --- the pod --- */

/* One user namespace for the whole pod. */
static int check_ids(const struct pod *pod, const struct idmap *ids, struct err *err)
{
    if (idmap_eq(&pod->ids, ids))
        return 0;
    return err_because(
        err, REASON_USERNS_MISMATCH, ERR_INVALID,
        "its user namespace (uids %.128s, gids %.128s) differs from that of pod %s (uids "
        "%.128s, gids %.128s): a pod has one mapping",
        ids->uid ? ids->uid : "none", ids->gid ? ids->gid : "none", pod->id,
        pod->ids.uid ? pod->ids.uid : "none", pod->ids.gid ? pod->ids.gid : "none");
}

/* Until its spec is read it holds a pod of its own. */
static int enter_pod(struct container *c, struct spec *spec, struct err *err)
{
    AUTO(idmap_release) struct idmap ids = { 0 };
    const char *id, *path = "";
    struct pod *pod;

    if (spec_kind(spec, c->p.id, &c->kind, &id, err) < 0 ||
        registry_check_id("sandbox id", id, REGISTRY_ID_MAX, err) < 0 ||
        pods_check(spec, c->kind, err) < 0)
        return -1;
    if (userns_read(spec, &ids, err) < 0)
        return err_blame(err, REASON_INVALID_ID_MAPPING);
    c->own_pids = spec_namespace(spec, "pid", &path) && path[0] == '\0';
    if (pods_fit(spec, c->kind, c->kind == SPEC_WORKLOAD ? id : c->p.pod->id, err) < 0)
        return -1;
    c->p.pod->takes_workloads = c->kind == SPEC_SANDBOX;
    if (c->kind != SPEC_WORKLOAD) {
        c->p.pod->ids = ids;
        ids = (struct idmap){ 0 };
        return 0;
    }
    pod = registry_find_pod(c->r, id, err);
    if (!pod)
        return err_wrap(err, "container %s", c->p.id);
    if (container_state(pod->holder) != CONTAINER_RUNNING)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE, "pod %s is %s, not Running", id,
                           fsm_state_name(&container_fsm, container_state(pod->holder)));
    if (check_ids(pod, &ids, err) < 0)
        return err_wrap(err, "container %s", c->p.id);
    pod_leave(c->p.pod, c);
    pod_unref(c->p.pod);
    c->p.pod = pod_ref(pod);
    pod_join(pod, c);
    return 0;
}

static uint32_t guest_pid(struct container *c)
{
    struct err none = ERR_INIT;
    const struct process *init = c ? container_process(c, "", &none) : NULL;

    return init ? process_guest_pid(init) : 0;
}

/* A debug container names the process on the host of the one that it is to look at. */
static uint32_t target_pid(const struct container *c, const struct spec *spec)
{
    uint32_t pid = pods_namespace_pid(spec, "pid");

    for (size_t i = 0; pid && i < c->p.pod->n_members; i++)
        if (container_parts(c->p.pod->members[i])->pid == pid)
            return guest_pid(c->p.pod->members[i]);
    return 0;
}

/* --- PCI devices: checked before its VM boots, added when it takes calls --- */

static int find_pci(const char *name, struct pci_function *ret, struct err *err)
{
    return pci_find(PCI_SYS, name, ret, err);
}

static int find_vfio(uint32_t major, uint32_t minor, struct strv *ret, struct err *err)
{
    return pci_of_node(PCI_SYS, major, minor, ret, err);
}

static int add_devices(struct ctx *ctx, struct container *c, const struct strv *addresses,
                       struct strv *ret_places, struct err *err)
{
    if (addresses->n == 0)
        return 0;

    SPAN(step, ctx, vm_timeline(c->p.pod->vm), TRACK_HOST, "add devices", err);

    for (size_t i = 0; i < addresses->n; i++) {
        AUTO_FREE char *place = NULL;

        if (container_add_device(step.ctx, c, addresses->v[i], &place, err) < 0)
            return -1;
        strv_add(ret_places, place);
    }
    return 0;
}

/* --- all its files --- */

struct files {
    struct root root;
    struct mounts mounts;
    const struct container_create *cc;
    enum config_rootfs writes;
};

static int files_open(struct ctx *ctx, struct container *c, struct spec *spec, struct files *f,
                      struct err *err)
{
    if (f->root.none)
        return 0;

    SPAN(step, ctx, vm_timeline(c->p.pod->vm), TRACK_HOST, "open files", err);

    return root_open(ctx, c, spec, f->cc, f->writes, &f->root, err) < 0
               ? -1
               : mounts_open(ctx, c, spec, &f->mounts, err);
}

/* The agent's own process can hold a CRI's pod (docs/decisions/0039). Whether this VM's agent knows
 * how, it says when it has connected. */
static bool can_hold(const struct container *c, const struct spec *spec, const struct strv *devices)
{
    return c->kind == SPEC_SANDBOX && !c->privileged && !c->hooks && devices->n == 0 &&
           !c->p.pod->ids.uid && pods_can_hold(spec);
}

static int settle_holder(struct ctx *ctx, struct container *c, struct spec *spec, struct files *f,
                         struct err *err)
{
    const struct guest *guest = vm_parts(c->p.pod->vm)->guest;

    if (!f->root.none)
        return 0;
    f->root.none = guest->ops->has_holder(guest);
    if (f->root.none)
        pods_drop_files(spec);
    return files_open(ctx, c, spec, f, err);
}

/* The layers need the scratch disk, the mounts do not: each waits for its own. */
static int files_share(struct ctx *ctx, struct container *c, struct files *f, struct err *err)
{
    struct err second = ERR_INIT;

    if (root_share(ctx, c, &f->root, err) < 0)
        return -1;

    int r = mounts_share(ctx, c, &f->mounts, err);
    int combined = root_wait(c, &f->root, &second);

    if (r == 0 && combined < 0) {
        *err = second;
        r = -1;
    }
    return r;
}

/* --- in the guest --- */

static int create_in_guest(struct ctx *ctx, struct container *c, struct spec *spec, bool holder,
                           const struct strv *places, struct err *err)
{
    const struct document_opts o = { .root_path = c->root_path,
                                     .kind = c->kind,
                                     .pod_id = c->p.pod->guest_id,
                                     .pod_pid =
                                         c->kind == SPEC_WORKLOAD ? guest_pid(c->p.pod->holder) : 0,
                                     .network_namespace = c->p.pod->guest_id,
                                     .devices = places,
                                     .privileged = c->privileged,
                                     .target_pid = target_pid(c, spec) };
    const struct guest_container made = { .id = c->p.guest_id,
                                          .bundle_path = c->bundle_path,
                                          .scratch_path = c->scratch_path ? c->scratch_path : "",
                                          .spec = spec_json(spec),
                                          .privileged = c->privileged,
                                          .holder = holder };

    document_fit(spec, &o);

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "create a container", err);

    if (!in)
        return -1;
    c->p.in_guest = true; /* before the call: if the answer is lost, release must still delete it */
    return in->guest->ops->create_container(ctx, in->guest, &made, err);
}

/* --- its process on the host --- */

static void anchor_main(void *arg)
{
    AUTO(container_unref) struct container *c = arg;
    struct ctx ctx = ctx_background(c->r->o.loop, LK_CID, c->p.id);
    struct err err = ERR_INIT;
    bool by_us = true;

    if (anchor_wait(&ctx, c->anchor, &by_us, &err) == 0 && !by_us && c->p.listed) {
        c->anchor_lost = true; /* one that is being created has no process yet to kill */
        forsaken_obey(c->r);   /* before anything of its end is published */
        log_warn(&ctx, "the container's anchor process was killed; killing the container");
        /* As Kill with all: with a holder its pod. If containerd has given up the holder, it still
         * wants the others. */
        if ((c->p.forsaken ? container_kill_alone(&ctx, c, 9, &err)
                           : container_kill(&ctx, c, "", 9, true, &err)) < 0)
            log_warn(&ctx, "the container could not be killed", F_ERR(&err));
    }
    c->anchor_watched = false;
    waitq_wake_all(&c->changed);
}

void container_watch_anchor(struct container *c)
{
    c->anchor_watched = true;
    fibers_go(&c->r->fibers, c->r->o.loop, anchor_main, container_ref(c), FIBER_ANCHOR "%s",
              c->p.id);
}

/* For the run file, which names it to `delete`. */
static void name_anchor(struct container *c)
{
    if (!c->r->o.address)
        return;
    free(c->p.anchor_name);
    c->p.anchor_name = ledger_process_name((pid_t)c->p.pid);
    if (!c->p.anchor_name)
        c->p.anchor_name = str_dup("");
    registry_update_run_file(c->r);
}

static int spawn_anchor(struct ctx *ctx, struct container *c, const struct spec *spec,
                        struct err *err)
{
    const struct vm_parts *vm = vm_parts(c->p.pod->vm);
    const char *netns = "", *cgroup = spec_cgroups_path(spec);
    bool own_netns = spec_namespace(spec, "network", &netns) && !netns[0];
    /* The first container's cgroup is the VM's too, and goes with it. */
    bool with_vm = str_eq(cgroup, vm->cgroup_path), set = false;
    int adj;
    /* A hook that enters its namespaces must not find the host's there. */
    struct anchor_opts o = { .id = c->p.id,
                             .netns = netns,
                             .own_netns = own_netns,
                             .apart = c->hooks != NULL,
                             .ledger = vm->ledger };

    if (!with_vm && cgroup_make(ctx, cgroup, vm->ledger, &c->cgroup, err) < 0)
        return err_wrap_because(err, REASON_CGROUP_FAILED, "cgroup of the container");
    o.cgroup = with_vm ? vm->cgroup : c->cgroup;
    adj = spec_oom_score_adj(spec, &set);
    if (set && vm_raise_oom_score(ctx, c->p.pod->vm, adj, err) < 0)
        return -1;
    if (anchor_spawn(ctx, &o, &c->anchor, err) < 0)
        return err_wrap(err, "the container's process on the host");
    cgroup_settle(c->cgroup);
    c->p.pid = (uint32_t)anchor_pid(c->anchor);
    if (c == c->p.pod->holder)
        pod_set_netns(c->p.pod, spec, c->p.pid);
    name_anchor(c);
    container_watch_anchor(c);
    return 0;
}

/* Everything that the host can do alone, while the VM comes up. */
static int prepare(struct ctx *ctx, struct container *c, const struct spec *spec,
                   const struct container_create *cc, struct err *err)
{
    SPAN(step, ctx, vm_timeline(c->p.pod->vm), TRACK_HOST, "anchor and stdio", err);

    if (spawn_anchor(ctx, c, spec, err) < 0 || container_run_create_hooks(ctx, c, err) < 0)
        return -1;
    c->p.init = process_new(c, "", &cc->stdio, NULL);
    return process_open_io(ctx, c->p.init, err);
}

/* A step in a fiber, beside the others. */
struct aside {
    int (*step)(struct ctx *ctx, struct aside *a, struct err *err);
    struct cancel cancel;
    struct ctx ctx;
    struct container *container;
    const struct spec *spec;
    const struct container_create *cc;
    struct fibers fibers;
    int ret;
    struct err err;
};

static void aside_init(struct aside *a, struct ctx *ctx, struct container *c,
                       const struct spec *spec, const struct container_create *cc)
{
    *a = (struct aside){ .container = c, .spec = spec, .cc = cc, .err = ERR_INIT };
    cancel_init(&a->cancel, ctx->cancel);
    a->ctx = ctx_with_cancel(ctx, &a->cancel);
    fibers_init(&a->fibers);
}

static void aside_main(void *arg)
{
    struct aside *a = arg;

    a->ret = a->step(&a->ctx, a, &a->err);
}

/* Its own ctx bounds it. Can be repeated. */
static int aside_wait(struct aside *a, struct err *err)
{
    struct ctx root = ctx_root(a->container->r->o.loop);
    struct err none = ERR_INIT;

    (void)fibers_wait(&root, &a->fibers, "a step beside the others", &none);
    if (a->ret < 0)
        *err = a->err;
    return a->ret;
}

static int prepare_step(struct ctx *ctx, struct aside *a, struct err *err)
{
    return prepare(ctx, a->container, a->spec, a->cc, err);
}

/* On the host the anchor waits for the kernel: to join a cgroup can take as long as the guest needs
 * for the container's files. But hooks may change what is opened next; and while the VM boots there
 * is time, and a failure of the anchor is then reported without waiting for the VM. */
static void prepare_begin(struct aside *a)
{
    struct container *c = a->container;

    a->step = prepare_step;
    if (c->hooks || vm_state(c->p.pod->vm) != VM_RUNNING)
        aside_main(a);
    else
        fibers_go(&a->fibers, c->r->o.loop, aside_main, a, "prepare %s", c->p.id);
}

static int network_step(struct ctx *ctx, struct aside *a, struct err *err)
{
    return pod_attach_network(ctx, a->container->p.pod, err);
}

/* CNI has made the network of a CRI's sandbox before its Create. Others make theirs later: `ctr run
 * --cni` and Docker between Create and Start, nerdctl in a hook. In the guest the namespace of a
 * pod with a user namespace belongs to that, which Create makes. */
static void network_begin(struct aside *a)
{
    struct container *c = a->container;
    const char *netns = "";

    if (c->kind != SPEC_SANDBOX || c->hooks || c->p.pod->ids.uid ||
        !spec_namespace(a->spec, "network", &netns) || !netns[0])
        return;
    pod_set_netns(c->p.pod, a->spec, 0);
    a->step = network_step;
    fibers_go(&a->fibers, c->r->o.loop, aside_main, a, "network %s", c->p.id);
}

static int make_in_vm(struct ctx *ctx, struct container *c, struct spec *spec, struct files *f,
                      const struct strv *devices, struct aside *p, struct aside *network,
                      struct err *err)
{
    AUTO(strv_release) struct strv places = { 0 };

    c->bundle_path = str_format(GUEST_PODS "/%s/%s", c->p.pod->guest_id, c->p.guest_id);
    c->root_path = str_format("%s/rootfs", c->bundle_path);
    if (vm_need_running(ctx, c->p.pod->vm, err) < 0)
        return -1;
    network_begin(network);
    if (settle_holder(ctx, c, spec, f, err) < 0 || files_share(ctx, c, f, err) < 0 ||
        vm_need_ready(ctx, c->p.pod->vm, err) < 0 ||
        add_devices(ctx, c, devices, &places, err) < 0 || aside_wait(p, err) < 0)
        return -1;

    SPAN(step, ctx, vm_timeline(c->p.pod->vm), TRACK_HOST, "create container", err);

    return create_in_guest(step.ctx, c, spec, f->root.none, &places, err);
}

static char *annotation(const struct spec *spec, const char *key)
{
    const char *value = spec_annotation(spec, key);

    return value && value[0] ? str_dup(value) : NULL;
}

static char *without_arguments(const char *uri)
{
    return uri ? str_ndup(uri, uri[0] == '/' ? strlen(uri) : strcspn(uri, "?#")) : NULL;
}

/* For `lcow logs`: the shim keeps no output, this says where the CRI or a log driver does. */
static void journal_output(struct ctx *ctx, struct container *c, const char *out)
{
    c->log_uri = without_arguments(out);
    log_journal(ctx, "output",
                (const struct log_field[]){ F_STR(LK_POD_ID, c->p.pod->id),
                                            F_STR("name", c->log_name),
                                            F_STR("log-directory", c->log_dir),
                                            F_STR("stdout", c->log_uri),
                                            {} });
}

/* One volume must not be the host's for one container of a pod and the VM's for another. */
static int check_empty_dirs(struct container *c, const struct annotations *o, struct err *err)
{
    struct pod *pod = c->p.pod;

    if (c == pod->holder)
        pod->shares_empty_dirs = o->shared_empty_dirs;
    if (o->said_empty_dirs && o->shared_empty_dirs != pod->shares_empty_dirs)
        return err_because(err, REASON_INVALID_ANNOTATION, ERR_INVALID,
                           "annotation io.lcow.empty_dir is \"%s\", and \"%s\" in its pod %s: it "
                           "applies to the whole pod; set it on the pod",
                           o->shared_empty_dirs ? "shared" : "guest",
                           pod->shares_empty_dirs ? "shared" : "guest", pod->id);
    return 0;
}

/* With its VM a container gets a scratch disk, which asks for room itself. */
static int check_room(struct ctx *ctx, const struct container *c, struct err *err)
{
    const struct config *config = c->r->o.config;

    if (!c->r->vm)
        return 0;
    return scratch_room(ctx, config->scratch_dir, config->scratch_free_mib, err);
}

static int make(struct ctx *ctx, struct container *c, struct spec *spec,
                const struct container_create *cc, struct err *err)
{
    AUTO(strv_release) struct strv devices = { 0 };
    struct files files = { .root.fs.tree = -1, .cc = cc };
    struct aside p, network;
    struct annotations options;
    struct err ignored = ERR_INIT;
    int r;

    /* Before enter_pod, which reads annotations too: only what is allowed may be left by then. */
    if (check_room(ctx, c, err) < 0 ||
        hooks_read(spec, c->r->o.config->run_hooks, &c->hooks, err) < 0 ||
        annotations_read(c->r->o.config, spec, &options, err) < 0 || enter_pod(c, spec, err) < 0)
        return -1;
    if (devices_read(c->r->o.config, spec, find_pci, find_vfio, &devices, err) < 0)
        return err_blame(err, REASON_DEVICE_FAILED);
    if (registry_need_vm(ctx, c->r, spec, &options, err) < 0)
        return -1;
    if (vm_parts(c->r->vm)->wishes.no_writable_shares && !options.no_writable_shares &&
        annotations_restrict(spec, &options, err) < 0)
        return -1;
    pod_set_vm(c->p.pod, c->r->vm);
    if (devices.n && c->p.pod->ids.uid)
        return err_because(
            err, REASON_USERNS_DEVICE, ERR_INVALID,
            "PCI device %s: a container with a user namespace cannot have it, since its "
            "device nodes belong to root of the VM; set hostUsers: true",
            devices.v[0]);
    if (check_empty_dirs(c, &options, err) < 0)
        return -1;
    c->no_writable_shares = options.no_writable_shares;
    c->scratch_quota_mib = options.scratch_quota_mib;
    c->privileged = options.privileged;
    /* Before make_in_vm, which leaves only the annotations that the agent may see. */
    c->log_name = annotation(spec, "io.kubernetes.cri.container-name");
    c->log_dir = annotation(spec, "io.kubernetes.cri.sandbox-log-directory");
    if (spec_limits(spec, &c->p.limits, err) < 0)
        return -1;
    if (spec_terminal(spec) != cc->stdio.terminal)
        json_object_set_new(js_get(spec_json(spec), "process"), "terminal",
                            json_boolean(cc->stdio.terminal));
    aside_init(&p, ctx, c, spec, cc);
    aside_init(&network, ctx, c, spec, cc);
    files.writes = options.rootfs;
    files.root.none = can_hold(c, spec, &devices);
    prepare_begin(&p);
    r = p.ret < 0 || files_open(ctx, c, spec, &files, err) < 0 ||
                make_in_vm(ctx, c, spec, &files, &devices, &p, &network, err) < 0
            ? -1
            : 0;
    if (aside_wait(&p, err) < 0)
        r = -1;
    if (r < 0)
        cancel_fire(&network.cancel, ERR_CANCELLED, "the container cannot be created");
    if (aside_wait(&network, r < 0 ? &ignored : err) < 0)
        r = -1;
    cancel_release(&p.cancel);
    cancel_release(&network.cancel);
    root_release(&files.root);
    mounts_release(&files.mounts);
    if (r < 0 || ctx_check(ctx, err) < 0)
        return -1;
    if (vm_state(c->p.pod->vm) != VM_RUNNING)
        return err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "the VM has exited");
    if (c->anchor_lost)
        return err_set(err, ERR_UNAVAILABLE, "the container's process on the host was killed");
    process_created(c->p.init);
    fsm_step(&container_fsm, &c->p.state, CONTAINER_EV_CREATED);
    journal_output(ctx, c, cc->stdio.out);
    return 0;
}

/* --- create --- */

static int check(struct registry *r, const struct container_create *cc, struct err *err)
{
    struct err none = ERR_INIT;

    if (registry_check_id("container id", cc->id, REGISTRY_ID_MAX, err) < 0)
        return -1;
    if (cc->checkpoint && cc->checkpoint[0])
        return err_because(err, REASON_UNSUPPORTED, ERR_UNIMPLEMENTED,
                           "a VM's container cannot be restored from a checkpoint");
    if (!cc->bundle || cc->bundle[0] != '/')
        return err_because(err, REASON_INVALID_BUNDLE, ERR_INVALID,
                           "bundle \"%.128s\" is not an absolute path",
                           cc->bundle ? cc->bundle : "");
    if (r->closing)
        return err_because(err, REASON_SHIM_LEAVING, ERR_UNAVAILABLE, "the shim is shutting down");
    if (registry_find(r, cc->id, &none))
        return err_because(err, REASON_ALREADY_EXISTS, ERR_EXISTS, "container %s exists already",
                           cc->id);
    return cc->spec ? 0 : sandbox_admits(r, cc->id, err);
}

static struct container *add(struct registry *r, const struct container_create *cc)
{
    struct container *c = container_new(r);

    c->p.id = str_dup(cc->id);
    c->p.guest_id = registry_guest_id(r, cc->id);
    c->p.bundle = str_dup(cc->bundle);
    c->p.hidden = cc->spec != NULL;
    c->p.pod = pod_new(r, c->p.id, c);
    c->p.pod->hidden = c->p.hidden;
    c->p.pod->dns = cc->dns;
    registry_add(r, c);
    return c;
}

/* Everything is released, whether the client is still there or not; what cannot be stays listed. */
static void undo(struct container *c, struct err *err)
{
    struct ctx own = ctx_background(c->r->o.loop, LK_CID, c->p.id);
    struct ctx limited = ctx_with_timeout(&own, CONTAINER_UNDO_LIMIT);
    struct err lost = ERR_INIT;

    fsm_step(&container_fsm, &c->p.state, CONTAINER_EV_CREATE_FAILED);
    if (container_release(&limited, c, &lost) == 0) {
        registry_drop(c->r, c);
        return;
    }
    log_error(&own, "rolling back a failed create is incomplete; Delete will continue it",
              F_ERR(&lost));
    /* Nothing of it runs, and a client that waits for its end or that of its output (a containerd
     * that lost the call and found the container) must not wait without limit. */
    if (c->p.init) {
        process_close_io(c->p.init);
        process_end(c->p.init, EXIT_LOST, false);
    }
    err_wrap(err, "%s; and before that", lost.msg);
}

static int create(struct ctx *ctx, struct container *c, const struct container_create *cc,
                  struct err *err)
{
    AUTO(spec_free) struct spec *loaded = NULL;
    /* The gate is free, but a delete may come later. */
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.create", err);

    if (held && (cc->spec || load_spec(ctx, c->p.bundle, &loaded, err) == 0) &&
        make(ctx, c, cc->spec ? cc->spec : loaded, cc, err) == 0)
        return 0;
    vm_explain(c->r->vm, err);
    undo(c, err);
    return err_wrap(err, "create container %s", c->p.id);
}

int container_create(struct ctx *ctx, struct registry *r, const struct container_create *cc,
                     struct container **ret, struct err *err)
{
    if (check(r, cc, err) < 0)
        return -1;

    AUTO(container_unref) struct container *c = add(r, cc);
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_CREATE_LIMIT);
    struct ctx own = ctx_with_id(&limited, LK_CID, c->p.id);
    int n = create(&own, c, cc, err);

    if (c->p.listed)
        *ret = container_ref(c);
    if (n < 0 || c->p.hidden)
        return n;
    r->forsook = false;
    events_push(r->o.events, &(struct event){ .kind = EVENT_CREATE,
                                              .wall_ns = loop_wall(r->o.loop),
                                              .container_id = c->p.id,
                                              .exec_id = "",
                                              .pid = c->p.pid,
                                              .bundle = c->p.bundle,
                                              .in = cc->stdio.in,
                                              .out = cc->stdio.out,
                                              .err = cc->stdio.err,
                                              .terminal = cc->stdio.terminal,
                                              .rootfs = cc->rootfs,
                                              .n_rootfs = cc->n_rootfs });
    log_info(&own, "container created", F_U(LK_PID, c->p.pid));
    return 0;
}
