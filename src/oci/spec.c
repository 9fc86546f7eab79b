#include "oci/spec.h"
#include "base/err.h"
#include <stdlib.h>
#include <string.h>

#define OPTIONAL "lcow.optional"
#define SYMLINK "lcow.link"
#define READ_ONLY "lcow.readonly"

void device_clear(json_t *device)
{
    json_object_del(device, OPTIONAL);
    json_object_del(device, SYMLINK);
    json_object_del(device, READ_ONLY);
}

void device_set_optional(json_t *device)
{
    json_object_set_new(device, OPTIONAL, json_true());
}

bool device_is_optional(const json_t *device)
{
    return json_is_true(json_object_get(device, OPTIONAL));
}

void device_set_symlink(json_t *device, const char *path, bool read_only)
{
    json_object_set_new(device, SYMLINK, json_string(path));
    json_object_set_new(device, READ_ONLY, json_boolean(read_only));
}

const char *device_symlink(const json_t *device, bool *ret_read_only)
{
    *ret_read_only = json_is_true(json_object_get(device, READ_ONLY));
    return json_string_value(json_object_get(device, SYMLINK));
}

struct spec {
    json_t *root;
};

/* --- the check: what we and the guest rely on --- */

static int need_object(const json_t *root, const char *key, const json_t **ret, struct err *err)
{
    *ret = NULL;
    if (js_obj(root, key, ret, err) < 0)
        return err_wrap(err, "OCI spec");
    if (!*ret)
        return err_set(err, ERR_INVALID, "OCI spec: %s is missing", key);
    return 0;
}

/* A list of strings; absent is fine and gives *ret_n = 0. */
static int check_strings(const json_t *obj, const char *where, const char *key, size_t *ret_n,
                         struct err *err)
{
    const json_t *list = NULL, *item;
    size_t i;

    *ret_n = 0;
    if (js_arr(obj, key, &list, err) < 0)
        return err_wrap(err, "OCI spec: %s", where);
    json_array_foreach(list, i, item)
    {
        if (!json_is_string(item))
            return err_set(err, ERR_INVALID, "OCI spec: %s.%s[%zu] is not a string", where, key, i);
    }
    *ret_n = list ? json_array_size(list) : 0;
    return 0;
}

static int check_process(const json_t *process, const char *where, struct err *err)
{
    const char *cwd = "";
    bool terminal;
    size_t n;

    if (check_strings(process, where, "args", &n, err) < 0)
        return -1;
    if (n == 0)
        return err_set(err, ERR_INVALID, "OCI spec: %s.args is empty: nothing to run", where);
    if (check_strings(process, where, "env", &n, err) < 0)
        return -1;
    if (js_str(process, "cwd", &cwd, err) < 0 || js_bool(process, "terminal", &terminal, err) < 0)
        return err_wrap(err, "OCI spec: %s", where);
    if (cwd[0] != '/')
        return err_set(err, ERR_INVALID, "OCI spec: %s.cwd \"%s\" is not an absolute path", where,
                       cwd);
    return 0;
}

static int check_mounts(const json_t *root, struct err *err)
{
    const json_t *mounts = NULL, *m;
    size_t i, n;

    if (js_arr(root, "mounts", &mounts, err) < 0)
        return err_wrap(err, "OCI spec");
    if (mounts && json_array_size(mounts) > SPEC_MAX_MOUNTS)
        return err_set(err, ERR_INVALID, "OCI spec: %zu mounts, at most %d",
                       json_array_size(mounts), SPEC_MAX_MOUNTS);
    json_array_foreach(mounts, i, m)
    {
        const char *destination = "", *type = "", *source = "";

        if (!json_is_object(m))
            return err_set(err, ERR_INVALID, "OCI spec: mounts[%zu] is not an object", i);
        if (js_str(m, "destination", &destination, err) < 0 || js_str(m, "type", &type, err) < 0 ||
            js_str(m, "source", &source, err) < 0 ||
            check_strings(m, "mounts[]", "options", &n, err) < 0)
            return err_wrap(err, "OCI spec: mounts[%zu]", i);
        if (!destination[0])
            return err_set(err, ERR_INVALID, "OCI spec: mounts[%zu] has no destination", i);
    }
    return 0;
}

static int check_annotations(const json_t *root, struct err *err)
{
    const json_t *annotations = NULL;
    const char *key;
    json_t *value;

    if (js_obj(root, "annotations", &annotations, err) < 0)
        return err_wrap(err, "OCI spec");
    json_object_foreach((json_t *)annotations, key, value)
    {
        if (!json_is_string(value))
            return err_set(err, ERR_INVALID, "OCI spec: annotation \"%.100s\" is not a string",
                           key);
    }
    return 0;
}

static int check_namespaces(const json_t *linux_part, struct err *err)
{
    const json_t *list = NULL, *item;
    size_t i;

    if (js_arr(linux_part, "namespaces", &list, err) < 0)
        return err_wrap(err, "OCI spec: linux");
    json_array_foreach(list, i, item)
    {
        const char *type = "", *path = "";

        if (!json_is_object(item) || js_str(item, "type", &type, err) < 0 ||
            js_str(item, "path", &path, err) < 0 || !type[0])
            return err_set(err, ERR_INVALID, "OCI spec: linux.namespaces[%zu] is malformed", i);
    }
    return 0;
}

static int check(json_t *root, struct err *err)
{
    const json_t *linux_part, *process, *root_part, *resources = NULL;
    const char *path = "";

    if (need_object(root, "linux", &linux_part, err) < 0 ||
        need_object(root, "process", &process, err) < 0 ||
        need_object(root, "root", &root_part, err) < 0)
        return -1;
    if (js_str(root_part, "path", &path, err) < 0)
        return err_wrap(err, "OCI spec: root");
    if (js_obj(linux_part, "resources", &resources, err) < 0)
        return err_wrap(err, "OCI spec: linux");
    if (!resources && json_object_set_new((json_t *)linux_part, "resources", json_object()) < 0)
        return err_set(err, ERR_EXHAUSTED, "OCI spec: no memory");
    if (check_process(process, "process", err) < 0 || check_mounts(root, err) < 0 ||
        check_annotations(root, err) < 0 || check_namespaces(linux_part, err) < 0)
        return -1;
    return 0;
}

int spec_from_json(json_t *root, struct spec **ret, struct err *err)
{
    if (!json_is_object(root))
        return err_set(err, ERR_INVALID, "OCI spec: not an object");
    if (check(root, err) < 0)
        return err_blame(err, REASON_INVALID_SPEC);
    *ret = mem_new(struct spec);
    (*ret)->root = json_incref(root);
    return 0;
}

int spec_parse(const char *text, size_t len, struct spec **ret, struct err *err)
{
    AUTO(json_decref) json_t *root = NULL;

    if (js_parse(text, len, SPEC_MAX_BYTES, &root, err) < 0)
        return err_wrap(err, "OCI spec");
    return spec_from_json(root, ret, err);
}

void spec_free(struct spec *s)
{
    if (!s)
        return;
    json_decref(s->root);
    free(s);
}

struct spec *spec_copy(const struct spec *s)
{
    struct spec *copy = mem_new(struct spec);

    copy->root = json_deep_copy(s->root);
    return copy;
}

/* --- questions --- */

json_t *spec_json(const struct spec *s)
{
    return s->root;
}

static const json_t *part(const struct spec *s, const char *key)
{
    return js_get(s->root, key);
}

const char *spec_text(const json_t *obj, const char *key)
{
    const char *value = json_string_value(js_get(obj, key));

    return value ? value : "";
}

const char *spec_annotation(const struct spec *s, const char *key)
{
    const json_t *annotations = part(s, "annotations");

    return annotations ? json_string_value(json_object_get(annotations, key)) : NULL;
}

void spec_annotation_default(struct spec *s, const char *key, const char *value)
{
    json_t *annotations = js_get(s->root, "annotations");

    if (spec_annotation(s, key))
        return;
    if (!annotations || json_is_null(annotations)) {
        annotations = json_object();
        json_object_set_new(s->root, "annotations", annotations);
    }
    json_object_set_new(annotations, key, json_string(value));
}

void spec_annotations_keep(struct spec *s, bool (*keep)(const void *arg, const char *key),
                           const void *arg)
{
    json_t *annotations = js_get(s->root, "annotations"), *value;
    const char *key;
    void *next;

    json_object_foreach_safe(annotations, next, key, value)
    {
        if (!keep(arg, key))
            json_object_del(annotations, key);
    }
}

int spec_kind(const struct spec *s, const char *own_id, enum spec_kind *ret, const char **ret_pod,
              struct err *err)
{
    const char *type = spec_annotation(s, SPEC_TYPE_KEY);
    const char *sandbox = spec_annotation(s, SPEC_SANDBOX_KEY);
    bool has_type = type && type[0], has_sandbox = sandbox && sandbox[0];

    if (!has_type && !has_sandbox) {
        *ret = SPEC_STANDALONE;
        *ret_pod = own_id;
        return 0;
    }
    if (has_type != has_sandbox)
        return err_because(err, REASON_INVALID_ANNOTATION, ERR_INVALID,
                           "invalid annotations: %s is set, but %s is not",
                           has_type ? SPEC_TYPE_KEY : SPEC_SANDBOX_KEY,
                           has_type ? SPEC_SANDBOX_KEY : SPEC_TYPE_KEY);
    if (strcmp(type, "sandbox") == 0)
        *ret = SPEC_SANDBOX;
    else if (strcmp(type, "container") == 0)
        *ret = SPEC_WORKLOAD;
    else
        return err_because(
            err, REASON_INVALID_ANNOTATION, ERR_INVALID,
            "invalid annotation %s = \"%.64s\": must be \"sandbox\" or \"container\"",
            SPEC_TYPE_KEY, type);
    *ret_pod = sandbox;
    return 0;
}

bool spec_is_cri(const struct spec *s)
{
    const char *type = spec_annotation(s, SPEC_TYPE_KEY);

    return type && type[0];
}

bool spec_terminal(const struct spec *s)
{
    return json_is_true(js_get(part(s, "process"), "terminal"));
}

bool spec_root_readonly(const struct spec *s)
{
    return json_is_true(js_get(part(s, "root"), "readonly"));
}

const char *spec_root_path(const struct spec *s)
{
    return spec_text(part(s, "root"), "path");
}

const char *spec_cgroups_path(const struct spec *s)
{
    return spec_text(part(s, "linux"), "cgroupsPath");
}

int spec_oom_score_adj(const struct spec *s, bool *ret_set)
{
    int32_t value = 0;
    struct err ignored = ERR_INIT;
    const json_t *item = js_get(part(s, "process"), "oomScoreAdj");

    *ret_set = item && json_is_integer(item);
    if (*ret_set && js_i32(part(s, "process"), "oomScoreAdj", &value, &ignored) < 0)
        *ret_set = false;
    return value;
}

bool spec_namespace(const struct spec *s, const char *type, const char **ret_path)
{
    const json_t *list = js_get(part(s, "linux"), "namespaces"), *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (strcmp(spec_text(item, "type"), type) == 0) {
            *ret_path = spec_text(item, "path");
            return true;
        }
    }
    return false;
}

/* The kubelet's limits for all containers of the pod together, which containerd sends with the
 * pause container. The pause container's own limits do not include them. A value that is 0 or not a
 * number is ignored. */
static bool pods_number(const struct spec *s, const char *what, uint64_t *ret)
{
    AUTO_FREE char *key = str_format("io.kubernetes.cri.sandbox-%s", what);
    const char *text = spec_annotation(s, key);
    uint64_t value;

    if (!text || str_to_u64(text, INT64_MAX, &value) < 0 || value == 0)
        return false;
    *ret = value;
    return true;
}

static void pods_limits(const struct spec *s, struct spec_limits *l)
{
    uint64_t quota;

    if (!str_eq(spec_annotation(s, SPEC_TYPE_KEY), "sandbox"))
        return;
    pods_number(s, "memory", &l->memory_bytes);
    pods_number(s, "cpu-period", &l->cpu_period);
    pods_number(s, "cpu-shares", &l->cpu_shares);
    if (pods_number(s, "cpu-quota", &quota))
        l->cpu_quota = (int64_t)quota;
}

int spec_limits_update(const json_t *resources, struct spec_limits *l, struct err *err)
{
    const json_t *memory = NULL, *cpu = NULL;
    struct spec_limits now = *l;
    int64_t limit = (int64_t)now.memory_bytes;

    if (js_obj(resources, "memory", &memory, err) < 0 || js_obj(resources, "cpu", &cpu, err) < 0)
        return -1;
    if (memory && js_i64(memory, "limit", &limit, err) < 0)
        return err_wrap(err, "linux.resources.memory");
    if (cpu && (js_u64(cpu, "period", &now.cpu_period, err) < 0 ||
                js_i64(cpu, "quota", &now.cpu_quota, err) < 0 ||
                js_u64(cpu, "shares", &now.cpu_shares, err) < 0))
        return err_wrap(err, "linux.resources.cpu");
    now.memory_bytes = limit > 0 ? (uint64_t)limit : 0; /* -1: unlimited */
    *l = now;
    return 0;
}

int spec_limits(const struct spec *s, struct spec_limits *ret, struct err *err)
{
    const json_t *resources = js_get(part(s, "linux"), "resources");
    struct spec_limits l = { 0 };

    if (spec_limits_update(resources, &l, err) < 0)
        return err_wrap(err, "OCI spec");
    pods_limits(s, &l);
    *ret = l;
    return 0;
}

int spec_process_check(const json_t *process, struct err *err)
{
    if (!json_is_object(process))
        return err_set(err, ERR_INVALID, "invalid process of the exec: not an object");
    return check_process(process, "process", err);
}

int spec_process_parse(const char *text, size_t len, bool terminal, json_t **ret, struct err *err)
{
    AUTO(json_decref) json_t *process = NULL;

    if (!text || len == 0)
        return err_set(err, ERR_INVALID, "invalid exec: its process spec is missing");
    if (js_parse(text, len, SPEC_MAX_BYTES, &process, err) < 0)
        return err_wrap(err, "process of the exec");
    if (spec_process_check(process, err) < 0)
        return -1;
    json_object_set_new(process, "terminal", json_boolean(terminal));
    *ret = TAKE_PTR(process);
    return 0;
}
