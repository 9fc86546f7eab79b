#include "oci/pods.h"
#include "base/err.h"
#include "base/str.h"
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *obj, const char *key)
{
    const char *value = json_string_value(js_get(obj, key));

    return value ? value : "";
}

/* --- what is refused --- */

static bool names(const struct spec *s, const char *type)
{
    const char *path;

    return spec_namespace(s, type, &path);
}

static int check_namespaces(const struct spec *s, enum spec_kind kind, struct err *err)
{
    const json_t *linux_part = js_get(spec_json(s), "linux");

    if (names(s, "user") || json_array_size(js_get(linux_part, "uidMappings")) > 0)
        return err_set(err, ERR_INVALID,
                       "user namespaces (hostUsers: false) are not supported: root in a container "
                       "is root in its VM only");
    if (kind == SPEC_WORKLOAD || !names(s, "mount")) /* its pod was asked; not one of a client */
        return 0;
    if (!names(s, "network"))
        return err_set(err, ERR_INVALID,
                       "host network (hostNetwork, --net-host) is not possible: the container runs "
                       "in a VM with a network of its own");
    if (kind == SPEC_SANDBOX && !names(s, "pid"))
        return err_set(err, ERR_INVALID,
                       "host PID namespace (hostPID) is not possible: the host's processes are not "
                       "in the pod's VM");
    if (kind == SPEC_SANDBOX && !names(s, "ipc"))
        return err_set(err, ERR_INVALID,
                       "host IPC namespace (hostIPC) is not possible: the host's memory is not in "
                       "the pod's VM");
    return 0;
}

static int check_propagation(const json_t *mount, struct err *err)
{
    const char *source = text_of(mount, "source");
    const json_t *o;
    size_t i;

    if (source[0] != '/') /* of the guest itself */
        return 0;
    json_array_foreach(js_get(mount, "options"), i, o)
    {
        const char *word = json_string_value(o);

        if (str_eq(word, "rshared") || str_eq(word, "shared"))
            return err_set(err, ERR_INVALID,
                           "mount on %.128s: %s propagation (Bidirectional) is not possible: what "
                           "is mounted in the VM cannot appear on the host",
                           text_of(mount, "destination"), word);
    }
    return 0;
}

int pods_check(const struct spec *s, enum spec_kind kind, struct err *err)
{
    const json_t *mount;
    size_t i;

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

void pods_fit(struct spec *s, enum spec_kind kind, const char *pod_id)
{
    bool shares_ipc = false;
    const char *path = "";
    json_t *mount;
    size_t i;

    if (kind == SPEC_STANDALONE)
        return;
    if (kind == SPEC_WORKLOAD && spec_namespace(s, "ipc", &path))
        shares_ipc = path[0] != '\0';
    json_array_foreach(js_get(spec_json(s), "mounts"), i, mount)
    {
        if (!str_eq(text_of(mount, "destination"), "/dev/shm"))
            continue;
        if (!pods_shm(text_of(mount, "source"), pod_id) &&
            !(shares_ipc && str_eq(text_of(mount, "type"), "tmpfs")))
            continue;
        json_object_set_new(mount, "type", json_string("bind"));
        json_object_set_new(mount, "source", json_string("sandbox-tmp://shm"));
        json_object_set_new(mount, "options",
                            json_pack("[s,s,s,s]", "rbind", "nosuid", "noexec", "nodev"));
    }
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
