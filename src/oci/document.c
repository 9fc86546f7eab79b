#include "oci/document.h"
#include "base/err.h"
#include "base/str.h"
#include "oci/pods.h"
#include <string.h>
#include <strings.h>

#define CPU_PERIOD 100000

/* --- mounts --- */

static bool has_option(const json_t *mount, const char *word)
{
    const json_t *o;
    size_t i;

    json_array_foreach(js_get(mount, "options"), i, o)
    {
        if (json_is_string(o) && strcasecmp(json_string_value(o), word) == 0)
            return true;
    }
    return false;
}

static bool guest_source(const char *source)
{
    static const char *const prefixes[] = { "sandbox://", "sandbox-tmp://", "hugepages://",
                                            "uvm://" };

    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        if (str_starts(source, prefixes[i]))
            return true;
    }
    return false;
}

static bool passed_on(const char *type)
{
    static const char *const types[] = { "tmpfs",      "proc",        "sysfs",   "devpts",
                                         "mqueue",     "cgroup",      "cgroup2", "hugetlbfs",
                                         "ramfs",      "binfmt_misc", "debugfs", "tracefs",
                                         "securityfs", "bpf",         "fuse" };

    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (str_eq(type, types[i]))
            return true;
    }
    return false;
}

int document_mount(const json_t *mount, struct document_mount *ret, struct err *err)
{
    const char *type = spec_text(mount, "type");
    bool rbind = has_option(mount, "rbind");
    struct document_mount m = {
        .kind = DOCUMENT_MOUNT_GUEST,
        .source = spec_text(mount, "source"),
        .destination = spec_text(mount, "destination"),
        .read_only = has_option(mount, "ro") || has_option(mount, "rro"),
        .recursive = rbind,
        .top_only = !has_option(mount, "rro"),
        .follow = has_option(mount, "rslave") || has_option(mount, "slave"),
    };

    if (str_eq(type, "virtual-disk"))
        m.kind = DOCUMENT_MOUNT_IMAGE;
    else if (str_eq(type, "physical-disk"))
        m.kind = DOCUMENT_MOUNT_DEVICE;
    else if (str_eq(type, "bind") || rbind || has_option(mount, "bind"))
        m.kind = guest_source(m.source) ? DOCUMENT_MOUNT_GUEST : DOCUMENT_MOUNT_HOST;
    else if (!passed_on(type))
        return err_because(
            err, REASON_MOUNT_UNSUPPORTED, ERR_INVALID,
            "mount on %.128s: a file system of type \"%.64s\" cannot be mounted in the "
            "VM; mount it on the host and use a bind mount",
            m.destination, type);
    if (m.kind != DOCUMENT_MOUNT_GUEST && m.source[0] != '/')
        return err_because(err, REASON_MOUNT_SOURCE_INVALID, ERR_INVALID,
                           "mount on %.128s: source \"%.128s\" is not an absolute path",
                           m.destination, m.source);
    m.raw = (m.kind == DOCUMENT_MOUNT_IMAGE || m.kind == DOCUMENT_MOUNT_DEVICE) &&
            str_starts(m.destination, "blockdev://");
    *ret = m;
    return 0;
}

void document_mount_set(json_t *mount, const char *guest_path)
{
    json_t *options = js_get(mount, "options");

    json_object_set_new(mount, "source", json_string(guest_path));
    json_object_set_new(mount, "type", json_string("bind"));
    if (has_option(mount, "bind") || has_option(mount, "rbind"))
        return;
    if (!json_is_array(options)) {
        options = json_array();
        json_object_set_new(mount, "options", options);
    }
    json_array_insert_new(options, 0, json_string("rbind"));
}

void document_mount_writable(json_t *mount)
{
    json_t *options = js_get(mount, "options");

    for (size_t i = json_array_size(options); i > 0; i--) {
        const char *word = json_string_value(json_array_get(options, i - 1));
        if (word && strcasecmp(word, "ro") == 0)
            json_array_remove(options, i - 1);
    }
}

void document_mount_nodev(json_t *mount)
{
    json_array_append_new(js_get(mount, "options"),
                          json_string("nodev")); /* the last option counts */
}

/* --- devices --- */

static bool names(const json_t *rule, const char *type, json_int_t major, json_int_t minor)
{
    const json_t *a = js_get(rule, "major"), *b = js_get(rule, "minor");

    return json_is_true(js_get(rule, "allow")) && str_eq(spec_text(rule, "type"), type) &&
           json_is_integer(a) && json_is_integer(b) && json_integer_value(a) == major &&
           json_integer_value(b) == minor;
}

int document_device(const struct spec *spec, const json_t *device, struct document_device *ret,
                    struct err *err)
{
    const json_t *linux_part = js_get(spec_json(spec), "linux"), *rule;
    const char *type = spec_text(device, "type");
    struct document_device d = { .type = type[0], .path = spec_text(device, "path") };
    size_t i;

    if (!json_is_object(device) || d.path[0] != '/' || !type[0] || type[1])
        return err_set(err, ERR_INVALID,
                       "invalid linux.devices entry \"%.128s\": no path or no type", d.path);
    if (js_u32(device, "major", &d.major, err) < 0 || js_u32(device, "minor", &d.minor, err) < 0)
        return err_wrap(err, "device %.128s", d.path);
    json_array_foreach(js_get(js_get(linux_part, "resources"), "devices"), i, rule)
    {
        if (!names(rule, type, d.major, d.minor))
            continue;
        d.asked = true;
        d.writable = d.writable || strchr(spec_text(rule, "access"), 'w');
    }
    *ret = d;
    return 0;
}

/* --- namespaces --- */

static bool shares_with_pod(const char *type)
{
    return str_eq(type, "network") || str_eq(type, "ipc") || str_eq(type, "uts") ||
           str_eq(type, "pid") || str_eq(type, "user");
}

static const char *ns_file(const char *type)
{
    return str_eq(type, "network") ? "net" : type;
}

static void fit_namespaces(json_t *linux_part, const struct document_opts *o)
{
    json_t *list = js_get(linux_part, "namespaces"), *item;
    bool network = false, cgroup = false;
    size_t i;

    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(linux_part, "namespaces", list);
    }
    json_array_foreach(list, i, item)
    {
        const char *type = spec_text(item, "type");

        network = network || str_eq(type, "network");
        cgroup = cgroup || str_eq(type, "cgroup");
        if (!spec_text(item, "path")[0] && !str_eq(type, "user")) /* a pod has one user namespace */
            continue;
        json_object_del(item, "path");
        if (o->kind == SPEC_WORKLOAD && o->pod_pid && shares_with_pod(type)) {
            uint32_t pid = o->target_pid && str_eq(type, "pid") ? o->target_pid : o->pod_pid;
            AUTO_FREE char *path = str_format("/proc/%u/ns/%s", pid, ns_file(type));

            json_object_set_new(item, "path", json_string(path));
        }
    }
    if (!network) {
        item = json_object();
        json_object_set_new(item, "type", json_string("network"));
        if (o->kind == SPEC_WORKLOAD && o->pod_pid) {
            AUTO_FREE char *path = str_format("/proc/%u/ns/net", o->pod_pid);

            json_object_set_new(item, "path", json_string(path));
        }
        json_array_append_new(list, item);
    }
    if (!cgroup) /* a client on a host with cgroup v1 requests no cgroup namespace, but the guest
                    has v2 */
        json_array_append_new(list, json_pack("{s:s}", "type", "cgroup"));
}

/* --- limits --- */

static void fit_resources(json_t *linux_part)
{
    static const char *const hosts[] = { "devices", "blockIO", "hugepageLimits", "network" };
    json_t *resources = js_get(linux_part, "resources");
    json_t *cpu = js_get(resources, "cpu"), *period, *quota;

    for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
        json_object_del(resources, hosts[i]);
    if (json_integer_value(js_get(js_get(resources, "pids"), "limit")) == 0)
        json_object_del(resources, "pids"); /* clients without a value send 0 */
    if (!json_is_object(cpu))
        return;
    period = js_get(cpu, "period");
    quota = js_get(cpu, "quota");
    if (period && json_integer_value(period) == 0)
        json_object_set_new(cpu, "period", json_integer(CPU_PERIOD));
    if (quota && json_integer_value(quota) == 0)
        json_object_set_new(cpu, "quota", json_integer(-1));
}

/* --- what the original has below windows, on both sides --- */

static void fit_windows(json_t *root, const struct document_opts *o)
{
    json_t *devices = json_array(), *windows = json_object();

    for (size_t i = 0; o->devices && i < o->devices->n; i++)
        json_array_append_new(
            devices, json_pack("{s:s,s:s}", "id", o->devices->v[i], "idType", "vpci-instance-id"));
    if (o->network_namespace)
        json_object_set_new(windows, "network",
                            json_pack("{s:s}", "networkNamespace", o->network_namespace));
    if (json_array_size(devices) > 0)
        json_object_set(windows, "devices", devices);
    json_object_del(root, "windows");
    if (json_object_size(windows) > 0)
        json_object_set(root, "windows", windows);
    json_decref(devices);
    json_decref(windows);
}

/* --- all of it --- */

/* The annotations that the agent reads. The caller decides which of the last three a container may
 * set. */
static bool for_agent(const void *arg, const char *key)
{
    static const char *const known[] = { SPEC_TYPE_KEY,     SPEC_SANDBOX_KEY,    POD_RESOLV_CONF,
                                         SPEC_SHM_SIZE_KEY, SPEC_CORE_LIMIT_KEY, SPEC_LOG_DIR_KEY };

    (void)arg;
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (str_eq(key, known[i]))
            return true;
    }
    return false;
}

void document_fit(struct spec *spec, const struct document_opts *o)
{
    json_t *root = spec_json(spec), *linux_part = js_get(root, "linux");

    spec_annotations_keep(spec, for_agent, NULL);
    if (o->privileged)
        json_object_del(linux_part, "seccomp");
    json_object_del(root, "hooks");
    fit_windows(root, o);
    json_object_set_new(js_get(root, "root"), "path", json_string(o->root_path));
    json_object_del(linux_part, "cgroupsPath");
    fit_resources(linux_part);
    fit_namespaces(linux_part, o);
    if (spec_annotation(spec, SPEC_SANDBOX_KEY))
        json_object_set_new(js_get(root, "annotations"), SPEC_SANDBOX_KEY, json_string(o->pod_id));
}
