#include "oci/hooks.h"
#include "base/err.h"
#include "base/json.h"
#include "base/saved.h"
#include "oci/spec.h"
#include <stdlib.h>

#define TIMEOUT_MAX_S 3600

struct hooks {
    json_t *lists; /* by kind */
    json_t *state; /* what is the same for all of them */
};

static const struct {
    const char *kind;
    bool on_host;
} kinds[] = {
    { "prestart", true },        { "createRuntime", true }, { "createContainer", false },
    { "startContainer", false }, { "poststart", true },     { "poststop", true },
};

static int check(const char *kind, size_t i, const json_t *hook, bool run, struct err *err)
{
    const char *path = spec_text(hook, "path");
    const json_t *timeout = js_get(hook, "timeout");
    size_t k = 0;

    while (k < ARRAY_LEN(kinds) && !str_eq(kinds[k].kind, kind))
        k++;
    if (k == ARRAY_LEN(kinds) || !kinds[k].on_host)
        return err_set(err, ERR_INVALID,
                       "hook %.32s[%zu] (%.200s) is unsupported: it runs in the container's "
                       "namespaces, which are in the VM; remove it where it comes from (client, "
                       "CDI specification or NRI plugin)",
                       kind, i, path);
    if (!run)
        return err_set(
            err, ERR_INVALID,
            "hook %s[%zu] (%.200s) is refused by the configuration: set hooks = run in "
            "lcow.conf, or remove it where it comes from (client, CDI specification or NRI plugin)",
            kind, i, path);
    if (path[0] != '/')
        return err_set(err, ERR_INVALID,
                       "invalid hook %s[%zu]: path \"%.200s\" is not an absolute path", kind, i,
                       path);
    if (timeout && (!json_is_integer(timeout) || json_integer_value(timeout) < 1 ||
                    json_integer_value(timeout) > TIMEOUT_MAX_S))
        return err_set(err, ERR_INVALID, "invalid hook %s[%zu] (%.200s): timeout must be 1–%d s",
                       kind, i, path, TIMEOUT_MAX_S);
    return 0;
}

int hooks_read(const struct spec *s, bool run, struct hooks **ret, struct err *err)
{
    json_t *root = spec_json(s), *lists = js_get(root, "hooks"), *list, *hook;
    const json_t *annotations = js_get(root, "annotations");
    const char *kind, *version = spec_text(root, "ociVersion");
    size_t i, n = 0;

    json_object_foreach(lists, kind, list){ json_array_foreach(list, i, hook){
        if (check(kind, i, hook, run, err) < 0) return err_blame(err, REASON_UNSUPPORTED);
    n++;
}
}
*ret = NULL;
if (n == 0)
    return 0;
*ret = mem_new(struct hooks);
**ret = (struct hooks){ json_incref(lists), json_object() };
json_object_set_new((*ret)->state, "ociVersion", json_string(version[0] ? version : "1.0.2"));
if (annotations) /* a copy, because the spec's own are removed */
    json_object_set_new((*ret)->state, "annotations", json_deep_copy(annotations));
return 0;
}

void hooks_free(struct hooks *h)
{
    if (!h)
        return;
    json_decref(h->lists);
    json_decref(h->state);
    free(h);
}

static void add_all(struct strv *to, const json_t *list)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (json_is_string(item))
            strv_add(to, json_string_value(item));
    }
}

bool hooks_get(const struct hooks *h, const char *kind, size_t i, struct hook *ret)
{
    const json_t *hook = h ? json_array_get(js_get(h->lists, kind), i) : NULL;

    if (!hook)
        return false;
    *ret = (struct hook){ .path = spec_text(hook, "path") };
    ret->timeout_s = (uint32_t)json_integer_value(js_get(hook, "timeout"));
    add_all(&ret->argv, js_get(hook, "args"));
    if (ret->argv.n == 0)
        strv_add(&ret->argv, ret->path);
    add_all(&ret->env, js_get(hook, "env"));
    return true;
}

void hook_release(struct hook *h)
{
    strv_release(&h->argv);
    strv_release(&h->env);
}

char *hooks_state(const struct hooks *h, const char *id, const char *bundle, const char *status,
                  uint32_t pid)
{
    AUTO(json_decref) json_t *state = json_copy(h->state);

    json_object_set_new(state, "id", json_string(id));
    json_object_set_new(state, "bundle", json_string(bundle));
    json_object_set_new(state, "status", json_string(status));
    if (pid)
        json_object_set_new(state, "pid", json_integer(pid));
    return js_text(state, 0);
}

void hooks_saved(struct saved *s, uint32_t field, struct hooks **h)
{
    if ((!saved_reads(s) && !*h) || !saved_open(s, field))
        return;
    if (saved_reads(s))
        *h = mem_new(struct hooks);
    json_saved(s, 1, &(*h)->lists);
    json_saved(s, 2, &(*h)->state);
    saved_close(s);
    if (!(*h)->lists || !(*h)->state)
        saved_fail(s, "hooks without a list");
}
