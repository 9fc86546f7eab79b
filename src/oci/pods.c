#include "oci/pods.h"
#include "base/err.h"
#include "base/str.h"
#include "oci/volume.h"
#include <string.h>

#define SHM "sandbox-tmp://shm"          /* of a pod, in its VM */
#define SHM_DEFAULT (UINT64_C(64) << 20) /* containerd's */

/* --- what is refused --- */

static bool names(const struct spec *s, const char *type)
{
    const char *path;

    return spec_namespace(s, type, &path);
}

static const struct {
    const char *type, *options, *why;
} hosts[] = {
    { "network", "hostNetwork, --net-host", "a VM has a network of its own" },
    { "pid", "hostPID, --pid=host", "the host's processes are not in the VM" },
    { "ipc", "hostIPC, --ipc=host", "the host's memory is not in the VM" },
};

int pods_refuse(const char *type, struct err *err)
{
    size_t i = 0;

    while (i + 1 < ARRAY_LEN(hosts) && !str_eq(hosts[i].type, type))
        i++;
    return err_because(err, REASON_HOST_NAMESPACE, ERR_INVALID,
                       "the host's %s namespace (%s) is unsupported: %s", type, hosts[i].options,
                       hosts[i].why);
}

/* A pod's containers join the pod's namespaces, by paths of its process. Other containers join only
 * a network namespace, which CNI has made. */
static int check_paths(const struct spec *s, struct err *err)
{
    static const char *const types[] = { "pid", "ipc", "uts" };
    const char *path = "";

    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (spec_namespace(s, types[i], &path) && path[0])
            return err_because(
                err, REASON_FOREIGN_NAMESPACE, ERR_INVALID,
                "the %s namespace %.128s cannot be joined: it is the host's or another "
                "container's, outside of the VM",
                types[i], path);
    return 0;
}

static int check_namespaces(const struct spec *s, enum spec_kind kind, struct err *err)
{
    if (kind == SPEC_WORKLOAD ||
        !names(s, "mount")) /* checked for its pod; the path does not come from a client */
        return 0;
    for (const char *const *type = (const char *const[]){ "network", "pid", "ipc", NULL }; *type;
         type++)
        if (!names(s, *type))
            return pods_refuse(*type, err);
    return check_paths(s, err);
}

static int check_propagation(const json_t *mount, struct err *err)
{
    const char *source = spec_text(mount, "source");
    const json_t *o;
    size_t i;

    if (source[0] != '/') /* of the guest itself */
        return 0;
    json_array_foreach(js_get(mount, "options"), i, o)
    {
        const char *word = json_string_value(o);

        if (str_eq(word, "rshared") || str_eq(word, "shared"))
            return err_because(
                err, REASON_MOUNT_PROPAGATION, ERR_INVALID,
                "mount on %.128s: %s propagation (Bidirectional) is unsupported: what "
                "is mounted in the VM cannot appear on the host",
                spec_text(mount, "destination"), word);
    }
    return 0;
}

/* A CDI specification can add these, too. */
static int check_host_parts(const struct spec *s, struct err *err)
{
    const json_t *linux_part = js_get(spec_json(s), "linux"), *rdt = js_get(linux_part, "intelRdt");
    const char *name = json_object_iter_key(json_object_iter(js_get(linux_part, "netDevices")));

    if (name)
        return err_because(
            err, REASON_UNSUPPORTED, ERR_INVALID,
            "linux.netDevices: the host's interface %.32s cannot be moved into the VM; "
            "attach it by CNI, or as a PCI device (allow_devices)",
            name);
    if (json_object_size(rdt) > 0)
        return err_because(
            err, REASON_UNSUPPORTED, ERR_INVALID,
            "linux.intelRdt (class \"%.64s\") is unsupported: the VM has no resctrl; "
            "remove the class",
            spec_text(rdt, "closID"));
    return 0;
}

int pods_check(const struct spec *s, enum spec_kind kind, struct err *err)
{
    const json_t *mount;
    size_t i;

    if (check_host_parts(s, err) < 0)
        return -1;

    json_array_foreach(js_get(spec_json(s), "mounts"), i, mount)
    {
        if (check_propagation(mount, err) < 0)
            return -1;
    }
    return check_namespaces(s, kind, err);
}

/* --- what becomes the pod's own --- */

/* <state>/…/sandboxes/POD/shm, as containerd makes it. */
static bool pods_shm(const char *source, const char *pod_id)
{
    AUTO_FREE char *tail = str_format("/%s/shm", pod_id);
    size_t len = strlen(source), n = strlen(tail);

    return len > n && strcmp(source + len - n, tail) == 0;
}

/* "size=64m" as tmpfs takes it; false for a share of memory, or if there is none. */
static bool tmpfs_size(const json_t *mount, uint64_t *ret)
{
    const json_t *o;
    size_t i;

    json_array_foreach(js_get(mount, "options"), i, o)
    {
        const char *word = json_string_value(o), *units = "kmg", *unit;

        if (!word || !str_starts(word, "size="))
            continue;
        AUTO_FREE char *digits = str_dup(word + strlen("size="));
        size_t n = strspn(digits, "0123456789");
        char last = (char)(digits[n] | 0x20);

        unit = digits[n] ? strchr(units, last) : NULL;
        if (digits[n] && (!unit || digits[n + 1]))
            return false;
        digits[n] = '\0';

        unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;

        if (str_to_u64(digits, (uint64_t)INT64_MAX >> shift, ret) < 0)
            return false;
        *ret <<= shift;
        return *ret > 0;
    }
    return false;
}

void pods_drop_ours(struct spec *s)
{
    json_object_del(js_get(spec_json(s), "annotations"), POD_RESOLV_CONF);
}

static int shm_bytes(const struct spec *s, const json_t *mount, uint64_t *ret, struct err *err)
{
    const char *said = spec_annotation(s, SPEC_SHM_SIZE_KEY);

    *ret = SHM_DEFAULT;
    if (said && said[0]) {
        if (str_to_u64(said, UINT64_MAX >> 20, ret) < 0 || *ret == 0)
            return err_because(err, REASON_INVALID_ANNOTATION, ERR_INVALID,
                               "annotation " SPEC_SHM_SIZE_KEY " is \"%.32s\", not a size", said);
        *ret <<= 10;
        return 0;
    }
    if (str_eq(spec_text(mount, "type"), "tmpfs"))
        (void)tmpfs_size(mount, ret); /* left as it is */
    return 0;
}

static int share_shm(struct spec *s, json_t *mount, struct err *err)
{
    AUTO(volume_release) struct volume v = { .tmpfs = true };

    if (shm_bytes(s, mount, &v.bytes, err) < 0)
        return -1;
    v.at = str_dup(SHM);
    volume_add_dir(&v, "", 01777, 0, 0);
    json_object_set_new(mount, "type", json_string("bind"));
    json_object_set_new(mount, "options",
                        json_pack("[s,s,s,s]", "rbind", "nosuid", "noexec", "nodev"));
    volume_write(&v, "", mount);
    /* Removes the annotation: the size is the pod's, but the guest would apply it to this container
     * alone. */
    json_object_del(js_get(spec_json(s), "annotations"), SPEC_SHM_SIZE_KEY);
    return 0;
}

int pods_fit(struct spec *s, enum spec_kind kind, const char *pod_id, struct err *err)
{
    bool shares_ipc = false;
    const char *path = "";
    json_t *mount;
    size_t i;

    json_array_foreach(js_get(spec_json(s), "mounts"), i, mount) volume_clear(mount);
    if (kind == SPEC_STANDALONE)
        return 0;
    if (kind == SPEC_WORKLOAD && spec_namespace(s, "ipc", &path))
        shares_ipc = path[0] != '\0';
    json_array_foreach(js_get(spec_json(s), "mounts"), i, mount)
    {
        if (!str_eq(spec_text(mount, "destination"), "/dev/shm"))
            continue;
        if (!pods_shm(spec_text(mount, "source"), pod_id) &&
            !(shares_ipc && str_eq(spec_text(mount, "type"), "tmpfs")))
            continue;
        if (share_shm(s, mount, err) < 0)
            return -1;
    }
    return 0;
}

/* --- a process that only holds the pod --- */

static bool is_one_of(const char *text, const char *const *list)
{
    while (*list && !str_eq(*list, text))
        list++;
    return *list != NULL;
}

/* All four are new ones, so that their sysctls are the pod's. */
static bool has_namespaces(const struct spec *s)
{
    static const char *const needed[] = { "pid", "ipc", "uts", "mount", NULL };
    static const char *const known[] = { "pid", "ipc", "uts", "mount", "network", "cgroup", NULL };
    const json_t *list = js_get(js_get(spec_json(s), "linux"), "namespaces"), *item;
    const char *path = "";
    size_t i;

    for (const char *const *type = needed; *type; type++)
        if (!spec_namespace(s, *type, &path) || path[0])
            return false;
    json_array_foreach(list, i, item)
    {
        if (!is_one_of(spec_text(item, "type"), known))
            return false;
    }
    return true;
}

static bool in_namespace(const char *sysctl)
{
    static const char *const known[] = { "net.", "kernel.shm", "kernel.msg", "kernel.sem",
                                         "fs.mqueue." };
    bool found = false;

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        found = found || str_starts(sysctl, known[i]);
    return found && !strchr(sysctl, '/');
}

static bool only_usual_mounts(const struct spec *s)
{
    static const char *const known[] = {
        "/proc",         "/dev",       "/dev/pts",         "/dev/mqueue",
        "/sys",          "/dev/shm",   "/sys/fs/cgroup",   "/run",
        "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", NULL
    };
    const json_t *mount;
    size_t i;

    json_array_foreach(js_get(spec_json(s), "mounts"), i, mount)
    {
        const char *to = spec_text(mount, "destination"), *source = spec_text(mount, "source");
        bool of_host = source[0] == '/' && !str_starts(to, "/etc/");

        if (!is_one_of(to, known) || of_host)
            return false;
    }
    return true;
}

bool pods_can_hold(const struct spec *s)
{
    const json_t *root = spec_json(s), *process = js_get(root, "process"), *value;
    const json_t *linux_part = js_get(root, "linux"), *args = js_get(process, "args");
    const char *name;

    if (json_array_size(args) != 1 ||
        !str_eq(json_string_value(json_array_get(args, 0)), "/pause") || spec_terminal(s) ||
        spec_text(js_get(process, "user"), "username")[0] ||
        json_array_size(js_get(linux_part, "devices")) > 0 || js_get(root, "domainname") ||
        !has_namespaces(s) || !only_usual_mounts(s))
        return false;
    json_object_foreach(js_get(linux_part, "sysctl"), name, value)
    {
        if (!json_is_string(value) || !in_namespace(name))
            return false;
    }
    return true;
}

void pods_drop_files(struct spec *s)
{
    json_t *list = js_get(spec_json(s), "mounts");

    for (size_t i = json_array_size(list); i > 0; i--)
        if (!str_eq(spec_text(json_array_get(list, i - 1), "source"), SHM))
            json_array_remove(list, i - 1);
}

uint32_t pods_namespace_pid(const struct spec *s, const char *type)
{
    const char *path = "";
    uint64_t pid = 0;

    if (!spec_namespace(s, type, &path) || !str_starts(path, "/proc/"))
        return 0;
    path += strlen("/proc/");
    AUTO_FREE char *digits = str_ndup(path, strcspn(path, "/"));
    return str_to_u64(digits, UINT32_MAX, &pid) < 0 ? 0 : (uint32_t)pid;
}
