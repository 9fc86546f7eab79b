/* container_network.c - which network namespace a container gets. */
#include "base/err.h"
#include "base/str.h"
#include "guest/net/nets.h"
#include "guest/runtime/container_priv.h"
#include <stdlib.h>
#include <string.h>

/* Where the original has it: windows.network.networkNamespace. "" if the host names none. */
static const char *named(const struct spec *spec)
{
    const char *name = json_string_value(
        js_get(js_get(js_get(spec_json(spec), "windows"), "network"), "networkNamespace"));

    return name ? name : "";
}

static void set_path(const struct spec *spec, const char *path)
{
    json_t *linux_part = js_get(spec_json(spec), "linux"), *item;
    json_t *list = js_get(linux_part, "namespaces");
    size_t i;

    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(linux_part, "namespaces", list);
    }
    json_array_foreach(list, i, item)
    {
        if (str_eq(json_string_value(js_get(item, "type")), "network")) {
            json_object_set_new(item, "path", json_string(path));
            return;
        }
    }
    json_array_append_new(list, json_pack("{s:s,s:s}", "type", "network", "path", path));
}

int container_join_network(struct ctx *ctx, struct container *c, const struct spec *spec,
                           struct err *err)
{
    struct nets *nets = c->table->opts.nets;
    AUTO_FREE char *path = NULL;

    if (!nets || !named(spec)[0])
        return 0;
    if (nets_hold(ctx, nets, named(spec), &path, err) < 0)
        return -1;
    c->network = str_dup(named(spec));
    set_path(spec, path);
    return 0;
}

void container_dns(const struct container *c, char **ret_search, char **ret_servers)
{
    if (c->network) {
        nets_dns(c->table->opts.nets, c->network, ret_search, ret_servers);
        return;
    }
    *ret_search = str_dup("");
    *ret_servers = str_dup("");
}

void container_leave_network(struct container *c)
{
    if (c->network)
        nets_release(c->table->opts.nets, c->network);
    free(TAKE_PTR(c->network));
}
