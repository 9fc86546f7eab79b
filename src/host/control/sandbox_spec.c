/* sandbox_spec.c - the document of a pod's own container, from the little that its client says. */
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "host/control/sandbox_priv.h"
#include "host/files/tree.h"
#include "oci/spec.h"
#include <string.h>

#define CRI "io.kubernetes.cri."

static json_t *object_at(json_t *obj, const char *key)
{
    json_t *there = js_get(obj, key);

    if (json_is_object(there))
        return there;
    json_object_set_new(obj, key, json_object());
    return js_get(obj, key);
}

static json_t *mount_of(const char *destination, const char *type, const char *options)
{
    json_t *list = json_array();
    AUTO_FREE char *words = str_dup(options);

    for (char *save = NULL, *w = strtok_r(words, ",", &save); w; w = strtok_r(NULL, ",", &save))
        json_array_append_new(list, json_string(w));
    return json_pack("{ss,ss,ss,so}", "destination", destination, "type", type, "source", type,
                     "options", list);
}

/* Its path, "" if it is to be a new one; NULL: it is not there. */
static const char *find_namespace(const json_t *linux_part, const char *type)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(js_get(linux_part, "namespaces"), i, entry)
    {
        if (str_eq(spec_text(entry, "type"), type))
            return spec_text(entry, "path");
    }
    return NULL;
}

/* What the client says about its network is in the request; the other namespaces are new ones. */
static void put_namespaces(json_t *linux_part, const char *netns)
{
    static const char *const types[] = { "user", "pid", "ipc", "uts", "mount", "network" };
    json_t *list = json_array();

    for (size_t i = find_namespace(linux_part, "user") ? 0 : 1; i < ARRAY_LEN(types); i++) {
        json_t *entry = json_pack("{ss}", "type", types[i]);

        if (str_eq(types[i], "network") && netns[0])
            json_object_set_new(entry, "path", json_string(netns));
        json_array_append_new(list, entry);
    }
    json_object_set_new(linux_part, "namespaces", list);
}

/* Only what a pod has; the rest of it would be a container's. */
static void keep_known(json_t *obj, const char *const *known)
{
    const char *key;
    json_t *value;
    void *next;

    json_object_foreach_safe(obj, next, key, value)
    {
        bool keep = false;

        for (const char *const *k = known; *k; k++)
            keep = keep || str_eq(*k, key);
        if (!keep)
            json_object_del(obj, key);
    }
}

static void put_process(json_t *process)
{
    static const char *const known[] = { "user", "oomScoreAdj", "rlimits", NULL };

    keep_known(process, known);
    json_object_set_new(process, "args", json_pack("[s]", TREE_PAUSE_PROGRAM));
    json_object_set_new(process, "cwd", json_string("/"));
    json_object_set_new(process, "noNewPrivileges", json_true());
}

int sandbox_spec_parse(const struct sandbox_create *c, const char *text, size_t len,
                       struct spec **ret, struct err *err)
{
    static const char *const known[] = { "hostname", "annotations", "hooks",
                                         "linux",    "process",     NULL };
    static const char *const of_linux[] = { "cgroupsPath", "resources",   "sysctl", "namespaces",
                                            "uidMappings", "gidMappings", NULL };
    AUTO(json_decref) json_t *root = NULL;
    json_t *linux_part, *annotations;
    const char *netns;

    if (js_parse(text, len, SPEC_MAX_BYTES, &root, err) < 0)
        return -1;
    if (!json_is_object(root))
        return err_set(err, ERR_INVALID, "the sandbox's spec is not a JSON object");
    keep_known(root, known);
    linux_part = object_at(root, "linux");
    annotations = object_at(root, "annotations");
    keep_known(linux_part, of_linux);
    put_process(object_at(root, "process"));
    netns = find_namespace(linux_part, "network");
    put_namespaces(linux_part, c->netns && c->netns[0] ? c->netns : netns ? netns : "");
    json_object_set_new(annotations, CRI "container-type", json_string("sandbox"));
    json_object_set_new(annotations, CRI "sandbox-id", json_string(c->id));
    json_object_set_new(root, "ociVersion", json_string("1.0.2"));
    json_object_set_new(root, "root", json_pack("{sssb}", "path", "rootfs", "readonly", 1));
    json_object_set_new(
        root, "mounts",
        json_pack("[o,o,o]", mount_of("/proc", "proc", "nosuid,noexec,nodev"),
                  mount_of("/dev", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
                  mount_of("/dev/mqueue", "mqueue", "nosuid,noexec,nodev")));
    return spec_from_json(root, ret, err);
}
