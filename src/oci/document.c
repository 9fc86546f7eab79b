#include "oci/document.h"
#include "base/err.h"
#include "base/str.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ANNOTATION_SANDBOX "io.kubernetes.cri.sandbox-id"
#define PRIVILEGED "io.microsoft.virtualmachine.lcow.privileged"
#define CPU_PERIOD 100000

static const char *text_of(const json_t *obj, const char *key)
{
    const char *value = json_string_value(js_get(obj, key));

    return value ? value : "";
}

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

int document_mount(const json_t *mount, enum document_mount *ret, const char **ret_source,
                   bool *ret_read_only, bool *ret_recursive, struct err *err)
{
    static const char *const passed[] = { "tmpfs",      "proc",        "sysfs",   "devpts",
                                          "mqueue",     "cgroup",      "cgroup2", "hugetlbfs",
                                          "ramfs",      "binfmt_misc", "debugfs", "tracefs",
                                          "securityfs", "bpf",         "fuse" };
    const char *type = text_of(mount, "type"), *source = text_of(mount, "source");
    bool rbind = has_option(mount, "rbind");

    *ret_source = source;
    *ret_read_only = has_option(mount, "ro");
    *ret_recursive = rbind;
    if (str_eq(type, "bind") || rbind || has_option(mount, "bind")) {
        *ret = guest_source(source) ? DOCUMENT_MOUNT_GUEST : DOCUMENT_MOUNT_HOST;
        if (*ret == DOCUMENT_MOUNT_HOST && source[0] != '/')
            return err_set(err, ERR_INVALID,
                           "mount on %.128s: source \"%.128s\" is not an absolute path",
                           text_of(mount, "destination"), source);
        return 0;
    }
    *ret = DOCUMENT_MOUNT_GUEST;
    for (size_t i = 0; i < ARRAY_LEN(passed); i++) {
        if (str_eq(type, passed[i]))
            return 0;
    }
    return err_set(err, ERR_UNIMPLEMENTED,
                   "mount on %.128s: a file system of type \"%.64s\" cannot be mounted in the VM; "
                   "mount it on the host and use a bind mount",
                   text_of(mount, "destination"), type);
}

/* --- namespaces --- */

static bool shares_with_pod(const char *type)
{
    return str_eq(type, "network") || str_eq(type, "ipc") || str_eq(type, "uts") ||
           str_eq(type, "pid");
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
        const char *type = text_of(item, "type");

        network = network || str_eq(type, "network");
        cgroup = cgroup || str_eq(type, "cgroup");
        if (!text_of(item, "path")[0])
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
    if (!cgroup) /* a client whose host has cgroup v1 asks for none, and the guest has v2 */
        json_array_append_new(list, json_pack("{s:s}", "type", "cgroup"));
}

/* --- limits --- */

static void fit_resources(json_t *linux_part)
{
    static const char *const hosts[] = { "devices", "pids", "blockIO", "hugepageLimits",
                                         "network" };
    json_t *resources = js_get(linux_part, "resources");
    json_t *cpu = js_get(resources, "cpu"), *period, *quota;

    for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
        json_object_del(resources, hosts[i]);
    if (!json_is_object(cpu))
        return;
    period = js_get(cpu, "period");
    quota = js_get(cpu, "quota");
    if (period && json_integer_value(period) == 0)
        json_object_set_new(cpu, "period", json_integer(CPU_PERIOD));
    if (quota && json_integer_value(quota) == 0)
        json_object_set_new(cpu, "quota", json_integer(-1));
}

/* --- all of it --- */

static void fit_spec(struct spec *spec, const struct document_opts *o)
{
    json_t *root = spec_json(spec), *linux_part = js_get(root, "linux");
    const char *privileged = spec_annotation(spec, PRIVILEGED);

    if (str_eq(privileged, "true"))
        json_object_del(linux_part, "seccomp");
    json_object_del(root, "hooks");
    json_object_del(root, "windows");
    if (o->network_namespace) /* where the original has it, on both sides */
        json_object_set_new(
            root, "windows",
            json_pack("{s:{s:s}}", "network", "networkNamespace", o->network_namespace));
    json_object_set_new(js_get(root, "root"), "path", json_string(o->root_path));
    json_object_del(linux_part, "cgroupsPath");
    fit_resources(linux_part);
    fit_namespaces(linux_part, o);
    if (spec_annotation(spec, ANNOTATION_SANDBOX))
        json_object_set_new(js_get(root, "annotations"), ANNOTATION_SANDBOX,
                            json_string(o->pod_id));
}

int document_build(struct spec *spec, const struct document_opts *o, char **ret, struct err *err)
{
    struct jsw w;

    (void)err; /* a checked spec leaves nothing to refuse; the signature may */
    fit_spec(spec, o);
    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    jsw_obj(&w, "SchemaVersion");
    jsw_u64(&w, "Major", 2);
    jsw_u64(&w, "Minor", 1);
    jsw_end_obj(&w);
    jsw_str(&w, "OciBundlePath", o->bundle_path);
    jsw_value(&w, "OciSpecification", spec_json(spec));
    jsw_str(&w, "ScratchDirPath", o->scratch_path);
    jsw_end_obj(&w);
    *ret = jsw_take(&w, NULL);
    return 0;
}
