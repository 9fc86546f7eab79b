/* Networks of pods from end to end: namespaces as CNI leaves them, the controller, QEMU's hot-plug,
 * and the agent that configures them. */
#include "base/child.h"
#include "fixture/ledger_fixture.h"
#include "fixture/net_fixture.h"
#include "fixture/real_vm.h"
#include "host/device/network.h"
#include "host/device/plan9.h"
#include "host/files/tree.h"
#include "host/ledger/ledger.h"
#include "host/net/net.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

/* A VM, and what carries the probe into it. */
struct network_fixture {
    struct real_vm fixture;
    struct ctx limited;
    struct plan9 *plan9;
    struct ledger *ledger;
    uint64_t share;
    char *dir; /* where the probe is, in the guest */
};

/* A namespace on the host that is a port of the bridge, and its network in a VM. */
struct pod {
    struct fixture_pod ns;
    struct network_fixture *vm;
    struct network *net;
    unsigned number; /* 10.1.0.N, fd00:1::N */
    char *before;
};

static const char *probe(void)
{
    const char *path = getenv("NET_PROBE");

    if (!path)
        tap_skip("NET_PROBE names no program");
    return path;
}

static void network_fixture_start(struct ctx *ctx, struct network_fixture *b)
{
    struct err err = ERR_INIT;
    struct tree t;

    *b = (struct network_fixture){ .share = 0 };
    real_vm_start(ctx, &b->fixture);
    b->limited = ctx_with_timeout(&b->fixture.root, 3 * FIXTURE_CALL_NS);
    b->plan9 = plan9_new(b->fixture.vmm, b->fixture.guest);
    ASSERT_OK(ledger_create(tempdir_path(&b->fixture.temp, "own"), &b->ledger, &err), err);
    ASSERT_OK(tree_open(&b->limited, probe(), &(struct tree_opts){ .read_only = true }, &t, &err),
              err);
    const struct plan9_share s = { .host_path = "probe", .tree_fd = t.fd, .read_only = true };
    ASSERT_OK(plan9_reserve(&b->limited, b->plan9, &s, &b->share, &err), err);
    fd_close(t.fd);
    AUTO_FREE char *path = NULL;
    ASSERT_OK(plan9_map(&b->limited, b->plan9, b->share, &path, &err), err);
    b->dir = str_format("%s/%s", path, t.name);
}

static void network_fixture_finish(struct network_fixture *b)
{
    struct err err = ERR_INIT;
    uint32_t code;

    /* Those that serve; there may be none. */
    free(real_vm_sh(&b->fixture, "killall net_probe; while pidof net_probe; do sleep 0.05; done",
                    &code));
    ASSERT_EQ(ledger_fixture_open(b->ledger), 0);
    ASSERT_OK(plan9_unmap(&b->limited, b->plan9, b->share, &err), err);
    ASSERT_OK(ledger_finish(b->ledger, &err), err);
    ledger_close(b->ledger);
    plan9_free(b->plan9);
    free(b->dir);
    real_vm_finish(&b->fixture);
}

static void bridge_make(void)
{
    fixture_host();
    fixture_sh("ip link set lo up; ip link add br0 type bridge && ip link set br0 up mtu 1500 && "
               "ip addr add 10.1.0.1/24 dev br0 && ip addr add fd00:1::1/64 dev br0 nodad");
}

static int enter(void *arg, const char *what, struct err *err)
{
    return 0;
}

static void leave(void *arg)
{
}

static void pod_make(struct ctx *ctx, struct pod *p, struct network_fixture *b, unsigned number)
{
    *p = (struct pod){ .vm = b, .number = number };
    p->ns = fixture_pod(&b->limited); /* the test's own has ended by now */
    fixture_sh(
        "ip link add veth%u type veth peer name eth0 netns %d && ip link set veth%u master br0 "
        "up",
        number, POD(&p->ns), number);
    fixture_sh(IN_POD
               "sh -c 'echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad; ip link set eth0 up && "
               "ip addr add 10.1.0.%u/24 dev eth0 && ip addr add fd00:1::%u/64 dev eth0 nodad "
               "&& ip route add default via 10.1.0.1 && ip -6 route add default via fd00:1::1 "
               "&& ip link set lo up'",
               POD(&p->ns), number, number);
    fixture_settle(&p->ns, "eth0");
    p->before = fixture_look(&p->ns);
    AUTO_FREE char *name = str_format("pod%u", number);
    p->net = network_new(&(struct network_opts){ .loop = ctx->loop,
                                                 .vmm = b->fixture.vmm,
                                                 .guest = b->fixture.guest,
                                                 .ledger = b->ledger,
                                                 .guest_ns = name,
                                                 .queues = 1 + number % 2, /* more than vCPUs */
                                                 .enter = enter,
                                                 .leave = leave });
}

static void pod_attach(struct pod *p)
{
    struct err err = ERR_INIT;

    ASSERT_OK(network_attach(&p->vm->limited, p->net, p->ns.path, NULL, &err), err);
}

static void pod_detach(struct pod *p)
{
    struct err err = ERR_INIT;

    ASSERT_OK(network_detach(&p->vm->limited, p->net, &err), err);
    AUTO_FREE char *after = fixture_look(&p->ns);
    ASSERT_STR(after, p->before);
}

static void pod_finish(struct pod *p)
{
    network_free(p->net);
    free(p->before);
    fixture_pod_end(&p->ns);
}

/* A line of shell in the n-th pod of the VM. Caller frees. */
__attribute__((format(printf, 4, 5))) static char *in_pod(struct network_fixture *b, unsigned n,
                                                          uint32_t *ret, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *line = str_vformat(fmt, ap);
    va_end(ap);
    AUTO_FREE char *all = str_format("export P=%s; exec $P pod %u sh -c '%s'", b->dir, n, line);
    return real_vm_sh(&b->fixture, all, ret);
}

#define EXPECT_IN_POD(b, n, want, ...)                                                             \
    do {                                                                                           \
        uint32_t code_;                                                                            \
        AUTO_FREE char *out_ = in_pod((b), (n), &code_, __VA_ARGS__);                              \
        if (code_ != 0 || !str_eq(out_, want))                                                     \
            tap_fail(__FILE__, __LINE__, "exit code %u, printed: %s\nexpected: %s", code_, out_,   \
                     want);                                                                        \
    } while (0)

/* Echo servers in the pod, TCP and UDP, of both families; they stay. */
static void serve(struct network_fixture *b, unsigned n)
{
    uint32_t code;
    AUTO_FREE char *out = in_pod(b, n, &code,
                                 "for k in tcp udp; do $P serve $k 7 >/tmp/$k.%u </dev/null 2>&1 & "
                                 "until grep -qs . /tmp/$k.%u; do sleep 0.1; done; done; cat "
                                 "/tmp/tcp.%u /tmp/udp.%u",
                                 n, n, n, n);

    ASSERT_STR(out, "ready\nready\n");
}

static void ask_from_host(const char *kind, const char *to, unsigned bytes)
{
    AUTO_FREE char *out = fixture_out("%s ask %s %s 7 %u", probe(), kind, to, bytes);
    AUTO_FREE char *want = str_format("%u bytes\n", bytes);

    ASSERT_STR(out, want);
}

static const struct {
    const char *kind;
    unsigned bytes;
} talks[] = { { "tcp", 1 << 20 }, { "udp", 65507 }, { "udp", 1 } };

TEST_FIBER(two_vms_and_the_host_talk_over_a_bridge)
{
    struct network_fixture a, b;
    struct pod one, two;
    static const char *const hosts[] = { "10.1.0.1", "fd00:1::1" };

    (void)probe();
    bridge_make();
    network_fixture_start(ctx, &a);
    network_fixture_start(ctx, &b);
    pod_make(ctx, &one, &a, 2);
    pod_make(ctx, &two, &b, 3);
    pod_attach(&one);
    pod_attach(&two);
    EXPECT_IN_POD(&a, 0, "ok\n",
                  "ping -c1 -W5 10.1.0.3 >/dev/null && ping -c1 -W5 fd00:1::3 >/dev/null && "
                  "ping -c1 -W5 -s 65000 10.1.0.1 >/dev/null && echo ok");
    serve(&a, 0);
    serve(&b, 0);
    AUTO_FREE char *server =
        fixture_out("for k in tcp udp; do %s serve $k 7 >/dev/null 2>&1 & echo "
                    "$!; done; sleep 0.3",
                    probe());
    for (size_t i = 0; i < ARRAY_LEN(talks); i++) {
        AUTO_FREE char *want = str_format("%u bytes\n", talks[i].bytes);

        ask_from_host(talks[i].kind, "10.1.0.2", talks[i].bytes);
        ask_from_host(talks[i].kind, "fd00:1::3", talks[i].bytes);
        EXPECT_IN_POD(&a, 0, want, "$P ask %s 10.1.0.3 7 %u", talks[i].kind, talks[i].bytes);
        EXPECT_IN_POD(&b, 0, want, "$P ask %s fd00:1::2 7 %u", talks[i].kind, talks[i].bytes);
        for (size_t h = 0; h < 2; h++)
            EXPECT_IN_POD(&b, 0, want, "$P ask %s %s 7 %u", talks[i].kind, hosts[h],
                          talks[i].bytes);
    }
    struct net_counters st;
    struct err err = ERR_INIT;
    ASSERT_OK(network_stats(&a.limited, one.net, 0, &st, &err), err);
    ASSERT(st.rx_bytes > 1 << 20 && st.tx_bytes > 1 << 20);
    for (char *pid = server; *pid; pid = strchr(pid, '\n') + 1)
        fixture_sh("kill %d", atoi(pid));
    pod_detach(&one);
    pod_detach(&two);
    pod_finish(&one);
    pod_finish(&two);
    network_fixture_finish(&a);
    network_fixture_finish(&b);
}

TEST_FIBER(the_guest_has_what_cni_made_and_nothing_else)
{
    struct network_fixture b;
    struct pod p;
    uint32_t code;

    (void)probe();
    bridge_make();
    network_fixture_start(ctx, &b);
    pod_make(ctx, &p, &b, 2);
    /* As ptp and others do it. */
    fixture_sh(IN_POD
               "sh -c 'ip link set eth0 mtu 1400; ip route flush 10.1.0.0/24; ip route add "
               "10.1.0.1 dev eth0 scope link src 10.1.0.2; ip route add 10.1.0.0/24 via "
               "10.1.0.1; ip route replace default via 10.1.0.1; ip route add 192.0.2.0/24 via "
               "169.254.1.1 dev eth0 onlink metric 7; ip neigh add 169.254.1.1 lladdr "
               "02:00:00:00:00:09 nud permanent dev eth0'",
               POD(&p.ns));
    free(p.before);
    p.before = fixture_look(&p.ns);
    pod_attach(&p);
    AUTO_FREE char *routes =
        in_pod(&b, 0, &code, "ip -4 route | sort; ip -6 route | grep -v fe80 | sort");
    AUTO_FREE char *here = fixture_out(IN_POD "sh -c 'ip -4 route | sort'", POD(&p.ns));
    ASSERT_HAS(routes, "10.1.0.0/24 via 10.1.0.1 dev eth0");
    ASSERT_HAS(routes, "10.1.0.1 dev eth0 scope link  src 10.1.0.2");
    ASSERT_HAS(routes, "192.0.2.0/24 via 169.254.1.1 dev eth0  metric 7 onlink");
    ASSERT_HAS(routes, "default via 10.1.0.1 dev eth0");
    ASSERT_HAS(routes, "default via fd00:1::1 dev eth0");
    ASSERT(!strstr(routes, "10.1.0.0/24 dev eth0"));
    ASSERT_HAS(here, "10.1.0.0/24 via 10.1.0.1");
    AUTO_FREE char *links = in_pod(&b, 0, &code, "ip addr; ip neigh");
    ASSERT_HAS(links, "inet 127.0.0.1/8");
    ASSERT_HAS(links, "eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1400");
    ASSERT_HAS(links, "inet 10.1.0.2/24");
    ASSERT_HAS(links, "inet6 fd00:1::2/64");
    ASSERT(!strstr(links, "tentative"));
    ASSERT_HAS(links, "169.254.1.1 dev eth0 lladdr 02:00:00:00:00:09");
    AUTO_FREE char *mac =
        fixture_out(IN_POD "ip -br link show eth0 | grep -o '..:..:..:..:..:..'", POD(&p.ns));
    mac[17] = '\0';
    ASSERT_HAS(links, mac);
    /* The VM's own network, which holds the link, has nothing new. */
    AUTO_FREE char *root = real_vm_sh(&b.fixture, "ip -o link | wc -l", &code);
    ASSERT_EQ(atoi(root), 2);
    pod_detach(&p);
    AUTO_FREE char *after = real_vm_sh(&b.fixture, "ls /sys/class/net | wc -l", &code);
    ASSERT_EQ(atoi(after), 2);
    pod_finish(&p);
    network_fixture_finish(&b);
}

TEST_FIBER(several_pods_in_one_vm_come_and_go_apart)
{
    struct network_fixture b;
    struct pod p[3];

    (void)probe();
    bridge_make();
    network_fixture_start(ctx, &b);
    for (unsigned i = 0; i < 3; i++) {
        pod_make(ctx, &p[i], &b, 2 + i);
        pod_attach(&p[i]);
    }
    /* Two pods of one VM, over the host's bridge. */
    serve(&b, 2);
    EXPECT_IN_POD(&b, 0, "100000 bytes\n", "$P ask tcp 10.1.0.4 7 100000");
    pod_detach(&p[1]);
    EXPECT_IN_POD(&b, 0, "100000 bytes\n", "$P ask tcp fd00:1::4 7 100000");
    pod_finish(&p[1]);
    pod_make(ctx, &p[1], &b, 5);
    pod_attach(&p[1]);
    EXPECT_IN_POD(&b, 0, "ok\n", "ping -c1 -W5 10.1.0.5 >/dev/null && echo ok");
    for (unsigned i = 0; i < 3; i++) {
        pod_detach(&p[i]);
        pod_finish(&p[i]);
    }
    network_fixture_finish(&b);
}

TEST_FIBER(a_guest_that_does_not_answer_is_cut_off_and_lives)
{
    struct network_fixture b;
    struct pod p;
    struct err err = ERR_INIT;
    struct vmm_exit e;

    (void)probe();
    bridge_make();
    network_fixture_start(ctx, &b);
    pod_make(ctx, &p, &b, 2);
    pod_attach(&p);
    struct qemu *q = qemu_of(b.fixture.vmm);
    q->quitting = true; /* or an unrequested stop would end the VM */
    ASSERT_OK(qmp_client_call(&b.limited, q->proc->qmp, "stop", NULL, NULL, &err), err);
    ASSERT_OK(network_detach(&b.limited, p.net, &err), err);
    AUTO_FREE char *cut = fixture_look(&p.ns);
    ASSERT(!strstr(cut, "mirred") && !strstr(cut, "ingress"));
    ASSERT_OK(qmp_client_call(&b.limited, q->proc->qmp, "cont", NULL, NULL, &err), err);
    struct ctx a_while = ctx_with_timeout(&b.fixture.root, 3 * NS_PER_S);
    if (b.fixture.vmm->ops->wait(&a_while, b.fixture.vmm, &e, &err) == 0)
        tap_fail(__FILE__, __LINE__, "the VM has ended: %s", e.why);
    network_fixture_finish(&b);
    AUTO_FREE char *after = fixture_look(&p.ns);
    ASSERT_STR(after, p.before);
    pod_finish(&p);
}

TEST_FIBER(a_vm_that_was_killed_leaves_the_namespace_as_it_was)
{
    struct network_fixture b;
    struct pod p;
    struct err err = ERR_INIT;
    struct vmm_info info;
    bool killed;

    (void)probe();
    bridge_make();
    network_fixture_start(ctx, &b);
    pod_make(ctx, &p, &b, 2);
    pod_attach(&p);
    vm_info(b.fixture.vm, &info);
    ASSERT(kill(info.pid, SIGKILL) == 0);
    ASSERT_OK(vm_wait_ended(&b.limited, b.fixture.vm, &killed, &err), err);
    pod_detach(&p);
    pod_finish(&p);
    ASSERT_EQ(ledger_fixture_open(b.ledger), 0);
    ASSERT_OK(ledger_finish(b.ledger, &err), err);
    ledger_close(b.ledger);
    plan9_free(b.plan9);
    free(b.dir);
    real_vm_finish(&b.fixture);
}

/* Sends and wants the same back. */
static void echo(struct network_fixture *b, const char *ns, bool ipv6, uint16_t port)
{
    struct err err = ERR_INIT;
    char buf[6] = "";
    AUTO(stream_free) struct stream *s = NULL;

    ASSERT_OK(b->fixture.guest->ops->connect_port(&b->limited, b->fixture.guest, ns, ipv6, port, &s,
                                                  &err),
              err);
    ASSERT_OK(stream_write_full(&b->limited, s, "hello", 5, &err), err);
    ASSERT_EQ(stream_shutdown(s, SHUT_WR), 0);
    ASSERT_OK(stream_read_full(&b->limited, s, buf, 5, &err), err);
    ASSERT_STR(buf, "hello");
    size_t n = 1;
    ASSERT_OK(stream_read(&b->limited, s, buf, 1, &n, &err), err);
    ASSERT_EQ(n, 0);
}

TEST_FIBER(a_port_of_a_pod_can_be_reached_from_the_host)
{
    struct network_fixture b;
    struct pod p;
    struct err err = ERR_INIT;
    struct stream *none;
    uint32_t code;

    (void)probe();
    bridge_make();
    network_fixture_start(ctx, &b);
    pod_make(ctx, &p, &b, 2);
    pod_attach(&p);
    free(in_pod(&b, 0, &code,
                "$P serve tcp 70 127.0.0.1 >/tmp/a </dev/null 2>&1 & $P serve tcp 71 10.1.0.2 "
                ">/tmp/b </dev/null 2>&1 & $P serve tcp 72 ::1 >/tmp/c </dev/null 2>&1 & "
                "until grep -qs . /tmp/a && grep -qs . /tmp/b && grep -qs . /tmp/c; do sleep 0.1; "
                "done"));
    echo(&b, "pod2", false, 70);
    echo(&b, "pod2", false, 71); /* listens on the pod's address alone */
    echo(&b, "pod2", true, 72);
    ASSERT_FAIL(b.fixture.guest->ops->connect_port(&b.limited, b.fixture.guest, "pod2", false, 79,
                                                   &none, &err),
                err, err.code);
    ASSERT_HAS(err.msg, "refused");
    pod_detach(&p);
    pod_finish(&p);
    network_fixture_finish(&b);
}
