/* container_create.c - from a bundle to a container that waits for its start in the guest. Each
 * step notes what it made in the container, so that container_release can take it back whenever the
 * next one fails. */
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/config/config.h"
#include "host/control/bundle.h"
#include "host/control/registry_priv.h"
#include "oci/document.h"
#include "oci/pods.h"
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
            err_set(err, ERR_INVALID, "%s/config.json is larger than %u MiB", bundle,
                    SPEC_MAX_BYTES >> 20);
        return -1;
    }
    if (spec_parse(text, len, ret, err) < 0)
        return err_wrap(err, "%s/config.json", bundle);
    pods_drop_ours(*ret);
    return 0;
}

/* --- the pod --- */

struct container *container_find_sandbox(struct registry *r, const char *pod)
{
    LIST_EACH (&r->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, node);

        if (c->kind == SPEC_SANDBOX && str_eq(c->id, pod)) /* also one that clients do not see */
            return c;
    }
    return NULL;
}

static int enter_pod(struct container *c, struct spec *spec, struct err *err)
{
    const char *pod, *path = "";

    if (spec_kind(spec, c->id, &c->kind, &pod, err) < 0 ||
        registry_check_id("sandbox id", pod, REGISTRY_ID_MAX, err) < 0 ||
        pods_check(spec, c->kind, err) < 0)
        return -1;
    free(c->pod_id);
    c->pod_id = str_dup(pod);
    c->own_pids = spec_namespace(spec, "pid", &path) && path[0] == '\0';
    if (pods_fit(spec, c->kind, c->pod_id, err) < 0)
        return -1;
    if (c->kind != SPEC_WORKLOAD)
        return 0;

    struct container *sandbox = container_find_sandbox(c->r, pod);

    if (!sandbox)
        return err_set(err, ERR_NOT_FOUND, "no pod %s for container %s", pod, c->id);
    if (sandbox->state != CONTAINER_RUNNING)
        return err_set(err, ERR_STATE, "pod %s is %s, not Running", pod,
                       fsm_state_name(&container_fsm, sandbox->state));
    return 0;
}

static uint32_t pod_pid(const struct container *c)
{
    struct container *sandbox =
        c->kind == SPEC_WORKLOAD ? container_find_sandbox(c->r, c->pod_id) : NULL;

    return sandbox && sandbox->init ? sandbox->init->guest_pid : 0;
}

/* A debug container names the process on the host of the one that it is to look at. */
static uint32_t target_pid(const struct container *c, const struct spec *spec)
{
    uint32_t pid = pods_namespace_pid(spec, "pid");

    LIST_EACH (&c->r->containers, pos) {
        const struct container *other = LIST_ENTRY(pos, struct container, node);

        if (pid && other->pid == pid && str_eq(other->pod_id, c->pod_id))
            return other->init ? other->init->guest_pid : 0;
    }
    return 0;
}

/* --- in the guest --- */

static int create_in_guest(struct ctx *ctx, struct container *c, struct spec *spec,
                           const struct strv *places, struct err *err)
{
    const struct document_opts o = { .root_path = c->root_path,
                                     .kind = c->kind,
                                     .pod_id = c->pod_id,
                                     .pod_pid = pod_pid(c),
                                     .network_namespace = c->pod_id,
                                     .devices = places,
                                     .privileged = c->privileged,
                                     .target_pid = target_pid(c, spec) };
    const struct guest_container made = { .id = c->id,
                                          .bundle_path = c->bundle_path,
                                          .scratch_path = c->scratch_path ? c->scratch_path : "",
                                          .spec = spec_json(spec),
                                          .privileged = c->privileged };

    document_fit(spec, &o);

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "create a container", err);

    if (!in)
        return -1;
    c->in_guest = true; /* before the call: if the answer is lost, release must still delete it */
    return in->guest->ops->create_container(ctx, in->guest, &made, err);
}

static int make_in_vm(struct ctx *ctx, struct container *c, struct spec *spec, struct files *f,
                      const struct strv *devices, struct err *err)
{
    AUTO(strv_release) struct strv places = { 0 };
    int span, r;

    c->bundle_path = str_format(GUEST_PODS "/%s/%s", c->pod_id, c->id);
    c->root_path = str_format("%s/rootfs", c->bundle_path);
    if (vm_need_running(ctx, c->r->vm, err) < 0 || files_share(ctx, c, f, err) < 0 ||
        vm_need_ready(ctx, c->r->vm, err) < 0 ||
        container_add_devices(ctx, c, devices, &places, err) < 0)
        return -1;
    span = vm_span_begin(c->r->vm, "create container");
    r = create_in_guest(ctx, c, spec, &places, err);
    vm_span_end(c->r->vm, span);
    return r;
}

/* --- its process on the host --- */

static void anchor_main(void *arg)
{
    struct container *c = arg;
    struct ctx root = ctx_root(c->r->o.loop), ctx = ctx_with_id(&root, "cid", c->id);
    struct err err = ERR_INIT;
    bool by_us = true;

    if (anchor_wait(&ctx, c->anchor, &by_us, &err) == 0 && !by_us && c->listed) {
        c->anchor_lost = true; /* one that is being created has no process yet to kill */
        registry_obey(c->r);   /* before anything is told of its end */
        log_warn(&ctx, "the container's process on the host was killed: so is the container");
        if (container_kill(&ctx, c, "", 9, true, &err) < 0)
            log_warn(&ctx, "it could not be killed", F_ERR(&err));
    }
    c->anchor_watched = false;
    waitq_wake_all(&c->changed);
    container_unref(c);
}

static int spawn_anchor(struct ctx *ctx, struct container *c, const struct spec *spec,
                        struct err *err)
{
    const struct vm_parts *vm = vm_parts(c->r->vm);
    const char *netns = "", *cgroup = spec_cgroups_path(spec);
    bool own_netns = spec_namespace(spec, "network", &netns) && !netns[0];
    /* The first container's cgroup is the VM's too, and goes with it. */
    bool with_vm = str_eq(cgroup, vm->cgroup_path);
    struct anchor_opts o = {
        .id = c->id, .netns = netns, .own_netns = own_netns, .ledger = vm->ledger
    };

    if (!with_vm && cgroup_make(cgroup, vm->ledger, &c->cgroup, err) < 0)
        return err_wrap(err, "cgroup of the container");
    o.cgroup = with_vm ? vm->cgroup : c->cgroup;
    o.oom_score_adj = spec_oom_score_adj(spec, &o.set_oom_score_adj);
    if (anchor_spawn(ctx, &o, &c->anchor, err) < 0)
        return err_wrap(err, "the container's process on the host");
    c->pid = (uint32_t)anchor_pid(c->anchor);
    container_note_netns(c, spec);
    container_note_anchor(c);
    c->anchor_watched = true;
    group_go(&c->r->fibers, c->r->o.loop, anchor_main, container_ref(c), "anchor %s", c->id);
    return 0;
}

/* Everything that the host can do alone, while the VM comes up. */
static int prepare(struct ctx *ctx, struct container *c, struct spec *spec,
                   const struct registry_create *rc, enum config_rootfs writes, struct files *f,
                   struct err *err)
{
    int span = vm_span_begin(c->r->vm, "anchor and stdio");
    int r = spawn_anchor(ctx, c, spec, err);

    if (r == 0) {
        c->init = process_new(c, "", rc->in, rc->out, rc->err, rc->terminal);
        r = process_open_io(ctx, c->init, err);
    }
    vm_span_end(c->r->vm, span);
    return r < 0 ? -1 : files_open(ctx, c, spec, rc, writes, f, err);
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
static void note_output(struct ctx *ctx, struct container *c)
{
    c->log_uri = without_arguments(c->init->out);
    log_note(ctx, "output",
             (const struct log_field[]){ F_STR("pod-id", c->pod_id),
                                         F_STR("name", c->log_name),
                                         F_STR("log-directory", c->log_dir),
                                         F_STR("stdout", c->log_uri),
                                         {} });
}

/* One volume must not be the host's for one container of a pod and the VM's for another. */
static int take_empty_dirs(struct container *c, const struct annotations *o, struct err *err)
{
    const struct container *pod =
        c->kind == SPEC_WORKLOAD ? container_find_sandbox(c->r, c->pod_id) : NULL;

    c->shares_empty_dirs = pod ? pod->shares_empty_dirs : o->shared_empty_dirs;
    if (o->said_empty_dirs && o->shared_empty_dirs != c->shares_empty_dirs)
        return err_set(err, ERR_INVALID,
                       "annotation io.lcow.empty_dir is \"%s\", and \"%s\" in its pod %s: it holds "
                       "for the whole pod, set it there",
                       o->shared_empty_dirs ? "shared" : "guest",
                       c->shares_empty_dirs ? "shared" : "guest", c->pod_id);
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

int container_create(struct ctx *ctx, struct container *c, const struct registry_create *rc,
                     struct spec *given, struct err *err)
{
    AUTO(spec_free) struct spec *loaded = NULL;
    struct spec *spec = given;
    AUTO(strv_release) struct strv devices = { 0 };
    struct files files = { .root.fs.tree = -1 };
    struct annotations options;
    int r;

    if (!spec) {
        if (load_spec(ctx, c->bundle, &loaded, err) < 0)
            return -1;
        spec = loaded;
    }
    /* Before enter_pod, which reads annotations too: only what is allowed may be left by then. */
    if (check_room(ctx, c, err) < 0 || annotations_read(c->r->o.config, spec, &options, err) < 0 ||
        enter_pod(c, spec, err) < 0 || container_read_devices(c, spec, &devices, err) < 0 ||
        registry_need_vm(ctx, c->r, spec, &options, err) < 0)
        return -1;
    if (take_empty_dirs(c, &options, err) < 0)
        return -1;
    c->no_writable_shares = options.no_writable_shares;
    c->scratch_quota_mib = options.scratch_quota_mib;
    c->privileged = options.privileged;
    /* Before make_in_vm, which leaves only the annotations that the agent may see. */
    c->log_name = annotation(spec, "io.kubernetes.cri.container-name");
    c->log_dir = annotation(spec, "io.kubernetes.cri.sandbox-log-directory");
    if (spec_limits(spec, &c->limits, err) < 0)
        return -1;
    if (spec_terminal(spec) != rc->terminal)
        json_object_set_new(js_get(spec_json(spec), "process"), "terminal",
                            json_boolean(rc->terminal));
    r = prepare(ctx, c, spec, rc, options.rootfs, &files, err);
    if (r == 0)
        r = make_in_vm(ctx, c, spec, &files, &devices, err);
    files_release(&files);
    if (r < 0 || ctx_check(ctx, err) < 0)
        return -1;
    if (vm_state(c->r->vm) != VM_RUNNING)
        return err_set(err, ERR_UNAVAILABLE, "the VM has ended meanwhile");
    if (c->anchor_lost)
        return err_set(err, ERR_UNAVAILABLE, "the container's process on the host was killed");
    fsm_step(&process_fsm, &c->init->state, PROCESS_EV_CREATED);
    fsm_step(&container_fsm, &c->state, CONTAINER_EV_CREATED);
    note_output(ctx, c);
    return 0;
}
