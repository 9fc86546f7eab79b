#include "api/cri.pb-c.h"
#include "api/sandbox.pb-c.h"
#include "base/json.h"
#include "harness/tap.h"
#include "host/service/service_priv.h"
#include "oci/pods.h"
#include "proto/pb.h"
#include <string.h>

static Cri__NamespaceOption *namespaces(Cri__PodSandboxConfig *c)
{
    c->linux_config = pb_new(&cri__linux_pod_sandbox_config__descriptor);
    c->linux_config->security_context = pb_new(&cri__linux_sandbox_security_context__descriptor);
    c->linux_config->security_context->namespace_options =
        pb_new(&cri__namespace_option__descriptor);
    return c->linux_config->security_context->namespace_options;
}

static int read_config(Cri__PodSandboxConfig *c, struct pod_config *ret, struct err *err)
{
    AUTO(pb_free) CreateSandboxRequest *req = pb_new(&create_sandbox_request__descriptor);

    pb_set_str(&req->sandbox_id, "s");
    ASSERT_EQ(pb_set_any(&req->options, c), 0);
    return pod_config_read(req, ret, err);
}

static void refused(Cri__PodSandboxConfig *c, const char *words)
{
    AUTO(pod_config_release) struct pod_config config = { 0 };
    struct err err = ERR_INIT;

    ASSERT_FAIL(read_config(c, &config, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, words);
}

TEST(namespaces_of_the_host_are_refused_by_name)
{
    AUTO(pb_free) Cri__PodSandboxConfig *c = pb_new(&cri__pod_sandbox_config__descriptor);
    AUTO(pod_config_release) struct pod_config good = { 0 };
    Cri__NamespaceOption *o = namespaces(c);
    struct err err = ERR_INIT;

    o->network = CRI__NAMESPACE_MODE__NODE;
    refused(c, "hostNetwork");
    o->network = CRI__NAMESPACE_MODE__POD;
    o->pid = CRI__NAMESPACE_MODE__NODE;
    refused(c, "hostPID");
    o->pid = CRI__NAMESPACE_MODE__CONTAINER;
    o->ipc = CRI__NAMESPACE_MODE__NODE;
    refused(c, "hostIPC");
    o->ipc = CRI__NAMESPACE_MODE__POD;
    o->userns_options = pb_new(&cri__user_namespace__descriptor);
    o->userns_options->mode =
        CRI__NAMESPACE_MODE__NODE; /* as the kubelet sends it for all others */
    ASSERT_OK(read_config(c, &good, &err), err);
    ASSERT(!strstr(good.json, "uidMappings"));
}

TEST(a_user_namespace_is_passed_on)
{
    AUTO(pb_free) Cri__PodSandboxConfig *c = pb_new(&cri__pod_sandbox_config__descriptor);
    AUTO(pod_config_release) struct pod_config config = { 0 };
    Cri__NamespaceOption *o = namespaces(c);
    struct err err = ERR_INIT;

    o->userns_options = pb_new(&cri__user_namespace__descriptor);
    o->userns_options->n_gids = 1;
    o->userns_options->gids = mem_zalloc(sizeof(*o->userns_options->gids));
    o->userns_options->gids[0] = pb_new(&cri__idmapping__descriptor);
    o->userns_options->gids[0]->host_id = 100000;
    o->userns_options->gids[0]->length = 65536;
    ASSERT_OK(read_config(c, &config, &err), err);
    ASSERT_HAS(config.json, "\"namespaces\":[{\"type\":\"user\"}],\"uidMappings\":[],"
                            "\"gidMappings\":[{\"containerID\":0,\"hostID\":100000,"
                            "\"size\":65536}]");
}

TEST(dns_becomes_the_file_that_containers_read)
{
    static char *searches[] = { "svc.local", "example.org" },
                *servers[] = { "10.0.0.10", "fd00::a" }, *options[] = { "ndots:5", "edns0" };
    Cri__DNSConfig dns = CRI__DNSCONFIG__INIT;
    Cri__PodSandboxConfig c = CRI__POD_SANDBOX_CONFIG__INIT;
    AUTO(pod_config_release) struct pod_config config = { 0 };
    AUTO(json_decref) json_t *spec = NULL;
    struct err err = ERR_INIT;

    dns.searches = (void *)searches;
    dns.n_searches = 2;
    dns.servers = (void *)servers;
    dns.n_servers = 2;
    dns.options = (void *)options;
    dns.n_options = 2;
    c.dns_config = &dns;
    ASSERT_OK(read_config(&c, &config, &err), err);
    ASSERT_OK(js_parse(config.json, strlen(config.json), 1 << 16, &spec, &err), err);
    ASSERT_STR(
        json_string_value(json_object_get(json_object_get(spec, "annotations"), POD_RESOLV_CONF)),
        "search svc.local example.org\nnameserver 10.0.0.10\nnameserver fd00::a\n"
        "options ndots:5 edns0\n");
}
