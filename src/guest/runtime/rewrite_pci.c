/* rewrite_pci.c - windows.devices: the PCI devices of a container, whose nodes it gets. Where the
 * original has them, on both sides (gcs-protocol.md §4.10). */
#include "base/err.h"
#include "guest/runtime/rewrite.h"
#include "guest/storage/path.h"

#include <errno.h>

struct lists {
    json_t *devices, *rules;
};

static json_t *list_of(json_t *obj, const char *key)
{
    json_t *list = js_get(obj, key);

    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(obj, key, list);
    }
    return list;
}

static void add_node(void *arg, const char *path, const struct rewrite_device *d)
{
    const struct lists *l = arg;
    const char type[] = { d->type, '\0' };
    struct err ignored = ERR_INIT;

    if (path_check(path, "node", &ignored) < 0)
        return; /* no name of the kernel's */
    json_array_append_new(
        l->devices, json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:i}", "path", path, "type", type, "major",
                              (json_int_t)d->major, "minor", (json_int_t)d->minor, "uid",
                              (json_int_t)d->uid, "gid", (json_int_t)d->gid, "fileMode", 0660));
    json_array_append_new(l->rules, json_pack("{s:b,s:s,s:I,s:I,s:s}", "allow", 1, "type", type,
                                              "major", (json_int_t)d->major, "minor",
                                              (json_int_t)d->minor, "access", "rwm"));
}

static bool is_type(const char *type)
{
    return str_eq(type, "vpci-instance-id") || str_eq(type, "vpci") || str_eq(type, "gpu");
}

int rewrite_pci(struct spec *spec, const struct rewrite_env *env, struct err *err)
{
    json_t *devices = js_get(js_get(spec_json(spec), "windows"), "devices"), *item;
    json_t *os = js_get(spec_json(spec), "linux");
    struct lists lists;
    size_t i;

    if (json_array_size(devices) == 0)
        return 0;
    lists = (struct lists){ list_of(os, "devices"), list_of(js_get(os, "resources"), "devices") };
    json_array_foreach(devices, i, item)
    {
        const char *id = json_string_value(js_get(item, "id"));
        const char *type = json_string_value(js_get(item, "idType"));

        if (!id || !is_type(type))
            return err_set(err, ERR_INVALID,
                           "windows.devices[%zu] has no id, or its idType \"%.64s\""
                           " is not vpci-instance-id, vpci or gpu",
                           i, type ? type : "");
        int r = env->each_node ? env->each_node(env->arg, id, add_node, &lists) : -ENOSYS;
        if (r == -ENXIO)
            return err_set(err, ERR_NOT_FOUND, "the VM has no PCI device \"%.64s\"", id);
        if (r < 0)
            return err_sys(err, -r, "PCI device \"%.64s\" in the VM", id);
    }
    return 0;
}
