#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/net/nets.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/devices.h"
#include "guest/runtime/pod_files.h"
#include "guest/runtime/rewrite.h"
#include "guest/runtime/rootfs.h"
#include "guest/storage/path.h"
#include "oci/pods.h"
#include "oci/userns.h"
#include <string.h>
#include <unistd.h>

#define UNDO_NS (30 * NS_PER_S)
#define TEE_LOG "io.microsoft.container.lcow.tee-log-path"

/* --- the document --- */

static int write_spec(const struct container *c, const struct spec *spec, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/config.json", c->bundle);
    AUTO_FREE char *text = js_text(spec_json(spec), 0);
    int r = dir_make(c->bundle, PATH_PASSABLE);

    if (r == 0)
        r = file_write(path, text, strlen(text), 0600);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

/* --- the network namespace that the host names, made if it is new --- */

/* Where the original has it: windows.network.networkNamespace. "" if the host names none. */
static const char *named(const struct spec *spec)
{
    const char *name = json_string_value(
        js_get(js_get(js_get(spec_json(spec), "windows"), "network"), "networkNamespace"));

    return name ? name : "";
}

static void set_path(const struct spec *spec, const char *path)
{
    json_t *linux_part = js_get(spec_json(spec), "linux"), *item;
    json_t *list = js_get(linux_part, "namespaces");
    size_t i;

    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(linux_part, "namespaces", list);
    }
    json_array_foreach(list, i, item)
    {
        if (str_eq(json_string_value(js_get(item, "type")), "network")) {
            json_object_set_new(item, "path", json_string(path));
            return;
        }
    }
    json_array_append_new(list, json_pack("{s:s,s:s}", "type", "network", "path", path));
}

static int join_network(struct ctx *ctx, struct container *c, const struct spec *spec,
                        struct err *err)
{
    struct nets *nets = c->table->opts.nets;
    AUTO_FREE char *path = NULL;

    /* With a user namespace crun makes the network namespace inside of that; adopt_network()
     * registers it afterwards. */
    if (!nets || !named(spec)[0] || (c->ids.uid && c->kind != SPEC_WORKLOAD))
        return 0;
    if (nets_hold(ctx, nets, named(spec), &path, err) < 0)
        return -1;
    c->network = str_dup(named(spec));
    set_path(spec, path);
    return 0;
}

static int adopt_network(struct ctx *ctx, struct container *c, const char *name, struct err *err)
{
    if (c->network || !c->table->opts.nets || !name[0])
        return 0;
    if (nets_adopt(ctx, c->table->opts.nets, name, process_pid(c->init), err) < 0)
        return -1;
    c->network = str_dup(name);
    return 0;
}

/* --- the pod --- */

static struct container *find_holder(const struct containers *cs, const char *pod_id)
{
    LIST_FOR (struct container, c, &cs->containers, in_table)
        if (c->kind == SPEC_SANDBOX && c->pod && strcmp(c->pod->id, pod_id) == 0)
            return c;
    return NULL;
}

static int make_pod(struct container *c, const struct spec *spec, const char *pod_id,
                    struct err *err)
{
    const json_t *resources = js_get(js_get(spec_json(spec), "linux"), "resources");

    if (strcmp(pod_id, c->id) != 0)
        return err_set(err, ERR_INVALID,
                       "invalid sandbox container %s: its sandbox id is %.64s, but must be its own",
                       c->id, pod_id);
    AUTO_FREE char *path = str_format("/pods/%s", pod_id), *dir = cgroup_dir(path);
    if (cgroup_make_pod(dir, resources, err) < 0)
        return -1;
    c->pod = mem_new(struct pod);
    c->pod->refs = 1;
    c->pod->id = str_dup(pod_id);
    c->pod->root = str_dup(c->bundle);
    c->pod->cgroup = TAKE_PTR(dir);
    return 0;
}

static int join_pod(struct container *c, const char *pod_id, struct err *err)
{
    struct container *holder = find_holder(c->table, pod_id);

    if (!holder || holder->state == CONTAINER_CREATING)
        return err_set(err, ERR_INTERNAL, "pod \"%.64s\" of container %s does not exist", pod_id,
                       c->id);
    c->pod = holder->pod;
    c->pod->refs++;
    return 0;
}

static int enter_pod(struct ctx *ctx, struct container *c, const struct spec *spec,
                     const char *pod_id, struct err *err)
{
    const char *hostname = spec_text(spec_json(spec), "hostname");

    if (pod_files_check_hostname(hostname, err) < 0 || join_network(ctx, c, spec, err) < 0)
        return -1;
    if (c->kind == SPEC_WORKLOAD)
        return join_pod(c, pod_id, err);
    if (c->kind == SPEC_SANDBOX && make_pod(c, spec, pod_id, err) < 0)
        return -1;
    AUTO_FREE char *search = NULL, *servers = NULL;
    if (c->network)
        nets_dns(c->table->opts.nets, c->network, &search, &servers);
    struct pod_files f = { c->bundle,
                           hostname,
                           search,
                           servers,
                           spec_annotation(spec, POD_RESOLV_CONF),
                           c->kind == SPEC_SANDBOX,
                           c->owner.uid,
                           c->owner.gid };
    c->files_made = true; /* from here on there may be something to undo */
    return pod_files_make(ctx, &f, err);
}

/* --- the container --- */

static int fit_spec(struct ctx *ctx, struct container *c, struct spec *spec, bool privileged,
                    struct err *err)
{
    struct rewrite_env env = {
        .kind = c->kind,
        .id = c->id,
        .pod_id = c->pod ? c->pod->id : c->id,
        .pod_root = c->pod ? c->pod->root : c->bundle,
        .ids = &c->ids,
        .privileged = privileged,
    };
    json_t *process = js_get(spec_json(spec), "process");
    struct rewrite_todo todo = { 0 };
    uint32_t uid = 0, gid = 0;

    devices_env(&env);
    int r = rewrite_spec(spec, &env, &todo, err);
    if (r == 0)
        r = pod_files_make_todo(ctx, &c->table->volumes, &todo, err);
    rewrite_todo_release(&todo);
    if (r < 0)
        return -1;
    if (c->holder)
        return 0;
    const char *user = rewrite_username(process);
    bool named = user[0] != '\0';
    if (rootfs_prepare(ctx, c->root, c->owner, user, spec_text(process, "cwd"), &uid, &gid, err) <
        0)
        return -1;
    if (named)
        rewrite_set_user(process, uid, gid);
    json_t *rlimits = js_get(process, "rlimits"), *resolved = js_get(process, "user");
    c->rlimits = rlimits ? json_deep_copy(rlimits) : NULL;
    c->user = named ? json_deep_copy(resolved) : NULL;
    return 0;
}

static int create(struct ctx *ctx, struct container *c, struct spec *spec, const char *pod_id,
                  bool privileged, struct err *err)
{
    AUTO_FREE char *network = str_dup(named(spec));
    const char *pid_ns = "";

    if (userns_read(spec, &c->ids, err) < 0)
        return -1;
    if (c->ids.uid) {
        (void)idmap_outside(c->ids.uid, 0, &c->owner.uid); /* userns_read checks that */
        (void)idmap_outside(c->ids.gid, 0, &c->owner.gid);
    }
    if (enter_pod(ctx, c, spec, pod_id, err) < 0 || fit_spec(ctx, c, spec, privileged, err) < 0)
        return -1;
    if (spec_annotation(spec, TEE_LOG))
        log_warn(ctx,
                 "the tee log annotation is unsupported; continuing without a copy of the output",
                 F_STR("annotation", TEE_LOG));
    c->cgroup = cgroup_dir(spec_cgroups_path(spec));
    c->terminal = spec_terminal(spec);
    c->has_hooks = json_object_size(js_get(spec_json(spec), "hooks")) > 0;
    c->own_pid_ns = spec_namespace(spec, "pid", &pid_ns) && !pid_ns[0];
    if (c->holder) {
        const json_t *resources = js_get(js_get(spec_json(spec), "linux"), "resources");

        return cgroup_make_holder(c->cgroup, resources, err) < 0
                   ? -1
                   : container_run(ctx, c, spec, NULL, false, container_on_exit, container_on_done,
                                   &c->init, err);
    }
    if (write_spec(c, spec, err) < 0)
        return -1;
    c->crun_made = true; /* even a failed create may leave a directory */
    if (container_run(ctx, c, NULL, NULL, c->terminal, container_on_exit, container_on_done,
                      &c->init, err) < 0)
        return -1;
    return adopt_network(ctx, c, network, err);
}

/* Everything is undone except the rootfs, which the host removes. */
static void undo(struct container *c)
{
    struct ctx ctx = ctx_limited(c->table->opts.loop, UNDO_NS);
    AUTO_FREE char *config = str_format("%s/config.json", c->bundle);
    struct err err = ERR_INIT;

    if (c->crun_made && crun_delete(&ctx, c->table->crun, c->id, true, &err) < 0)
        log_warn(&ctx, "crun could not delete a container whose create failed",
                 F_STR(LK_CID, c->id), F_ERR(&err));
    if (c->cgroup && c->holder)
        (void)cgroup_end(&ctx, c->cgroup, &err); /* with the process, if it was started */
    else if (c->cgroup)
        (void)cgroup_remove(c->cgroup); /* crun usually has */
    if (c->files_made && pod_files_remove(&ctx, c->bundle, &err) < 0)
        log_warn(&ctx, "cannot remove the files of a container whose create failed",
                 F_STR(LK_CID, c->id), F_ERR(&err));
    (void)unlink(config);
}

static int check(const struct containers *cs, const struct container_config *config,
                 struct err *err)
{
    struct err unknown = ERR_INIT;

    if (!path_name_ok(config->id))
        return err_because(err, REASON_INVALID_ID, ERR_INVALID,
                           "invalid container ID format: \"%.64s\"", config->id);
    if (path_check_run(config->bundle_path, "OciBundlePath", err) < 0)
        return -1;
    if (config->scratch_path[0] && path_check_run(config->scratch_path, "ScratchDirPath", err) < 0)
        return -1;
    if (containers_find(cs, config->id, &unknown))
        return err_because(err, REASON_ALREADY_EXISTS, ERR_EXISTS,
                           "container with given ID already exists: %s", config->id);
    if (cs->n >= CONTAINERS_MAX)
        return err_set(err, ERR_EXHAUSTED, "too many containers: at most %d", CONTAINERS_MAX);
    return 0;
}

/* The host asks for it only if the rest of the spec fits, too (pods_can_hold). */
static bool can_hold(const struct spec *spec, enum spec_kind kind, bool privileged)
{
    const char *path;

    return kind == SPEC_SANDBOX && !privileged && !spec_terminal(spec) &&
           !spec_namespace(spec, "user", &path);
}

static struct container *add(struct containers *cs, const struct container_config *config)
{
    struct container *c = mem_new(struct container);

    c->table = cs;
    c->refs = 2; /* the table's and the caller's */
    c->id = str_dup(config->id);
    c->activity_id = str_dup(config->activity_id);
    c->bundle = str_dup(config->bundle_path);
    c->scratch = str_dup(config->scratch_path);
    gate_init(&c->gate, "container");
    processes_init(&c->execs);
    waitq_init(&c->oom);
    cancel_init(&c->oom_stop, NULL);
    list_append(&cs->containers, &c->in_table);
    cs->n++;
    return c;
}

int container_create(struct ctx *ctx, struct containers *cs, const struct container_config *config,
                     struct err *err)
{
    AUTO(spec_free) struct spec *spec = NULL;
    enum spec_kind kind;
    const char *pod_id;

    if (check(cs, config, err) < 0 || spec_from_json(config->spec, &spec, err) < 0 ||
        spec_kind(spec, config->id, &kind, &pod_id, err) < 0)
        return -1;
    if (!path_name_ok(pod_id))
        return err_set(err, ERR_INVALID, "invalid sandbox id \"%.64s\"", pod_id);
    if (path_check_run(spec_root_path(spec), "root.path", err) < 0)
        return -1;
    if (config->holder && !can_hold(spec, kind, config->privileged))
        return err_set(err, ERR_INVALID, "container %s cannot be a holder", config->id);

    AUTO(container_unref) struct container *c = add(cs, config);
    c->kind = kind;
    c->holder = config->holder;
    c->root = str_dup(spec_root_path(spec));
    if (create(ctx, c, spec, pod_id, config->privileged, err) < 0) {
        undo(c);
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_FAILED);
        container_forget(c);
        return err_wrap(err, "create container %s", config->id);
    }
    fsm_step(&container_fsm, &c->state, CONTAINER_EV_CREATED);
    if (process_done(c->init,
                     NULL)) /* already exited: container_on_done left this step to create */
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_EXITED);
    waitq_wake_all(&cs->changed); /* a delete may wait for it */
    log_info(ctx, "container created", F_STR(LK_CID, c->id), F_U(LK_PID, process_pid(c->init)));
    return 0;
}
