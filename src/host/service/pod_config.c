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

static json_t *above_zero(int64_t n)
{
    return n > 0 ? json_integer(n) : NULL;
}

static json_t *linux_of(const Cri__LinuxPodSandboxConfig *l, const char *id)
{
    static const Cri__LinuxContainerResources no_limits = CRI__LINUX_CONTAINER_RESOURCES__INIT;
    const Cri__LinuxContainerResources *r = l && l->resources ? l->resources : &no_limits;
    AUTO_FREE char *path = l && l->cgroup_parent[0] ? cgroups_path(l->cgroup_parent, id) : NULL;
    json_t *sysctl = json_object();

    for (size_t i = 0; l && i < l->n_sysctls; i++)
        json_object_set_new(sysctl, l->sysctls[i]->key, json_string(l->sysctls[i]->value));
    return json_pack("{ss*, s{s{so*}, s{so*, so*, so*}}, so}", "cgroupsPath", path, "resources",
                     "memory", "limit", above_zero(r->memory_limit_in_bytes), "cpu", "period",
                     above_zero(r->cpu_period), "quota", above_zero(r->cpu_quota), "shares",
                     above_zero(r->cpu_shares), "sysctl", sysctl);
}

static json_t *process_of(const Cri__LinuxSandboxSecurityContext *sc)
{
    if (!sc || !sc->run_as_user)
        return NULL;
    return json_pack("{s{sI, so*}}", "user", "uid", (json_int_t)sc->run_as_user->value, "gid",
                     sc->run_as_group ? json_integer(sc->run_as_group->value) : NULL);
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
static json_t *resolv_conf_of(const Cri__DNSConfig *dns)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    add_words(&out, "search", (const char *const *)dns->searches, dns->n_searches);
    for (size_t i = 0; i < dns->n_servers; i++)
        sbuf_addf(&out, "nameserver %s\n", dns->servers[i]);
    add_words(&out, "options", (const char *const *)dns->options, dns->n_options);
    return out.len ? json_string(out.data) : NULL;
}

static json_t *annotations_of(const Cri__PodSandboxConfig *c)
{
    const Cri__PodSandboxMetadata *m = c->metadata;
    json_t *all = json_object();

    for (size_t i = 0; i < c->n_annotations; i++)
        if (!str_eq(c->annotations[i]->key, POD_RESOLV_CONF))
            json_object_set_new(all, c->annotations[i]->key, json_string(c->annotations[i]->value));

    AUTO(json_decref)
    json_t *ours =
        json_pack("{so*, ss*, ss*, ss*, ss*}", POD_RESOLV_CONF,
                  c->dns_config ? resolv_conf_of(c->dns_config) : NULL, CRI "sandbox-name",
                  m ? m->name : NULL, CRI "sandbox-namespace", m ? m->namespace_ : NULL,
                  CRI "sandbox-uid", m ? m->uid : NULL, CRI "sandbox-log-directory",
                  c->log_directory[0] ? c->log_directory : NULL);

    json_object_update(all, ours);
    return all;
}

static char *spec_of(const Cri__PodSandboxConfig *c, const char *id)
{
    const Cri__LinuxPodSandboxConfig *l = c->linux_config;
    AUTO(json_decref)
    json_t *spec = json_pack("{ss*, so, so*, so}", "hostname", c->hostname[0] ? c->hostname : NULL,
                             "annotations", annotations_of(c), "process",
                             process_of(l ? l->security_context : NULL), "linux", linux_of(l, id));

    return js_text(spec, 0);
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
