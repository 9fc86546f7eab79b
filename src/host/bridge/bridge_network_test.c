/* bridge_network_test.c - what is sent for a pod's interfaces and ports, and what is made of the
 * answers. */
#include "fixture/bridge_fixture.h"

struct asking {
    struct bench *bench;
    int (*call)(struct ctx *ctx, struct guest *g, struct err *err);
    int r;
    struct err err;
};

static void ask_main(void *arg)
{
    struct asking *a = arg;

    a->r = a->call(a->bench->ctx, a->bench->g, &a->err);
}

static void begin(struct bench *t, struct asking *a,
                  int (*call)(struct ctx *ctx, struct guest *g, struct err *err))
{
    *a = (struct asking){ .bench = t, .call = call };
    fibers_go(&t->fibers, t->ctx->loop, ask_main, a, "ask");
}

static int do_add(struct ctx *ctx, struct guest *g, struct err *err)
{
    const struct guest_ip ips[] = { { "10.1.0.2", 24 }, { "fd00::2", 64 } };
    const struct guest_route routes[] = {
        { .destination = "169.254.1.1/32", .link_scope = true, .source = "10.1.0.2" },
        { .destination = "0.0.0.0/0", .next_hop = "169.254.1.1", .metric = 70000, .on_link = true },
        { .destination = "10.0.0.0/8", .table = 100, .dev = "net1", .weight = 2, .hops = 2 },
    };
    const struct guest_rule rule = { .source = "10.1.0.2/32", .priority = 9, .table = 100 };
    const char *const sysctls[] = { "ipv4.conf.rp_filter=2", NULL };
    const struct guest_neighbour neighbours[] = { { "169.254.1.1", { 2, 0, 0, 0, 0, 0xab } } };
    const struct guest_nic n = { .ns = "pod1",
                                 .id = "pod1-0",
                                 .name = "eth0",
                                 .mac = { 2, 0x1a, 0, 0, 1, 0xff },
                                 .mtu = 1450,
                                 .ips = ips,
                                 .n_ips = 2,
                                 .routes = routes,
                                 .n_routes = 3,
                                 .rules = &rule,
                                 .n_rules = 1,
                                 .sysctls = sysctls,
                                 .neighbours = neighbours,
                                 .n_neighbours = 1,
                                 .dns_servers = "10.0.0.10" };

    return g->ops->add_nic(ctx, g, &n, err);
}

static int do_remove(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->remove_nic(ctx, g, "pod1", "pod1-0", err);
}

static struct stream *got;

static int do_connect(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->connect_port(ctx, g, "pod1", true, 8080, &got, err);
}

TEST_VIRTUAL(all_of_an_interface_is_sent)
{
    static const char *const parts[] = {
        "\"ResourceType\":\"Network\"",
        "\"RequestType\":\"Add\"",
        "\"NamespaceID\":\"pod1\"",
        "\"ID\":\"pod1-0\"",
        "\"MacAddress\":\"02-1A-00-00-01-FF\"",
        "\"DNSServerList\":\"10.0.0.10\"",
        "{\"IPAddress\":\"10.1.0.2\",\"PrefixLength\":24}",
        "{\"IPAddress\":\"fd00::2\",\"PrefixLength\":64}",
        "{\"DestinationPrefix\":\"169.254.1.1/32\",\"Source\":\"10.1.0.2\",\"LinkScope\":true}",
        "\"NextHop\":\"169.254.1.1\",\"DestinationPrefix\":\"0.0.0.0/0\",\"Metric\":70000",
        "\"OnLink\":true",
        "\"Name\":\"eth0\",\"Mtu\":1450",
        "{\"DestinationPrefix\":\"10.0.0.0/8\",\"Table\":100,\"Interface\":\"net1\"",
        "\"Weight\":2,\"Hops\":2}",
        "\"Rules\":[{\"Priority\":9,\"From\":\"10.1.0.2/32\",\"Table\":100}]",
        "\"Sysctls\":{\"ipv4.conf.rp_filter\":\"2\"}",
        "\"Neighbors\":[{\"IPAddress\":\"169.254.1.1\",\"MacAddress\":\"02-00-00-00-00-AB\"}]",
    };
    struct bench t = { 0 };
    struct asking a;
    struct frame f;

    bench_connect(&t, ctx);
    begin(&t, &a, do_add);
    expect(&t, BRIDGE_MODIFY_SETTINGS, &f);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        ASSERT_HAS(f.body, parts[i]);
    reply(&t, &f, OK_BODY);
    free(f.body);
    settle(&t);
    ASSERT_OK(a.r, a.err);
    bench_close(&t);
}

TEST_VIRTUAL(a_nic_that_is_gone_is_removed_already)
{
    struct bench t = { 0 };
    struct asking a;

    bench_connect(&t, ctx);
    begin(&t, &a, do_remove);
    expect_reply(&t, BRIDGE_MODIFY_SETTINGS, "{\"Result\":-2147023728}"); /* not found */
    settle(&t);
    ASSERT_OK(a.r, a.err);
    begin(&t, &a, do_remove);
    expect_reply(&t, BRIDGE_MODIFY_SETTINGS, "{\"Result\":-2147467259}");
    settle(&t);
    ASSERT(a.r < 0);
    bench_close(&t);
}

TEST_VIRTUAL(a_port_becomes_the_stream_that_the_guest_dials)
{
    struct bench t = { 0 };
    struct asking a;
    struct frame f;
    struct stream *guest_end;

    bench_connect(&t, ctx);
    begin(&t, &a, do_connect);
    expect(&t, BRIDGE_MODIFY_SETTINGS, &f);
    ASSERT_HAS(f.body, "\"ResourceType\":\"PortForward\"");
    ASSERT_HAS(f.body, "\"NamespaceID\":\"pod1\",\"IPv6\":true,\"Port\":8080,\"HostPort\":");
    const char *port = strstr(f.body, "\"HostPort\":") + strlen("\"HostPort\":");
    ASSERT_EQ(fake_vmm_dial(t.vmm, (uint32_t)strtoul(port, NULL, 10), &guest_end), 0);
    reply(&t, &f, OK_BODY);
    free(f.body);
    settle(&t);
    ASSERT_OK(a.r, a.err);
    ASSERT(got);
    stream_free(TAKE_PTR(got));
    stream_free(guest_end);
    bench_close(&t);
}

TEST_VIRTUAL(a_refused_port_leaves_no_listener)
{
    struct bench t = { 0 };
    struct fake_facts before, after;
    struct asking a;

    bench_connect(&t, ctx);
    fake_vmm_facts(t.vmm, &before);
    begin(&t, &a, do_connect);
    expect_reply(&t, BRIDGE_MODIFY_SETTINGS,
                 "{\"Result\":-2147467259,\"ErrorMessage\":\"port not listening\"}");
    settle(&t);
    ASSERT(a.r < 0);
    ASSERT_HAS(a.err.msg, "port not listening");
    fake_vmm_facts(t.vmm, &after);
    ASSERT_EQ(after.listeners, before.listeners);
    bench_close(&t);
}
