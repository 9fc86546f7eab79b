#include "guest/runtime/rewrite.h"
#include "base/err.h"
#include "base/idmap.h"
#include "guest/storage/path.h"
#include "oci/spec.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY 65534

void rewrite_todo_release(struct rewrite_todo *t)
{
    strv_release(&t->dirs);
    strv_release(&t->hugepages);
    strv_release(&t->sizes);
    for (size_t i = 0; i < t->n_volumes; i++)
        volume_release(&t->volumes[i]);
    free(t->volumes);
}

/* --- parts of the document --- */

/* The array under key, made if absent. NULL with err if it is something else. */
static json_t *need_array(json_t *obj, const char *key, struct err *err)
{
    json_t *list = js_get(obj, key);

    if (!list || json_is_null(list)) {
        list = json_array();
        json_object_set_new(obj, key, list);
    }
    if (!json_is_array(list)) {
        err_set(err, ERR_INVALID, "invalid OCI spec: %s is not a list", key);
        return NULL;
    }
    return list;
}

static json_t *linux_of(const struct spec *spec)
{
    return js_get(spec_json(spec), "linux");
}

/* The rules that say which devices it may use. */
static json_t *rules_of(const struct spec *spec, struct err *err)
{
    return need_array(js_get(linux_of(spec), "resources"), "devices", err);
}

static void allow(json_t *rules, const struct rewrite_device *d, const char *access)
{
    const char type[] = { d->type, '\0' };

    json_array_append_new(rules, json_pack("{s:b,s:s,s:I,s:I,s:s}", "allow", 1, "type", type,
                                           "major", (json_int_t)d->major, "minor",
                                           (json_int_t)d->minor, "access", access));
}

/* --- mounts --- */

static int below(json_t *mount, const char *root, const char *dir, const char *rest,
                 struct strv *dirs, struct err *err)
{
    AUTO_FREE char *base = str_format("%s/%s", root, dir), *path = NULL;

    if (path_below(base, rest, &path, err) < 0)
        return -1;
    json_object_set_new(mount, "source", json_string(path));
    strv_add(dirs, path);
    return 0;
}

/* Files with an id that the container lacks belong to "nobody", as in an id-mapped mount. */
static uint32_t owner(const char *map, uint32_t id)
{
    return !map || idmap_outside(map, id, &id) ? id : NOBODY;
}

static int huge(json_t *mount, const struct rewrite_env *env, const char *rest,
                struct rewrite_todo *todo, struct err *err)
{
    size_t len = strcspn(rest, "/");
    AUTO_FREE char *size = str_ndup(rest, len);

    if (!rest[len] || !path_name_ok(size) || strlen(size) > 8)
        return err_because(err, REASON_HUGE_PAGES, ERR_INVALID,
                           "invalid mount source hugepages://%.64s: must be hugepages://SIZE/NAME",
                           rest);
    if (below(mount, env->pod_root, "hugepages", rest, &todo->hugepages, err) < 0)
        return -1;
    strv_addf(&todo->sizes, "%s,uid=%u,gid=%u", size, owner(env->ids->uid, 0),
              owner(env->ids->gid, 0));
    return 0;
}

/* A disk as a device in the container: its node, and the permission to use it. */
static int block_device(const struct spec *spec, json_t *mount, const struct rewrite_env *env,
                        const char *destination, struct err *err)
{
    AUTO_FREE char *node = NULL;
    struct rewrite_device d;
    const char *source = spec_text(mount, "source"), *access = "rwm";
    json_t *rules = rules_of(spec, err), *o;
    size_t i;
    int r = env->read_symlink(env->arg, source, &node);

    if (!rules)
        return -1;
    if (r == 0)
        r = env->find_device(env->arg, node, &d);
    if (r < 0)
        return err_sys(err, -r, "block device %s", source);
    json_array_foreach(js_get(mount, "options"), i, o)
    {
        if (str_eq(json_string_value(o), "ro"))
            access = "r";
    }
    d.type = 'b';
    allow(rules, &d, access);
    json_object_set_new(mount, "source", json_string(node));
    json_object_set_new(mount, "destination", json_string(destination));
    return 0;
}

/* Where a source is that is the pod's own, or on a disk of it: NULL for any other. Caller frees. */
static int pods_path(const char *source, const char *root, char **ret, struct err *err)
{
    static const char *const kinds[][2] = { { "sandbox://", "sandboxMounts" },
                                            { "sandbox-tmp://", "sandboxTmpfsMounts" } };

    if (str_starts(source, VOLUME_DISK))
        return path_below(VOLUME_DISK_DIR, source + strlen(VOLUME_DISK), ret, err);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        AUTO_FREE char *base = str_format("%s/%s", root, kinds[i][1]);
        if (str_starts(source, kinds[i][0]))
            return path_below(base, source + strlen(kinds[i][0]), ret, err);
    }
    *ret = NULL;
    return 0;
}

/* What lcow's host requests for a volume that the guest makes; its mount is a bind of it or of a
 * part. */
static int take_volume(json_t *mount, const struct rewrite_env *env, struct rewrite_todo *todo,
                       struct err *err)
{
    struct volume v = { 0 };
    char *path = NULL;
    bool there;

    if (volume_read(mount, &v, &there, err) < 0)
        return -1;
    if (!there)
        return 0;
    todo->volumes =
        mem_grow(todo->volumes, todo->n_volumes, &todo->volumes_cap, sizeof(*todo->volumes));
    todo->volumes[todo->n_volumes++] = v;
    for (size_t i = 0; i < v.n; i++) {
        v.dirs[i].uid = owner(env->ids->uid, v.dirs[i].uid);
        v.dirs[i].gid = owner(env->ids->gid, v.dirs[i].gid);
    }
    if (pods_path(v.at, env->pod_root, &path, err) < 0)
        return -1;
    if (!path)
        return err_set(err, ERR_INVALID, "invalid volume \"%.64s\": it does not belong to the pod",
                       v.at);
    free(todo->volumes[todo->n_volumes - 1].at);
    todo->volumes[todo->n_volumes - 1].at = path;
    return 0;
}

static int rewrite_mount(const struct spec *spec, json_t *mount, const struct rewrite_env *env,
                         struct rewrite_todo *todo, struct err *err)
{
    const char *source = spec_text(mount, "source"), *destination = spec_text(mount, "destination");
    AUTO_FREE char *path = NULL;

    if (str_starts(destination, "blockdev://"))
        return block_device(spec, mount, env, destination + strlen("blockdev://"), err);
    if (take_volume(mount, env, todo, err) < 0 || pods_path(source, env->pod_root, &path, err) < 0)
        return -1;
    if (path) {
        json_object_set_new(mount, "source", json_string(path));
        strv_add(&todo->dirs, path);
        return 0;
    }
    if (str_starts(source, "hugepages://"))
        return huge(mount, env, source + strlen("hugepages://"), todo, err);
    if (str_starts(source, "uvm://")) {
        path = str_dup(source + strlen("uvm://"));
        if (path_check(path, "mount source uvm://", err) < 0)
            return -1;
        json_object_set_new(mount, "source", json_string(path));
    }
    return 0;
}

static bool mounts_on(const json_t *mounts, const char *destination)
{
    const json_t *m;
    size_t i;

    json_array_foreach(mounts, i, m)
    {
        if (strcmp(spec_text(m, "destination"), destination) == 0)
            return true;
    }
    return false;
}

static void add_etc(const struct spec *spec, json_t *mounts, const char *root)
{
    static const char *const names[] = { "hostname", "hosts", "resolv.conf" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *to = str_format("/etc/%s", names[i]);
        AUTO_FREE char *from = str_format("%s/%s", root, names[i]);
        if (mounts_on(mounts, to))
            continue;
        json_t *options = json_pack("[s]", "bind");
        if (spec_root_readonly(spec))
            json_array_append_new(options, json_string("ro"));
        json_array_append_new(mounts, json_pack("{s:s,s:s,s:s,s:o}", "destination", to, "type",
                                                "bind", "source", from, "options", options));
    }
}

static int set_shm(const struct spec *spec, json_t *mounts, struct err *err)
{
    const char *size = spec_annotation(spec, SPEC_SHM_SIZE_KEY);
    uint64_t kb = 0;
    json_t *m;
    size_t i;

    if (!size || !size[0])
        return 0;
    if (str_to_u64(size, UINT64_MAX / 1024, &kb) < 0 || kb == 0)
        return err_because(err, REASON_INVALID_ANNOTATION, ERR_INVALID,
                           "annotation " SPEC_SHM_SIZE_KEY " is \"%.32s\", not a size", size);
    AUTO_FREE char *option = str_format("size=%luk", kb);
    json_t *shm =
        json_pack("{s:s,s:s,s:s,s:[s,s,s,s,s]}", "destination", "/dev/shm", "type", "tmpfs",
                  "source", "shm", "options", "nosuid", "noexec", "nodev", "mode=1777", option);
    json_array_foreach(mounts, i, m)
    {
        if (strcmp(spec_text(m, "destination"), "/dev/shm") == 0) {
            json_array_set_new(mounts, i, shm);
            return 0;
        }
    }
    json_array_append_new(mounts, shm);
    return 0;
}

/* The pod's log directory, where an annotation wants it. */
static int add_logs(const struct spec *spec, json_t *mounts, const char *root, struct strv *dirs,
                    struct err *err)
{
    const char *to = spec_annotation(spec, SPEC_LOG_DIR_KEY);

    if (!to || !to[0])
        return 0;
    if (path_check(to, "annotation " SPEC_LOG_DIR_KEY, err) < 0)
        return -1;
    AUTO_FREE char *from = str_format("%s/logs", root);
    strv_add(dirs, from);
    json_array_append_new(mounts, json_pack("{s:s,s:s,s:s,s:[s]}", "destination", to, "type",
                                            "bind", "source", from, "options", "rbind"));
    return 0;
}

static int rewrite_mounts(struct spec *spec, const struct rewrite_env *env,
                          struct rewrite_todo *todo, struct err *err)
{
    json_t *mounts = need_array(spec_json(spec), "mounts", err), *m;
    size_t i;

    if (!mounts)
        return -1;
    json_array_foreach(mounts, i, m)
    {
        if (rewrite_mount(spec, m, env, todo, err) < 0)
            return err_wrap(err, "mounts[%zu]", i);
    }
    if (env->kind != SPEC_SANDBOX)
        add_etc(spec, mounts, env->pod_root);
    if (add_logs(spec, mounts, env->pod_root, &todo->dirs, err) < 0)
        return -1;
    return set_shm(spec, mounts, err);
}

/* --- devices --- */

static void describe(json_t *to, const char *path, const struct rewrite_device *d)
{
    const char type[] = { d->type, '\0' };

    json_object_set_new(to, "path", json_string(path));
    json_object_set_new(to, "type", json_string(type));
    json_object_set_new(to, "major", json_integer(d->major));
    json_object_set_new(to, "minor", json_integer(d->minor));
    if (!js_get(to, "uid")) /* else its owner is kept */
        json_object_set_new(to, "uid", json_integer(d->uid));
    if (!js_get(to, "gid"))
        json_object_set_new(to, "gid", json_integer(d->gid));
}

static void append(json_t *devices, const char *path, const struct rewrite_device *d, int mode)
{
    json_t *device, *other;
    size_t i;

    json_array_foreach(devices, i, other)
    {
        if (str_eq(spec_text(other, "path"), path))
            return;
    }
    device = json_object();
    describe(device, path, d);
    json_object_set_new(device, "fileMode", json_integer(mode));
    json_array_append_new(devices, device);
}

static void append_device(void *arg, const char *path, const struct rewrite_device *d)
{
    append(arg, path, d, 0666);
}

/* Finds the node in the VM that stands for it. 1, or 0: there is none, and it may be left out. */
static int find_node(json_t *item, const char *path, const struct rewrite_env *env,
                     struct rewrite_device *d, const char **ret_access, struct err *err)
{
    AUTO_FREE char *node = NULL;
    bool read_only, optional = device_is_optional(item);
    const char *disk = device_symlink(item, &read_only);
    int r = disk ? env->read_symlink(env->arg, disk, &node) : 0;

    *ret_access = disk && read_only ? "rm" : "rwm";
    if (r == 0)
        r = env->find_device(env->arg, node ? node : path, d);
    device_clear(item);
    if (r == 0)
        return 1;
    if (optional)
        return 0;
    if (disk)
        return err_sys(err, -r, "disk for device %s", path);
    return err_because(err, REASON_DEVICE_NOT_IN_VM, ERR_NOT_FOUND,
                       "device %.200s does not exist in the VM; only block and PCI devices of the "
                       "host are supported",
                       path);
}

static int rewrite_device(const struct spec *spec, json_t *item, const struct rewrite_env *env,
                          struct err *err)
{
    json_t *rules = rules_of(spec, err);
    AUTO_FREE char *path = str_dup(spec_text(item, "path"));
    const char *access;
    struct rewrite_device d;

    if (!rules || path_check(path, "linux.devices[].path", err) < 0)
        return -1;
    if (str_eq(spec_text(item, "type"), "p")) /* a fifo, which needs no counterpart in the VM */
        return 1;
    int r = find_node(item, path, env, &d, &access, err);
    if (r <= 0)
        return r;
    describe(item, path, &d);
    allow(rules, &d, access);
    return 1;
}

static int rewrite_devices(struct spec *spec, const struct rewrite_env *env, struct err *err)
{
    json_t *resources = js_get(linux_of(spec), "resources"), *item;
    json_t *devices = need_array(linux_of(spec), "devices", err);
    size_t i;

    if (!devices)
        return -1;
    json_array_foreach(devices, i, item)
    {
        int r = rewrite_device(spec, item, env, err);

        if (r < 0)
            return -1;
        if (r == 0)
            json_array_remove(devices, i--);
    }
    if (env->privileged) {
        env->each_device(env->arg, append_device, devices);
        json_object_set_new(resources, "devices",
                            json_pack("[{s:b,s:s}]", "allow", 1, "access", "rwm"));
    }
    return 0;
}

/* --- windows.devices: PCI devices, where the original has them, on both sides --- */

struct lists {
    json_t *devices, *rules;
};

static void add_node(void *arg, const char *path, const struct rewrite_device *d)
{
    const struct lists *l = arg;
    struct err ignored = ERR_INIT;

    if (path_check(path, "node", &ignored) < 0)
        return; /* not a kernel name */
    append(l->devices, path, d, 0660);
    allow(l->rules, d, "rwm");
}

static bool is_type(const char *type)
{
    return str_eq(type, "vpci-instance-id") || str_eq(type, "vpci") || str_eq(type, "gpu");
}

static int rewrite_pci(struct spec *spec, const struct rewrite_env *env, struct err *err)
{
    json_t *devices = js_get(js_get(spec_json(spec), "windows"), "devices"), *item;
    struct lists lists;
    size_t i;

    if (json_array_size(devices) == 0)
        return 0;
    lists = (struct lists){ need_array(linux_of(spec), "devices", err), rules_of(spec, err) };
    if (!lists.devices || !lists.rules)
        return -1;
    json_array_foreach(devices, i, item)
    {
        const char *id = json_string_value(js_get(item, "id"));
        const char *type = json_string_value(js_get(item, "idType"));

        if (!id || !is_type(type))
            return err_set(err, ERR_INVALID,
                           "invalid windows.devices[%zu]: needs an id and an idType of "
                           "vpci-instance-id, vpci or gpu, not \"%.64s\"",
                           i, type ? type : "");
        int r = env->each_node ? env->each_node(env->arg, id, add_node, &lists) : -ENOSYS;
        if (r == -ENXIO)
            return err_because(err, REASON_DEVICE_FAILED, ERR_NOT_FOUND,
                               "the VM has no PCI device \"%.64s\"", id);
        if (r < 0)
            return err_sys(err, -r, "PCI device \"%.64s\" in the VM", id);
    }
    return 0;
}

/* --- process --- */

static int set_core_limit(struct spec *spec, struct err *err)
{
    const char *value = spec_annotation(spec, SPEC_CORE_LIMIT_KEY);
    json_t *process = js_get(spec_json(spec), "process");
    uint64_t soft, hard;

    if (!value || !value[0])
        return 0;
    const char *semicolon = strchr(value, ';');
    AUTO_FREE char *first = semicolon ? str_ndup(value, (size_t)(semicolon - value)) : str_dup("");
    if (!semicolon || str_to_u64(first, INT64_MAX, &soft) < 0 ||
        str_to_u64(semicolon + 1, INT64_MAX, &hard) < 0)
        return err_because(err, REASON_INVALID_ANNOTATION, ERR_INVALID,
                           "annotation " SPEC_CORE_LIMIT_KEY " is \"%.64s\", must be SOFT;HARD",
                           value);
    json_t *limits = need_array(process, "rlimits", err);
    if (!limits)
        return -1;
    json_array_append_new(limits, json_pack("{s:s,s:I,s:I}", "type", "RLIMIT_CORE", "soft",
                                            (json_int_t)soft, "hard", (json_int_t)hard));
    return 0;
}

const char *rewrite_username(const json_t *process)
{
    return spec_text(js_get(process, "user"), "username");
}

void rewrite_set_user(json_t *process, uint32_t uid, uint32_t gid)
{
    json_t *user = js_get(process, "user");

    if (!json_is_object(user)) {
        user = json_object();
        json_object_set_new(process, "user", user);
    }
    json_object_set_new(user, "uid", json_integer(uid));
    json_object_set_new(user, "gid", json_integer(gid));
    json_object_del(user, "username");
}

void rewrite_exec(json_t *process, const json_t *rlimits, const json_t *user)
{
    if (rlimits)
        json_object_set_new(process, "rlimits", json_deep_copy(rlimits));
    if (user && !rewrite_username(process)[0])
        json_object_set_new(process, "user", json_deep_copy(user));
}

/* --- all of it --- */

/* The boot block holds the link's token, and a sysfs mount in the container would show it. */
static int hide_boot_block(const struct spec *spec, const struct rewrite_env *env, struct err *err)
{
    json_t *masked = env->privileged ? NULL : need_array(linux_of(spec), "maskedPaths", err);

    if (masked)
        json_array_append_new(masked, json_string("/sys/firmware/qemu_fw_cfg"));
    return masked || env->privileged ? 0 : -1;
}

int rewrite_spec(struct spec *spec, const struct rewrite_env *env, struct rewrite_todo *todo,
                 struct err *err)
{
    json_t *root = spec_json(spec);

    if (spec_annotation(spec, REWRITE_VIRTUAL_POD))
        return err_because(err, REASON_INVALID_ANNOTATION, ERR_INVALID,
                           "annotation " REWRITE_VIRTUAL_POD
                           ": virtual pods are unsupported; use a sandbox of its own");
    if (env->kind == SPEC_WORKLOAD && spec_text(root, "hostname")[0])
        return err_set(err, ERR_INVALID,
                       "invalid hostname: a container in a pod uses the pod's; remove it");
    if (rewrite_mounts(spec, env, todo, err) < 0 || rewrite_devices(spec, env, err) < 0 ||
        rewrite_pci(spec, env, err) < 0 || set_core_limit(spec, err) < 0 ||
        hide_boot_block(spec, env, err) < 0)
        return -1;
    AUTO_FREE char *cgroup = env->kind == SPEC_STANDALONE
                                 ? str_format("/pods/%s", env->id)
                                 : str_format("/pods/%s/%s", env->pod_id, env->id);
    json_object_set_new(linux_of(spec), "cgroupsPath", json_string(cgroup));
    json_object_del(root, "windows");
    /* crun refuses an unknown version; newer versions only add fields that it may ignore. */
    json_object_set_new(root, "ociVersion", json_string("1.0.2"));
    return 0;
}
