/* pod_network_test.c - when a pod's network comes and goes. What a network is made of is
 * network_test.c's. */
#include "fixture/registry_steps.h"
#include "host/control/sandbox.h"
#include <stdio.h>

#define POD(type, pod)                                                                             \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"" type "\","                         \
    "\"io.kubernetes.cri.sandbox-id\":\"" pod "\"}"

static void open_fixture(struct fixture *r, struct ctx *ctx)
{
    r->host.network = true;
    r->guest_opts.process_ns = 900 * NS_PER_S;
    fixture_open(r, ctx);
}

static unsigned nics(struct fixture *r)
{
    struct fake_facts f;

    fake_vmm_facts(r->vmm, &f);
    return f.nics;
}

/* A spec with this network namespace. */
static void write_spec(struct fixture *r, const char *id, const char *netns, const char *more)
{
    AUTO_FREE char *dir = str_format("%s/%s", r->dir, id);
    AUTO_FREE char *path = str_format("%s/config.json", dir);
    AUTO_FREE char *text = str_format(
        "{\"process\":{\"args\":[\"/x\"],\"cwd\":\"/\"},\"root\":{\"path\":\"rootfs\"},\"linux\":"
        "{\"namespaces\":[{\"type\":\"pid\"},{\"type\":\"network\"%s%s%s}]}%s}",
        netns[0] ? ",\"path\":\"" : "", netns, netns[0] ? "\"" : "", more);

    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

/* Its delete failed, or the client never called it: the container must not keep the pod alive. */
TEST_VIRTUAL(a_container_that_has_ended_goes_with_its_pod_one_that_runs_does_not)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    write_spec(&r, "p", "", POD("sandbox", "p"));
    write_spec(&r, "a", "", POD("container", "p"));
    write_spec(&r, "b", "", POD("container", "p"));
    for (const char *const *id = (const char *const[]){ "p", "a", "b", NULL }; *id; id++) {
        ASSERT_OK(fixture_try_create(&r, &root, *id, &err), err);
        fixture_start(&r, &root, *id, "");
    }
    for (const char *const *id = (const char *const[]){ "a", "p", NULL }; *id; id++) {
        ASSERT_OK(fixture_try_kill(&r, &root, *id, "", 9, true, &err), err);
        ASSERT_EQ(fixture_wait(&r, &root, *id, ""), 137);
    }
    ASSERT_FAIL(fixture_try_delete(&r, &root, "p", "", &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "still has container b");
    ASSERT_EQ(err.reason, REASON_WRONG_STATE);
    ASSERT(fixture_find(&r, "a")); /* refused: nothing was touched */
    ASSERT_OK(fixture_try_kill(&r, &root, "b", "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "b", ""), 137);
    fixture_delete(&r, &root, "p", "");
    ASSERT_EQ(r.registry->n_containers, 0);
    ASSERT_HAS(fixture_told(&r, &root), "delete a 137;delete b 137;delete p 137");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_pods_network_is_attached_while_its_sandbox_is_created_and_goes_with_it)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    write_spec(&r, "p", "/run/netns/cni-1", POD("sandbox", "p"));
    write_spec(&r, "c", "/proc/1000/ns/net", POD("container", "p"));
    ASSERT_OK(fixture_try_create(&r, &root, "p", &err), err);
    ASSERT_STR(r.host.net_path, "/run/netns/cni-1");
    ASSERT_EQ(r.host.net_plugged, 1);
    ASSERT_EQ(nics(&r), 1);
    ASSERT_EQ(r.guest.nics, 1);
    fixture_start(&r, &root, "p", "");
    ASSERT_OK(fixture_try_create(&r, &root, "c", &err), err);
    fixture_start(&r, &root, "c", "");
    ASSERT_EQ(r.host.net_opened, 1); /* the pod has it */
    ASSERT_OK(fixture_try_kill(&r, &root, "c", "", 9, true, &err), err);
    (void)fixture_wait(&r, &root, "c", "");
    fixture_delete(&r, &root, "c", "");
    ASSERT_EQ(r.host.net_plugged, 1);
    ASSERT_OK(fixture_try_kill(&r, &root, "p", "", 9, true, &err), err);
    (void)fixture_wait(&r, &root, "p", "");
    fixture_delete(&r, &root, "p", "");
    ASSERT_EQ(r.host.net_plugged, 0);
    fixture_close(&r, ctx);
}

/* In the guest its namespace is made by Create, for the user namespace. */
TEST_VIRTUAL(a_pod_with_a_user_namespace_has_its_network_at_start)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    const char *text =
        "{\"process\":{\"args\":[\"/x\"],\"cwd\":\"/\"},\"root\":{\"path\":\"rootfs\"},"
        "\"linux\":{\"namespaces\":[{\"type\":\"user\"},{\"type\":\"network\",\"path\":\"/run/"
        "netns/x\"}],"
        "\"uidMappings\":[{\"containerID\":0,\"hostID\":100000,\"size\":65536}],"
        "\"gidMappings\":[{\"containerID\":0,\"hostID\":100000,\"size\":65536}]}" POD("sandbox",
                                                                                      "p") "}";

    open_fixture(&r, ctx);
    AUTO_FREE char *dir = str_format("%s/p", r.dir), *path = str_format("%s/config.json", dir);
    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
    ASSERT_OK(fixture_try_create(&r, &root, "p", &err), err);
    ASSERT_EQ(r.host.net_opened, 0);
    fixture_start(&r, &root, "p", "");
    ASSERT_EQ(nics(&r), 1);
    fixture_close(&r, ctx);
}

/* A container of Docker, or of a client without a CRI: what makes its network may come after
 * Create. */
TEST_VIRTUAL(the_network_of_a_plain_container_is_read_at_its_start)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    write_spec(&r, "a", "/run/netns/x", "");
    ASSERT_OK(fixture_try_create(&r, &root, "a", &err), err);
    ASSERT_EQ(r.host.net_opened, 0);
    fixture_start(&r, &root, "a", "");
    ASSERT_EQ(nics(&r), 1);
    fixture_close(&r, ctx);
    ASSERT_EQ(r.host.net_plugged, 0);
}

TEST_VIRTUAL(a_create_that_fails_does_not_wait_for_the_network)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t begin;

    open_fixture(&r, ctx);
    write_spec(&r, "p", "/run/netns/x", POD("sandbox", "p"));
    refuse(&r, (struct refusal){ BRIDGE_CREATE, -1, -1, 1, FAKE_REFUSE, 0, 0 });
    second_refusal = (struct refusal){
        BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_NETWORK, BRIDGE_ADD, 1, FAKE_SILENT, 0, 0
    };
    begin = loop_now(ctx->loop);
    ASSERT(fixture_try_create(&r, &root, "p", &err) < 0);
    ASSERT(err.code != ERR_CANCELLED); /* which is what ended the network's step */
    ASSERT(loop_now(ctx->loop) - begin < 20 * NS_PER_S);
    ASSERT_EQ(second_refusal.times, 0);
    ASSERT_EQ(r.host.net_plugged, 0);
    ASSERT_EQ(r.guest.nics, 0);
    second_refusal = (struct refusal){ 0 };
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_namespace_of_its_own_is_its_anchors)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    AUTO_FREE char *want = NULL;

    open_fixture(&r, ctx);
    write_spec(&r, "a", "", "");
    ASSERT_OK(fixture_try_create(&r, &root, "a", &err), err);
    fixture_start(&r, &root, "a", "");
    want = str_format("/proc/%u/ns/net", container_parts(fixture_find(&r, "a"))->pid);
    ASSERT_STR(r.host.net_path, want);
    fixture_close(&r, ctx);
    ASSERT_EQ(r.host.net_plugged, 0);
}

TEST_VIRTUAL(a_network_that_fails_fails_the_create_and_leaves_nothing)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    write_spec(&r, "p", "/run/netns/x", POD("sandbox", "p"));
    r.host.net_open_fails = true;
    ASSERT_FAIL(fixture_try_create(&r, &root, "p", &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "network of pod p");
    ASSERT_EQ(err.reason, REASON_NETWORK_FAILED);
    err_clear(&err);
    ASSERT_EQ(r.registry->n_containers, 0);
    ASSERT_EQ(r.host.net_plugged, 0);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(the_networks_of_pods_in_one_vm_are_their_own)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    write_spec(&r, "p1", "/run/netns/1", POD("sandbox", "p1"));
    write_spec(&r, "p2", "/run/netns/2", POD("sandbox", "p2"));
    ASSERT_OK(fixture_try_create(&r, &root, "p1", &err), err);
    ASSERT_OK(fixture_try_create(&r, &root, "p2", &err), err);
    fixture_start(&r, &root, "p1", "");
    fixture_start(&r, &root, "p2", "");
    ASSERT_EQ(nics(&r), 2);
    ASSERT_OK(fixture_try_kill(&r, &root, "p1", "", 9, true, &err), err);
    (void)fixture_wait(&r, &root, "p1", "");
    fixture_delete(&r, &root, "p1", "");
    ASSERT_EQ(nics(&r), 1);
    ASSERT_EQ(r.host.net_plugged, 1);
    ASSERT_EQ(container_state(fixture_find(&r, "p2")), CONTAINER_RUNNING);
    fixture_close(&r, ctx);
    ASSERT_EQ(r.host.net_plugged, 0);
}

TEST_VIRTUAL(a_dead_vm_leaves_no_tap)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    write_spec(&r, "p", "/run/netns/1", POD("sandbox", "p"));
    ASSERT_OK(fixture_try_create(&r, &root, "p", &err), err);
    fixture_start(&r, &root, "p", "");
    fake_vmm_die(r.vmm, FAKE_KILLED);
    ASSERT_EQ(fixture_wait(&r, &root, "p", ""), 137);
    fixture_delete(&r, &root, "p", "");
    ASSERT_EQ(r.host.net_plugged, 0);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_sandboxs_metrics_have_its_traffic_and_what_its_guest_answers_in_time)
{
    struct fixture r = { .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    const struct sandbox_create c = {
        .id = "s", .bundle = "/none", .netns = "/run/netns/cni-2", .spec = "{}"
    };
    struct sandbox_view s;
    struct sandbox_stats v;
    struct err err = ERR_INIT;
    uint64_t begin;

    open_fixture(&r, ctx);
    ASSERT_OK(sandbox_create(&root, r.registry, &c, &err), err);
    ASSERT_OK(sandbox_start(&root, r.registry, "s", &s, &err), err);
    ASSERT_OK(sandbox_stats(&root, r.registry, "s", &v, &err), err);
    ASSERT(v.guest);
    ASSERT_EQ(v.pids, 1);
    ASSERT_EQ(v.n_nics, 1);
    ASSERT_STR(v.nics[0].name, "eth0");
    ASSERT_EQ(v.nics[0].stats.rx_bytes, 1000);
    ASSERT_EQ(v.nics[0].stats.tx_packets, 3);
    sandbox_stats_release(&v);

    refusal = (struct refusal){ BRIDGE_GET_PROPERTIES, -1, -1, 1000, FAKE_SILENT, 0 };
    begin = loop_now(ctx->loop);
    ASSERT_OK(sandbox_stats(&root, r.registry, "s", &v, &err), err);
    ASSERT(!v.guest);
    ASSERT_EQ(v.n_nics, 1);
    ASSERT(loop_now(ctx->loop) - begin < 3 * NS_PER_S);
    sandbox_stats_release(&v);
    fixture_close(&r, ctx);
}

static void create_worker(void *arg)
{
    struct fixture *r = arg;
    struct ctx root = ctx_root(r->loop);
    struct err err = ERR_INIT;

    ASSERT_OK(fixture_try_create(r, &root, "w", &err), err);
}

TEST_VIRTUAL(a_container_that_is_being_created_does_not_hide_the_others_numbers)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    const struct sandbox_create c = { .id = "s", .bundle = "/none", .netns = "", .spec = "{}" };
    struct sandbox_view s;
    struct sandbox_stats v;
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    ASSERT_OK(sandbox_create(&root, r.registry, &c, &err), err);
    ASSERT_OK(sandbox_start(&root, r.registry, "s", &s, &err), err);
    write_spec(&r, "w", "", POD("container", "s"));
    r.host.rootfs_ns = 2 * NS_PER_S;
    fibers_go(&r.clients, ctx->loop, create_worker, &r, "create");
    for (int i = 0; i < 2; i++) { /* before and after */
        ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
        ASSERT_OK(sandbox_stats(&root, r.registry, "s", &v, &err), err);
        ASSERT(v.guest);
        ASSERT_EQ(v.pids, i + 1);
        sandbox_stats_release(&v);
        ASSERT_OK(fiber_sleep(ctx, 3 * NS_PER_S, &err), err);
    }
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_sandboxs_network_is_free_when_stop_returns)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    const struct sandbox_create c = {
        .id = "s", .bundle = "/none", .netns = "/run/netns/cni-2", .spec = "{}"
    };
    struct sandbox_view s;
    struct err err = ERR_INIT;

    open_fixture(&r, ctx);
    ASSERT_OK(sandbox_create(&root, r.registry, &c, &err), err);
    ASSERT_OK(sandbox_start(&root, r.registry, "s", &s, &err), err);
    ASSERT_STR(r.host.net_path, "/run/netns/cni-2");
    ASSERT_EQ(r.host.net_plugged, 1);
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 0, &err), err);
    ASSERT_EQ(r.host.net_plugged, 0);
    fixture_close(&r, ctx);
}
