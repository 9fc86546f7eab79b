#include "host/service/pod_config.h"
#include "api/cri.pb-c.h"
#include "api/sandbox.pb-c.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "oci/pods.h"
#include "proto/pb.h"
#include <stdlib.h>
#include <string.h>

#define CRI "io.kubernetes.cri."

void pod_config_release(struct pod_config *s)
{
    free(s->json);
    free(s->dns_servers);
    free(s->dns_search);
    pb_free(s->config);
    *s = (struct pod_config){ 0 };
}

/* As containerd names a sandbox's cgroup (podsandbox): below its parent, or as systemd has it. */
static char *cgroups_path(const char *parent, const char *id)
{
    const char *slash = strrchr(parent, '/');

    if (str_ends(parent, ".slice"))
        return str_format("%s:cri-containerd:%s", slash ? slash + 1 : parent, id);
    return str_format("%s%s%s", parent, str_ends(parent, "/") ? "" : "/", id);
}

static int check_namespaces(const Cri__LinuxSandboxSecurityContext *sc, const char *netns,
                            struct err *err)
{
    const Cri__NamespaceOption *o = sc ? sc->namespace_options : NULL;

    if (!o)
        return 0;
    if (o->network == CRI__NAMESPACE_MODE__NODE && !netns[0])
        return pods_refuse("network", err);
    if (o->pid == CRI__NAMESPACE_MODE__NODE)
        return pods_refuse("pid", err);
    if (o->ipc == CRI__NAMESPACE_MODE__NODE)
        return pods_refuse("ipc", err);
    if (o->userns_options && o->userns_options->mode == CRI__NAMESPACE_MODE__POD)
        return pods_refuse("user", err);
    return 0;
}

static void put_resources(struct jsw *w, const Cri__LinuxContainerResources *r)
{
    jsw_obj(w, "resources");
    if (r && r->memory_limit_in_bytes > 0) {
        jsw_obj(w, "memory");
        jsw_i64(w, "limit", r->memory_limit_in_bytes);
        jsw_end_obj(w);
    }
    if (r && (r->cpu_period > 0 || r->cpu_quota > 0 || r->cpu_shares > 0)) {
        jsw_obj(w, "cpu");
        if (r->cpu_period > 0)
            jsw_i64(w, "period", r->cpu_period);
        if (r->cpu_quota > 0)
            jsw_i64(w, "quota", r->cpu_quota);
        if (r->cpu_shares > 0)
            jsw_i64(w, "shares", r->cpu_shares);
        jsw_end_obj(w);
    }
    jsw_end_obj(w);
}

static void put_linux(struct jsw *w, const Cri__LinuxPodSandboxConfig *l, const char *id)
{
    jsw_obj(w, "linux");
    if (l && l->cgroup_parent[0]) {
        AUTO_FREE char *path = cgroups_path(l->cgroup_parent, id);

        jsw_str(w, "cgroupsPath", path);
    }
    put_resources(w, l ? l->resources : NULL);
    jsw_obj(w, "sysctl");
    for (size_t i = 0; l && i < l->n_sysctls; i++)
        jsw_str(w, l->sysctls[i]->key, l->sysctls[i]->value);
    jsw_end_obj(w);
    jsw_end_obj(w);
}

static void put_user(struct jsw *w, const Cri__LinuxSandboxSecurityContext *sc)
{
    if (!sc || !sc->run_as_user)
        return;
    jsw_obj(w, "process");
    jsw_obj(w, "user");
    jsw_i64(w, "uid", sc->run_as_user->value);
    if (sc->run_as_group)
        jsw_i64(w, "gid", sc->run_as_group->value);
    jsw_end_obj(w);
    jsw_end_obj(w);
}

static void add_words(struct sbuf *out, const char *key, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sbuf_addf(out, "%s %s", i ? "" : key, words[i]);
    if (n)
        sbuf_addc(out, '\n');
}

/* As containerd writes the file of a pod that has a pause container. The bridge's messages know
 * servers and domains only, and come with an interface, of which a pod may have none. */
static void put_resolv_conf(struct jsw *w, const Cri__DNSConfig *dns)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    add_words(&out, "search", (const char *const *)dns->searches, dns->n_searches);
    for (size_t i = 0; i < dns->n_servers; i++)
        sbuf_addf(&out, "nameserver %s\n", dns->servers[i]);
    add_words(&out, "options", (const char *const *)dns->options, dns->n_options);
    if (out.len)
        jsw_str(w, POD_RESOLV_CONF, out.data);
}

static void put_annotations(struct jsw *w, const Cri__PodSandboxConfig *c)
{
    jsw_obj(w, "annotations");
    for (size_t i = 0; i < c->n_annotations; i++)
        if (!str_eq(c->annotations[i]->key, POD_RESOLV_CONF))
            jsw_str(w, c->annotations[i]->key, c->annotations[i]->value);
    if (c->dns_config)
        put_resolv_conf(w, c->dns_config);
    if (c->metadata) {
        jsw_str(w, CRI "sandbox-name", c->metadata->name);
        jsw_str(w, CRI "sandbox-namespace", c->metadata->namespace_);
        jsw_str(w, CRI "sandbox-uid", c->metadata->uid);
    }
    if (c->log_directory[0])
        jsw_str(w, CRI "sandbox-log-directory", c->log_directory);
    jsw_end_obj(w);
}

static char *spec_of(const Cri__PodSandboxConfig *c, const char *id)
{
    const Cri__LinuxPodSandboxConfig *l = c->linux_config;
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    if (c->hostname[0])
        jsw_str(&w, "hostname", c->hostname);
    put_annotations(&w, c);
    put_user(&w, l ? l->security_context : NULL);
    put_linux(&w, l, id);
    jsw_end_obj(&w);
    return jsw_take(&w, NULL);
}

static const char **words_of(const char *const *words, size_t n)
{
    const char **list = mem_zalloc((n + 1) * sizeof(*list));

    for (size_t i = 0; i < n; i++)
        list[i] = words[i];
    return list;
}

int pod_config_read(const CreateSandboxRequest *req, struct pod_config *ret, struct err *err)
{
    const char *type = pb_any_type(req->options);
    Cri__PodSandboxConfig *c = NULL;
    const Cri__LinuxPodSandboxConfig *l;

    if (!type[0] || str_eq(type, "google.protobuf.Empty"))
        return 0;
    if (!str_eq(type, "runtime.v1.PodSandboxConfig"))
        return err_set(err, ERR_INVALID, "options are \"%.100s\": only runtime.v1.PodSandboxConfig",
                       type);
    if (pb_any_unpack(req->options, &cri__pod_sandbox_config__descriptor, (void **)&c) < 0)
        return err_set(err, ERR_INVALID, "the PodSandboxConfig cannot be read");
    ret->config = c;
    l = c->linux_config;
    if (check_namespaces(l ? l->security_context : NULL, req->netns_path, err) < 0)
        return -1;
    ret->json = spec_of(c, req->sandbox_id);
    if (c->dns_config) {
        ret->dns_servers = words_of(c->dns_config->servers, c->dns_config->n_servers);
        ret->dns_search = words_of(c->dns_config->searches, c->dns_config->n_searches);
    }
    return 0;
}
