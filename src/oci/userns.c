#include "oci/userns.h"
#include "base/err.h"
#include "base/str.h"

/* "" if there are none. Caller frees; NULL with err. */
static char *read_map(const json_t *obj, const char *key, struct err *err)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };
    const json_t *list = NULL, *item;
    size_t i;

    if (js_arr(obj, key, &list, err) < 0)
        return NULL;
    if (list && json_array_size(list) > IDMAP_LINES_MAX) {
        err_set(err, ERR_INVALID, "%s has %zu lines, at most %d", key, json_array_size(list),
                IDMAP_LINES_MAX);
        return NULL;
    }
    json_array_foreach(list, i, item)
    {
        uint32_t inside = 0, outside = 0, size = 0;

        if (!json_is_object(item) || js_u32(item, "containerID", &inside, err) < 0 ||
            js_u32(item, "hostID", &outside, err) < 0 || js_u32(item, "size", &size, err) < 0) {
            err_set(
                err, ERR_INVALID,
                "invalid %s[%zu]: must be containerID, hostID and size, each at most 4294967295",
                key, i);
            return NULL;
        }
        sbuf_addf(&text, "%s%u:%u:%u", i ? "," : "", inside, outside, size);
    }
    sbuf_adds(&text, "");
    return sbuf_take(&text);
}

/* Both or none. */
static int read_maps(const json_t *obj, struct idmap *ret, struct err *err)
{
    AUTO(idmap_release) struct idmap m = { 0 };

    m.uid = read_map(obj, "uidMappings", err);
    m.gid = m.uid ? read_map(obj, "gidMappings", err) : NULL;
    if (!m.gid)
        return -1;
    if (!m.uid[0] && !m.gid[0])
        return 0;
    if (idmap_check(m.uid, "uidMappings", err) < 0 || idmap_check(m.gid, "gidMappings", err) < 0)
        return -1;
    *ret = m;
    m = (struct idmap){ 0 };
    return 0;
}

int userns_read(const struct spec *s, struct idmap *ret, struct err *err)
{
    AUTO(idmap_release) struct idmap m = { 0 };
    const char *path = "";
    bool own = spec_namespace(s, "user", &path);
    uint32_t id;

    if (read_maps(js_get(spec_json(s), "linux"), &m, err) < 0)
        return err_wrap_because(err, REASON_INVALID_ID_MAPPING, "OCI spec: linux");
    if (own && !m.uid)
        return err_set(err, ERR_INVALID,
                       "OCI spec: linux.namespaces has a user namespace, but linux.uidMappings and "
                       "linux.gidMappings are missing");
    if (!own && m.uid)
        return err_set(err, ERR_INVALID,
                       "OCI spec: linux.uidMappings is set, but linux.namespaces has no user "
                       "namespace");
    if (own && (!idmap_outside(m.uid, 0, &id) || !idmap_outside(m.gid, 0, &id)))
        return err_set(err, ERR_INVALID,
                       "OCI spec: linux.uidMappings and linux.gidMappings must map id 0: files of "
                       "the container's root belong to it");
    *ret = m;
    m = (struct idmap){ 0 };
    return 0;
}

/* True if it was among the options. */
static bool take_option(json_t *mount, const char *word)
{
    json_t *options = js_get(mount, "options"), *o;
    bool found = false;
    size_t i;

    json_array_foreach(options, i, o)
    {
        if (!str_eq(json_string_value(o), word))
            continue;
        json_array_remove(options, i--);
        found = true;
    }
    return found;
}

int userns_take_mount(json_t *mount, const struct idmap *container, struct idmap *ret,
                      struct err *err)
{
    bool asked = take_option(mount, "idmap");

    asked = take_option(mount, "ridmap") || asked;
    if (read_maps(mount, ret, err) < 0)
        return err_wrap_because(err, REASON_INVALID_ID_MAPPING, "mount on %.128s",
                                spec_text(mount, "destination"));
    json_object_del(mount, "uidMappings");
    json_object_del(mount, "gidMappings");
    if (!asked || ret->uid)
        return 0;
    if (!container->uid)
        return err_set(err, ERR_INVALID,
                       "mount on %.128s: option idmap requires uidMappings or a container with a "
                       "user namespace",
                       spec_text(mount, "destination"));
    *ret = idmap_copy(container);
    return 0;
}
