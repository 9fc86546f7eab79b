/* sandbox.c - containerd's Sandbox service (docs/reference/containerd-contract.md §4). Status,
 * Platform and Wait are answered from memory, so that they work even if the guest does not answer.
 */
#include "host/control/sandbox.h"
#include "api/cri.pb-c.h"
#include "api/sandbox.pb-c.h"
#include "base/clock.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/control/inspect.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service_priv.h"
#include "oci/pods.h"
#include "proto/pb.h"
#include <stdlib.h>
#include <string.h>

#define CRI "io.kubernetes.cri."

/* Limits of calls that continue after their client disconnects; waits inside have shorter limits.
 */
#define START_LIMIT (600 * NS_PER_S)
#define STOP_LIMIT (120 * NS_PER_S) /* beyond the caller's timeout */
#define STOP_TIMEOUT_MAX_S 86400u

#if defined(__x86_64__)
#define ARCHITECTURE "amd64"
#elif defined(__aarch64__)
#define ARCHITECTURE "arm64"
#else
#error "Go's name of this architecture is missing"
#endif

/* --- CRI's PodSandboxConfig, converted to the parts of an OCI spec that control/sandbox.h needs
 * ---
 */

void pod_config_release(struct pod_config *s)
{
    free(s->json);
    free(s->dns_servers);
    free(s->dns_search);
    pb_free(s->config);
    *s = (struct pod_config){ 0 };
}

/* The cgroup of a sandbox, named like containerd's podsandbox does: below its parent, or in
 * systemd's form. */
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
    return 0;
}

static json_t *above_zero(int64_t n)
{
    return n > 0 ? json_integer(n) : NULL;
}

static json_t *mappings(Cri__IDMapping *const *lines, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{sI, sI, sI}", "containerID",
                                              (json_int_t)lines[i]->container_id, "hostID",
                                              (json_int_t)lines[i]->host_id, "size",
                                              (json_int_t)lines[i]->length));
    return list;
}

static void put_userns(json_t *linux_part, const Cri__LinuxPodSandboxConfig *l)
{
    const Cri__LinuxSandboxSecurityContext *sc = l ? l->security_context : NULL;
    const Cri__UserNamespace *u =
        sc && sc->namespace_options ? sc->namespace_options->userns_options : NULL;

    if (!u || u->mode != CRI__NAMESPACE_MODE__POD)
        return;
    json_object_set_new(linux_part, "namespaces", json_pack("[{ss}]", "type", "user"));
    json_object_set_new(linux_part, "uidMappings", mappings(u->uids, u->n_uids));
    json_object_set_new(linux_part, "gidMappings", mappings(u->gids, u->n_gids));
}

static json_t *linux_of(const Cri__LinuxPodSandboxConfig *l, const char *id)
{
    static const Cri__LinuxContainerResources no_limits = CRI__LINUX_CONTAINER_RESOURCES__INIT;
    const Cri__LinuxContainerResources *r = l && l->resources ? l->resources : &no_limits;
    AUTO_FREE char *path = l && l->cgroup_parent[0] ? cgroups_path(l->cgroup_parent, id) : NULL;
    json_t *sysctl = json_object();

    for (size_t i = 0; l && i < l->n_sysctls; i++)
        json_object_set_new(sysctl, l->sysctls[i]->key, json_string(l->sysctls[i]->value));
    json_t *all = json_pack(
        "{ss*, s{s{so*}, s{so*, so*, so*}}, so}", "cgroupsPath", path, "resources", "memory",
        "limit", above_zero(r->memory_limit_in_bytes), "cpu", "period", above_zero(r->cpu_period),
        "quota", above_zero(r->cpu_quota), "shares", above_zero(r->cpu_shares), "sysctl", sysctl);

    put_userns(all, l);
    return all;
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

/* The same content that containerd writes for a pod with a pause container. The bridge's messages
 * have only servers and domains, and belong to an interface, which a pod may not have. */
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
        return err_because(err, REASON_INVALID_OPTIONS, ERR_INVALID,
                           "unsupported options \"%.100s\": must be runtime.v1.PodSandboxConfig, "
                           "runtimeoptions.v1.Options or containerd.runhcs.v1.Options",
                           type);
    if (pb_any_unpack(req->options, &cri__pod_sandbox_config__descriptor, (void **)&c) < 0)
        return err_set(err, ERR_INVALID, "invalid PodSandboxConfig: it does not decode");
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

/* --- the service --- */

/* For clients of hcsshim, which send runtime options; the pod is then described in the bundle. */
static bool has_runtime_options(const CreateSandboxRequest *req)
{
    enum options_type type = OPTIONS_NONE;
    struct err ignored = ERR_INIT;

    return req->options && service_options_type(req->options->type_url, &type, &ignored) == 0 &&
           type != OPTIONS_NONE;
}

static int create(struct ctx *ctx, struct service *s, const CreateSandboxRequest *req,
                  CreateSandboxResponse *resp, struct err *err)
{
    AUTO(pod_config_release) struct pod_config config = { 0 };
    struct sandbox_create c = { .id = req->sandbox_id,
                                .bundle = req->bundle_path,
                                .netns = req->netns_path };

    service_came(s);
    if (service_check_id("sandbox id", req->sandbox_id, err) < 0)
        return -1;
    if (s->refusing)
        return err_because(err, REASON_SHIM_LEAVING, ERR_UNAVAILABLE,
                           "the shim is shutting down and cannot create sandbox %s; retry",
                           req->sandbox_id);
    if (req->n_rootfs > 0)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "sandbox %s has a root file system, which is unsupported: a VM has its own",
                       req->sandbox_id);
    if ((has_runtime_options(req) ? service_take_options(s, req->options, err)
                                  : pod_config_read(req, &config, err)) < 0)
        return err_wrap(err, "create sandbox %s", req->sandbox_id);
    c.spec = config.json;
    c.dns_servers = config.dns_servers;
    c.dns_search = config.dns_search;
    s->asked_to_leave = 0;
    if (sandbox_create(ctx, s->opts.registry, &c, err) < 0)
        return -1;
    service_changed(s);
    return 0;
}

static int start(struct ctx *ctx, struct service *s, const StartSandboxRequest *req,
                 StartSandboxResponse *resp, struct err *err)
{
    struct sandbox_view v;

    if (sandbox_start(ctx, s->opts.registry, req->sandbox_id, &v, err) < 0)
        return -1;
    resp->pid = v.pid;
    pb_set_time(&resp->created_at, v.created_wall_ns);
    return 0;
}

static int platform(struct ctx *ctx, struct service *s, const PlatformRequest *req,
                    PlatformResponse *resp, struct err *err)
{
    struct sandbox_view v;

    if (sandbox_view(s->opts.registry, req->sandbox_id, &v, err) < 0)
        return -1;
    resp->platform = pb_new(&platform__descriptor);
    pb_set_str(&resp->platform->os, "linux");
    pb_set_str(&resp->platform->architecture, ARCHITECTURE);
    return 0;
}

static int stop(struct ctx *ctx, struct service *s, const StopSandboxRequest *req,
                StopSandboxResponse *resp, struct err *err)
{
    uint32_t timeout =
        req->timeout_secs < STOP_TIMEOUT_MAX_S ? req->timeout_secs : STOP_TIMEOUT_MAX_S;
    struct ctx limited = ctx_with_timeout(ctx, timeout * NS_PER_S + STOP_LIMIT);

    return sandbox_stop(&limited, s->opts.registry, req->sandbox_id, timeout * NS_PER_S, err);
}

static int wait(struct ctx *ctx, struct service *s, const WaitSandboxRequest *req,
                WaitSandboxResponse *resp, struct err *err)
{
    struct sandbox_view v;

    if (sandbox_wait(ctx, s->opts.registry, req->sandbox_id, &v, err) < 0)
        return -1;
    resp->exit_status = v.exit_status;
    pb_set_time(&resp->exited_at, v.exited_wall_ns);
    return 0;
}

static int status(struct ctx *ctx, struct service *s, const SandboxStatusRequest *req,
                  SandboxStatusResponse *resp, struct err *err)
{
    struct sandbox_view v;

    if (sandbox_view(s->opts.registry, req->sandbox_id, &v, err) < 0)
        return -1;
    pb_set_str(&resp->sandbox_id, req->sandbox_id);
    pb_set_str(&resp->state, v.state == SANDBOX_READY ? "SANDBOX_READY" : "SANDBOX_NOTREADY");
    resp->pid = v.pid;
    if (v.created_wall_ns)
        pb_set_time(&resp->created_at, v.created_wall_ns);
    if (v.exited_wall_ns)
        pb_set_time(&resp->exited_at, v.exited_wall_ns);
    if (req->verbose) {
        AUTO_FREE char *json = registry_inspect(s->opts.registry);
        SandboxStatusResponse__InfoEntry *entry =
            pb_new(&sandbox_status_response__info_entry__descriptor);

        pb_set_str(&entry->key, "info");
        pb_set_str(&entry->value, json);
        pb_add(resp->info, resp->n_info, entry);
    }
    return 0;
}

static int ping(struct ctx *ctx, struct service *s, const PingRequest *req, PingResponse *resp,
                struct err *err)
{
    return sandbox_ping(ctx, s->opts.registry, req->sandbox_id, err);
}

static int shut_down(struct ctx *ctx, struct service *s, const ShutdownSandboxRequest *req,
                     ShutdownSandboxResponse *resp, struct err *err)
{
    /* If the sandbox does not exist, there is nothing to shut down. */
    if (sandbox_shutdown(ctx, s->opts.registry, req->sandbox_id, err) < 0) {
        if (err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err);
    }
    s->asked_to_leave++;
    service_changed(s);
    return 0;
}

static json_t *nic_numbers(const struct sandbox_nic *n)
{
    return json_pack("{ss sI sI sI sI sI sI sI sI}", "name", n->name, "rx_bytes",
                     (json_int_t)n->stats.rx_bytes, "rx_packets", (json_int_t)n->stats.rx_packets,
                     "rx_errors", (json_int_t)n->stats.rx_errors, "rx_dropped",
                     (json_int_t)n->stats.rx_dropped, "tx_bytes", (json_int_t)n->stats.tx_bytes,
                     "tx_packets", (json_int_t)n->stats.tx_packets, "tx_errors",
                     (json_int_t)n->stats.tx_errors, "tx_dropped", (json_int_t)n->stats.tx_dropped);
}

/* Metrics of the whole VM, as the host measures them, in the format of a container's metrics.
 * Process counts and OOM kills come from the guest. */
static json_t *numbers_of(const struct sandbox_stats *v)
{
    json_t *nics = json_array();
    json_t *root =
        json_pack("{s{s{sI}} s{sIs{sIsI}} so}", "cpu", "usage", "total", (json_int_t)v->cpu_ns,
                  "memory", "rss", (json_int_t)v->rss_bytes, "usage", "usage",
                  (json_int_t)v->rss_bytes, "limit", (json_int_t)v->memory_bytes, "network", nics);

    for (size_t i = 0; i < v->n_nics; i++)
        json_array_append_new(nics, nic_numbers(&v->nics[i]));
    if (v->guest) {
        json_object_set_new(root, "pids", json_pack("{sI}", "current", (json_int_t)v->pids));
        json_object_set_new(root, "memory_oom_control",
                            json_pack("{sI}", "oom_kill", (json_int_t)v->oom_kills));
    }
    return root;
}

static int metrics(struct ctx *ctx, struct service *s, const SandboxMetricsRequest *req,
                   SandboxMetricsResponse *resp, struct err *err)
{
    AUTO(sandbox_stats_release) struct sandbox_stats v = { 0 };

    if (sandbox_stats(ctx, s->opts.registry, req->sandbox_id, &v, err) < 0)
        return -1;

    AUTO(json_decref) json_t *numbers = numbers_of(&v);

    resp->metrics = pb_new(&metric__descriptor);
    pb_set_str(&resp->metrics->id, req->sandbox_id);
    pb_set_time(&resp->metrics->timestamp, loop_wall(ctx->loop));
    return stats_from_guest(numbers, s->opts.stats_v2, &resp->metrics->data, err);
}

static const struct rpc_method methods[] = {
    SERVICE_METHOD("CreateSandbox", create, CreateSandboxRequest, CreateSandboxResponse),
    SERVICE_METHOD("StartSandbox", start, StartSandboxRequest, StartSandboxResponse,
                   .limit_ns = START_LIMIT),
    SERVICE_METHOD("Platform", platform, PlatformRequest, PlatformResponse, MINOR),
    SERVICE_METHOD("StopSandbox", stop, StopSandboxRequest, StopSandboxResponse,
                   .limit_ns = STOP_TIMEOUT_MAX_S * NS_PER_S + STOP_LIMIT),
    SERVICE_METHOD("WaitSandbox", wait, WaitSandboxRequest, WaitSandboxResponse, .patient = true,
                   .resumable = true, MINOR),
    SERVICE_METHOD("SandboxStatus", status, SandboxStatusRequest, SandboxStatusResponse, MINOR),
    SERVICE_METHOD("PingSandbox", ping, PingRequest, PingResponse, MINOR),
    SERVICE_METHOD("ShutdownSandbox", shut_down, ShutdownSandboxRequest, ShutdownSandboxResponse,
                   .limit_ns = STOP_LIMIT),
    SERVICE_METHOD("SandboxMetrics", metrics, SandboxMetricsRequest, SandboxMetricsResponse, MINOR),
};
static const struct rpc_service sandbox_service = { &sandbox__descriptor, methods,
                                                    ARRAY_LEN(methods), .id_key = "sandbox-id" };

void service_add_sandbox(struct service *s, struct rpc_server *server)
{
    rpc_server_add(server, SERVICE_SANDBOX, &sandbox_service, s);
}
