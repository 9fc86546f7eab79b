#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/fake_vmm.h"
#include "fixture/fsm_verify.h"
#include "fixture/ledger_fixture.h"
#include "fixture/saved_fixture.h"
#include "fixture/stream_pair.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/bridge/guest.h"
#include "host/device/network_priv.h"
#include "host/ledger/ledger.h"
#include "host/vmm/vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- a machine, a VMM and a guest of which each step can fail --- */

enum step { OPEN, READ, PLUG, UNPLUG, NIC_ADD, NIC_REMOVE, GUEST_ADD, GUEST_REMOVE, STEPS };
enum fault { FINE, FAILS, LOST /* it happened, but the answer says otherwise */, GONE, HANGS };

struct fixture {
    struct guest guest;
    struct vmm vmm;
    struct vmm_ops ops;
    struct ledger *ledger;
    struct tempdir temp;
    struct network_opts opts;
    struct network *n;
    enum fault faults[STEPS];
    unsigned at[STEPS]; /* the fault strikes at this call, 0: the first */
    unsigned calls[STEPS];
    unsigned plugged, in_vm, in_guest; /* as bits of the interfaces' numbers */
    unsigned inside;                   /* enter without leave */
    bool wrong, vm_dead, refuses, forwards, vhost;
    unsigned vhost_nics;     /* that the VM was given with vhost-net */
    int device;              /* of the last one, by its number */
    bool foreign_qdisc;      /* on eth0, of another program: an ingress qdisc of ours is refused */
    char unplugged[2][16];   /* interfaces whose qdisc was removed, in order; "": only a tap */
    unsigned ingress_before; /* records of ingress qdiscs when the first was unplugged */
    int client;              /* who has dialled and is not accepted; -1: nobody */
    struct waitq dialled;
    struct stream *guest_end; /* of the port that was connected last */
    struct waitq never;
};
static struct fixture *fixture; /* the functions of host/net have no argument */

/* Whether the step takes effect; *ret is what it answers. */
static bool effect(struct ctx *ctx, enum step s, int *ret, struct err *err)
{
    enum fault f = fixture->calls[s]++ == fixture->at[s] ? fixture->faults[s] : FINE;

    *ret = 0;
    if (f == FAILS || f == LOST)
        *ret = err_set(err, ERR_INTERNAL, "step %d says no", s);
    if (f == GONE)
        *ret = err_set(err, ERR_UNAVAILABLE, "step %d: no peer", s);
    if (f == HANGS)
        *ret = waitq_wait(ctx, &fixture->never, "a step that hangs", err);
    return f == FINE || f == LOST;
}

static unsigned bit_of(const char *name)
{
    return 1u << (name[strlen(name) - 1] - '0');
}

int net_open(struct ctx *ctx, const char *path, int *ret_fd, uint64_t *ret_inode, struct err *err)
{
    int r;

    if (effect(ctx, OPEN, &r, err) && r == 0) {
        *ret_fd = memfd_create("netns", MFD_CLOEXEC);
        *ret_inode = 4711;
    }
    return r;
}

int net_read(struct ctx *ctx, int netns, struct net_config **ret, struct err *err)
{
    int r;

    if (!effect(ctx, READ, &r, err) || r < 0)
        return r;
    *ret = mem_new(struct net_config);
    (*ret)->n = 2;
    (*ret)->loopback = fixture->forwards;
    (*ret)->n_rules = (*ret)->n_routes = 1;
    (*ret)->routes[0].destination = "198.51.100.0/24";
    for (int i = 0; i < 2; i++) {
        struct net_iface *f = &(*ret)->ifaces[i];

        snprintf(f->name, sizeof(f->name), "%s", i == 0 ? "net1" : "eth0");
        f->index = i + 2;
        f->mtu = 1400;
        f->mac[5] = (uint8_t)i;
        f->n_addresses = f->n_routes = f->n_neighbours = 1;
        f->addresses = mem_zalloc(sizeof(*f->addresses));
        f->routes = mem_zalloc(sizeof(*f->routes));
        f->neighbours = mem_zalloc(sizeof(*f->neighbours));
        snprintf(f->addresses->text, NET_TEXT_BYTES, "10.%d.0.2", i);
        f->addresses->prefix = 24;
        *f->routes = (struct guest_route){ .destination = "0.0.0.0/0", .next_hop = "10.0.0.1" };
        strcpy(f->neighbours->text, "10.0.0.1");
    }
    return 0;
}

int net_plug(struct ctx *ctx, const struct net_plug *p, struct net_taps *ret, struct err *err)
{
    int r;

    /* On record before it is made. */
    fixture->wrong |= ledger_fixture_open(fixture->ledger) == 0 || p->mtu != 1400;
    if (fixture->foreign_qdisc && strcmp(p->iface, "eth0") == 0)
        return err_set(err, ERR_STATE, "%s has an ingress qdisc of another program", p->iface);
    if (effect(ctx, PLUG, &r, err))
        fixture->plugged |= bit_of(p->tap);
    if (r < 0)
        return r;
    ret->queues = p->queues;
    ret->has_vhost = p->vhost && fixture->vhost;
    for (unsigned i = 0; i < ret->queues; i++) {
        ret->tap[i] = memfd_create("tap", MFD_CLOEXEC);
        ret->vhost[i] = ret->has_vhost ? memfd_create("vhost", MFD_CLOEXEC) : -1;
    }
    if (p->vhost && !ret->has_vhost)
        err_set(&ret->no_vhost, ERR_STATE, "no vhost-net here");
    return 0;
}

void net_taps_close(struct net_taps *t)
{
    for (; t->queues > 0; t->queues--) {
        fd_close(t->tap[t->queues - 1]);
        if (t->has_vhost)
            fd_close(t->vhost[t->queues - 1]);
    }
}

static int count_ingress(void *arg, const struct ledger_record *r)
{
    *(unsigned *)arg += r->kind == LEDGER_INGRESS;
    return 0;
}

int net_unplug(struct ctx *ctx, int netns, const char *iface, const char *tap, struct err *err)
{
    struct err ignored = ERR_INIT;
    int r;

    if (fixture->calls[UNPLUG] == 0)
        (void)ledger_read(ledger_dir(fixture->ledger), count_ingress, &fixture->ingress_before,
                          &ignored);
    if (fixture->calls[UNPLUG] < ARRAY_LEN(fixture->unplugged))
        snprintf(fixture->unplugged[fixture->calls[UNPLUG]], sizeof(fixture->unplugged[0]), "%s",
                 iface);
    fixture->wrong |=
        (fixture->in_vm & bit_of(tap)) && !fixture->vm_dead; /* the NIC must go first */
    if (effect(ctx, UNPLUG, &r, err))
        fixture->plugged &= ~bit_of(tap);
    return r;
}

int net_count(struct ctx *ctx, int netns, const char *iface, struct net_counters *ret,
              struct err *err)
{
    *ret = (struct net_counters){ .rx_bytes = 1, .tx_bytes = strcmp(iface, "eth0") == 0 ? 7 : 8 };
    return 0;
}

int net_forward_open(struct ctx *ctx, int netns, int *ret_listener, int *ret_hook, struct err *err)
{
    if (!fixture->forwards)
        return err_set(err, ERR_UNIMPLEMENTED, "no ports are forwarded");
    *ret_listener = memfd_create("listener", MFD_CLOEXEC);
    *ret_hook = memfd_create("hook", MFD_CLOEXEC);
    return 0;
}

int net_forward_accept(struct ctx *ctx, int listener, int *ret_fd, bool *ret_ipv6,
                       uint16_t *ret_port, struct err *err)
{
    while (fixture->client < 0)
        if (waitq_wait(ctx, &fixture->dialled, "a client", err) < 0)
            return -1;
    *ret_fd = TAKE_FD(fixture->client);
    *ret_ipv6 = false;
    *ret_port = 8080;
    return 0;
}

void net_config_free(struct net_config *c)
{
    for (size_t i = 0; c && i < c->n; i++) {
        free(c->ifaces[i].addresses);
        free(c->ifaces[i].routes);
        free(c->ifaces[i].neighbours);
    }
    free(c);
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static int nic_add(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err)
{
    int r;

    fixture->wrong |=
        !(fixture->plugged & bit_of(nic->id)) || fixture->inside != 1 || nic->mtu != 1400;
    fixture->wrong |= nic->queues != fixture->opts.queues || (nic->vhost && !fixture->opts.vhost);
    for (unsigned i = 0; i < nic->queues; i++)
        fixture->wrong |= !is_open(nic->taps[i]) || (nic->vhost && !is_open(nic->vhost[i]));
    fixture->vhost_nics += nic->vhost != NULL;
    fixture->device = nic->vhost ? nic->vhost[0] : -1;
    if (effect(ctx, NIC_ADD, &r, err))
        fixture->in_vm |= bit_of(nic->id);
    return r;
}

static int nic_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err)
{
    int r;

    fixture->wrong |= fixture->inside != 1;
    if (effect(ctx, NIC_REMOVE, &r, err))
        fixture->in_vm &= ~bit_of(id);
    return r;
}

static int guest_add(struct ctx *ctx, struct guest *g, const struct guest_nic *n, struct err *err)
{
    size_t last = strcmp(n->name, "net1") == 0; /* with what is the whole pod's */
    int r;

    fixture->wrong |= !(fixture->in_vm & bit_of(n->id)) || fixture->inside != 1 ||
                      strcmp(n->ns, "pod1") != 0 || n->n_ips != 1 || n->n_routes != 1 + last ||
                      n->n_rules != last || strcmp(n->routes[0].destination, "0.0.0.0/0") != 0 ||
                      n->n_neighbours != 1 || strcmp(n->dns_servers, "8.8.8.8,9.9.9.9") != 0 ||
                      strcmp(n->dns_search, "") != 0;
    if (effect(ctx, GUEST_ADD, &r, err))
        fixture->in_guest |= bit_of(n->id);
    return r;
}

static int guest_remove(struct ctx *ctx, struct guest *g, const char *ns, const char *id,
                        struct err *err)
{
    int r;

    fixture->wrong |= !(fixture->in_vm & bit_of(id)) || fixture->inside != 1;
    if (effect(ctx, GUEST_REMOVE, &r, err))
        fixture->in_guest &= ~bit_of(id);
    return r;
}

static int guest_connect(struct ctx *ctx, struct guest *g, const char *ns, bool ipv6, uint16_t port,
                         struct stream **ret, struct err *err)
{
    fixture->wrong |= strcmp(ns, "pod1") != 0 || ipv6 || port != 8080 || fixture->inside != 1;
    if (fixture->refuses)
        return err_set(err, ERR_UNAVAILABLE, "port not listening");
    stream_pair(ctx->loop, 65536, ret, &fixture->guest_end);
    return 0;
}

static const struct guest_ops guest_ops = { .connect_port = guest_connect,
                                            .add_nic = guest_add,
                                            .remove_nic = guest_remove };

static int enter(void *arg, const char *what, struct err *err)
{
    if (fixture->vm_dead)
        return err_set(err, ERR_UNAVAILABLE, "%s: the VM is gone", what);
    fixture->inside++;
    return 0;
}

static void leave(void *arg)
{
    fixture->inside--;
}

static void begin(struct ctx *ctx, struct fixture *r)
{
    struct err err = ERR_INIT;

    *r = (struct fixture){ .guest = { &guest_ops } };
    r->ops = (struct vmm_ops){ .nic_add = nic_add, .nic_remove = nic_remove };
    r->vmm.ops = &r->ops;
    waitq_init(&r->never);
    waitq_init(&r->dialled);
    r->client = -1;
    fixture = r;
    tempdir_init(&r->temp, "/tmp");
    ASSERT_OK(ledger_create(tempdir_path(&r->temp, "ns/pod"), &r->ledger, &err), err);
    r->opts = (struct network_opts){ .loop = ctx->loop,
                                     .vmm = &r->vmm,
                                     .guest = &r->guest,
                                     .ledger = r->ledger,
                                     .guest_ns = "pod1",
                                     .queues = 2,
                                     .enter = enter,
                                     .leave = leave };
    r->n = network_new(&r->opts);
}

static int attach(struct ctx *ctx, struct fixture *r, struct err *err)
{
    static const char *const servers[] = { "8.8.8.8", "9.9.9.9", NULL };
    const struct network_dns dns = { .servers = servers };

    return network_attach(ctx, r->n, "/run/netns/a", &dns, err);
}

/* Nothing is left anywhere. */
static void finish(struct fixture *r, bool clean_guest)
{
    struct err err = ERR_INIT;

    ASSERT(!r->wrong);
    ASSERT_EQ(r->inside, 0);
    ASSERT_EQ(r->plugged, 0);
    if (!r->vm_dead)
        ASSERT_EQ(r->in_vm, 0);
    if (clean_guest)
        ASSERT_EQ(r->in_guest, 0);
    ASSERT_EQ(ledger_fixture_open(r->ledger), 0);
    network_free(r->n);
    ASSERT_OK(ledger_finish(r->ledger, &err), err);
    ledger_close(r->ledger);
    tempdir_release_auto(&r->temp);
}

/* --- the way it is meant --- */

TEST(every_pair_of_the_table_is_decided)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fsm_verify(&network_fsm, &err), err);
    for (unsigned s = 0; s < NETWORK_STATE_COUNT; s++)
        for (unsigned e = 0; e < NETWORK_EV_COUNT; e++) {
            bool listed = false;

            for (size_t i = 0; i < network_fsm.n_edges; i++)
                listed |= network_fsm.edges[i].from == s && network_fsm.edges[i].event == e;
            ASSERT_EQ(fsm_check(&network_fsm, s, e, &err) == 0, listed);
        }
}

TEST_VIRTUAL(all_interfaces_come_and_go)
{
    struct net_counters st;
    struct err err = ERR_INIT;
    struct fixture r;

    begin(ctx, &r);
    ASSERT_OK(attach(ctx, &r, &err), err);
    ASSERT_EQ(network_state(r.n), NETWORK_ATTACHED);
    ASSERT_OK(attach(ctx, &r, &err), err); /* once is enough */
    ASSERT_EQ(r.calls[OPEN], 1);
    ASSERT_EQ(network_count(r.n), 2);
    const struct net_iface *f = network_iface(r.n, 0); /* eth0 first */
    ASSERT_STR(f->name, "eth0");
    ASSERT_EQ(f->n_addresses, 1);
    ASSERT_STR(f->addresses[0].text, "10.1.0.2");
    ASSERT_OK(network_stats(ctx, r.n, 0, &st, &err), err);
    ASSERT_EQ(st.tx_bytes, 7);
    ASSERT_FAIL(network_stats(ctx, r.n, 2, &st, &err), err, ERR_NOT_FOUND);
    ASSERT_EQ(r.in_guest, 3);
    ASSERT_EQ(ledger_fixture_open(r.ledger), 4);
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    ASSERT_EQ(network_state(r.n), NETWORK_DETACHED);
    ASSERT_EQ(network_count(r.n), 0);
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    ASSERT_FAIL(attach(ctx, &r, &err), err, ERR_STATE);
    finish(&r, true);
}

TEST_VIRTUAL(without_a_namespace_there_is_nothing_to_do)
{
    struct err err = ERR_INIT;
    struct fixture r;

    begin(ctx, &r);
    ASSERT_OK(network_detach(ctx, r.n, &err), err); /* before anything */
    ASSERT_OK(network_attach(ctx, r.n, "", NULL, &err), err);
    ASSERT_EQ(network_state(r.n), NETWORK_ATTACHED);
    ASSERT_EQ(r.calls[OPEN], 0);
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    finish(&r, true);
}

/* --- faults --- */

TEST_VIRTUAL(an_attach_that_fails_at_any_step_leaves_nothing)
{
    static const enum step steps[] = { OPEN, READ, PLUG, NIC_ADD, GUEST_ADD };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        for (enum fault f = FAILS; f <= HANGS; f++)
            for (unsigned at = 0; at < (steps[i] == OPEN || steps[i] == READ ? 1 : 2); at++) {
                struct ctx limited = ctx_with_timeout(ctx, NS_PER_S);
                struct err err = ERR_INIT;
                struct fixture r;

                begin(ctx, &r);
                r.faults[steps[i]] = f;
                r.at[steps[i]] = at;
                ASSERT(attach(&limited, &r, &err) < 0);
                ASSERT_MSG_HAS(err.msg, "network of the pod");
                ASSERT_EQ(network_state(r.n), NETWORK_DETACHED);
                ASSERT_OK(network_detach(ctx, r.n, &err), err);
                finish(&r, true);
            }
}

TEST_VIRTUAL(a_detach_continues_after_a_failure_and_can_be_repeated)
{
    static const enum step steps[] = { UNPLUG, NIC_REMOVE };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        for (enum fault f = FAILS; f <= LOST; f++) {
            struct err err = ERR_INIT;
            struct fixture r;

            begin(ctx, &r);
            ASSERT_OK(attach(ctx, &r, &err), err);
            r.faults[steps[i]] = f;
            ASSERT_FAIL(network_detach(ctx, r.n, &err), err, ERR_INTERNAL);
            ASSERT_EQ(network_state(r.n), NETWORK_INVALID);
            ASSERT_FAIL(attach(ctx, &r, &err), err, ERR_STATE);
            ASSERT(!(r.plugged & 1)); /* the other one was not kept waiting */
            ASSERT(ledger_fixture_open(r.ledger) > 0);
            ASSERT_OK(network_detach(ctx, r.n, &err), err);
            ASSERT_EQ(network_state(r.n), NETWORK_DETACHED);
            finish(&r, true);
        }
}

TEST_VIRTUAL(a_guest_that_is_silent_or_gone_does_not_keep_the_host)
{
    for (enum fault f = FAILS; f <= HANGS; f++) {
        struct err err = ERR_INIT;
        struct fixture r;

        begin(ctx, &r);
        ASSERT_OK(attach(ctx, &r, &err), err);
        r.faults[GUEST_REMOVE] = f;
        struct ctx limited = ctx_with_timeout(ctx, NS_PER_S);
        ASSERT_OK(network_detach(&limited, r.n, &err), err);
        finish(&r, false);
    }
}

TEST_VIRTUAL(a_vm_that_died_leaves_only_the_machine_to_clean)
{
    struct err err = ERR_INIT;
    struct fixture r;

    begin(ctx, &r);
    ASSERT_OK(attach(ctx, &r, &err), err);
    r.vm_dead = true;
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    ASSERT_EQ(r.calls[NIC_REMOVE], 0);
    ASSERT_EQ(r.calls[GUEST_REMOVE], 0);
    finish(&r, false);
}

TEST_VIRTUAL(an_undo_that_fails_is_finished_by_detach)
{
    struct err err = ERR_INIT;
    struct fixture r;

    begin(ctx, &r);
    r.faults[GUEST_ADD] = FAILS;
    r.faults[UNPLUG] = FAILS;
    ASSERT(attach(ctx, &r, &err) < 0);
    ASSERT_EQ(network_state(r.n), NETWORK_INVALID);
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    finish(&r, true);
}

/* eth0 comes first; what is not ours is neither removed nor left to `lcow gc`. */
TEST_VIRTUAL(an_ingress_qdisc_of_another_program_is_left_alone)
{
    struct err err = ERR_INIT;
    struct fixture r;

    begin(ctx, &r);
    r.foreign_qdisc = true;
    ASSERT_FAIL(attach(ctx, &r, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "an ingress qdisc of another program");
    ASSERT_EQ(r.calls[UNPLUG], 1);
    ASSERT_STR(r.unplugged[0], "");
    ASSERT_EQ(r.ingress_before, 0);
    ASSERT_EQ(network_state(r.n), NETWORK_DETACHED);
    finish(&r, true);

    /* Ours are removed by name, and are on record until then. */
    begin(ctx, &r);
    err_clear(&err);
    ASSERT_OK(attach(ctx, &r, &err), err);
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    ASSERT_STR(r.unplugged[0], "net1");
    ASSERT_STR(r.unplugged[1], "eth0");
    ASSERT_EQ(r.ingress_before, 2);
    finish(&r, true);
}

/* --- ports --- */

/* Our end of a connection to the pod's port 8080. */
static struct stream *dial(struct ctx *ctx, struct fixture *r)
{
    int pair[2];

    ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    r->client = pair[1];
    waitq_wake_all(&r->dialled);
    return stream_from_fd(ctx->loop, pair[0]);
}

TEST_FIBER(the_vm_gets_vhost_net_where_the_host_has_it)
{
    for (int has = 0; has < 2; has++) {
        struct fixture r;
        struct err err = ERR_INIT;

        begin(ctx, &r);
        network_free(r.n);
        r.opts.vhost = true;
        r.vhost = has;
        r.n = network_new(&r.opts);
        ASSERT_OK(attach(ctx, &r, &err), err);
        ASSERT_EQ(r.vhost_nics, has ? 2 : 0);
        ASSERT(!has || !is_open(r.device)); /* the shim keeps no descriptor */
        ASSERT_OK(network_detach(ctx, r.n, &err), err);
        finish(&r, true);
    }
}

TEST_FIBER(a_port_is_forwarded_both_ways_and_half_closes)
{
    struct err err = ERR_INIT;
    char buf[4] = "";
    size_t n = 1;
    struct fixture r;

    begin(ctx, &r);
    r.forwards = true;
    ASSERT_OK(attach(ctx, &r, &err), err);
    AUTO(stream_free) struct stream *client = dial(ctx, &r);
    while (!r.guest_end)
        fiber_yield(ctx->loop);
    ASSERT_OK(stream_write_full(ctx, client, "abc", 3, &err), err);
    ASSERT_EQ(stream_shutdown(client, SHUT_WR), 0);
    ASSERT_OK(stream_read_full(ctx, r.guest_end, buf, 3, &err), err);
    ASSERT_STR(buf, "abc");
    ASSERT_OK(stream_read(ctx, r.guest_end, buf, 1, &n, &err), err);
    ASSERT_EQ(n, 0); /* the end came through, the way back is still open */
    ASSERT_OK(stream_write_full(ctx, r.guest_end, "def", 3, &err), err);
    ASSERT_OK(stream_read_full(ctx, client, buf, 3, &err), err);
    ASSERT_STR(buf, "def");
    stream_free(TAKE_PTR(r.guest_end));
    ASSERT_OK(stream_read(ctx, client, buf, 1, &n, &err), err);
    ASSERT_EQ(n, 0);
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    finish(&r, true);
}

TEST_FIBER(a_port_without_a_listener_ends_the_clients_connection)
{
    struct err err = ERR_INIT;
    char buf[1];
    size_t n = 1;
    struct fixture r;

    begin(ctx, &r);
    r.forwards = true;
    r.refuses = true;
    ASSERT_OK(attach(ctx, &r, &err), err);
    AUTO(stream_free) struct stream *client = dial(ctx, &r);
    if (stream_read(ctx, client, buf, 1, &n, &err) == 0)
        ASSERT_EQ(n, 0);
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    finish(&r, true);
}

TEST_FIBER(detach_ends_the_connections_that_are_open)
{
    struct err err = ERR_INIT;
    char buf[1];
    size_t n = 1;
    struct fixture r;

    begin(ctx, &r);
    r.forwards = true;
    ASSERT_OK(attach(ctx, &r, &err), err);
    AUTO(stream_free) struct stream *client = dial(ctx, &r);
    while (!r.guest_end)
        fiber_yield(ctx->loop);
    r.vm_dead = true; /* and no FIN or RST reports it */
    ASSERT_OK(network_detach(ctx, r.n, &err), err);
    if (stream_read(ctx, client, buf, 1, &n, &err) == 0)
        ASSERT_EQ(n, 0);
    stream_free(TAKE_PTR(r.guest_end));
    finish(&r, false);
}

/* --- another program continues it --- */

static bool is_port(void *arg, const char *name)
{
    return str_starts(name, "port");
}

/* What a client has: its end, and the guest's. */
struct ends {
    struct stream *client, *guest;
};

static void connect_ends(struct ctx *ctx, struct fixture *r, size_t capacity, struct ends *ret)
{
    struct connection *c = mem_new(struct connection);

    c->n = r->n;
    c->fd = -1;
    c->port = 8080;
    stream_pair(ctx->loop, capacity, &c->client, &ret->client);
    stream_pair(ctx->loop, capacity, &c->guest, &ret->guest);
    network_serve(c);
}

static void expect_read(struct ctx *ctx, struct stream *from, const char *text)
{
    struct err err = ERR_INIT;
    char buf[16] = "";
    size_t n = 1;

    if (!text) {
        ASSERT_OK(stream_read(ctx, from, buf, 1, &n, &err), err);
        ASSERT_EQ(n, 0);
        return;
    }
    ASSERT_OK(stream_read_full(ctx, from, buf, strlen(text), &err), err);
    ASSERT_STR(buf, text);
}

TEST_VIRTUAL(a_network_and_its_connections_are_continued)
{
    struct err err = ERR_INIT;
    struct ends half, full, back;
    struct network *new = NULL;
    struct connection *c;
    struct fixture r;

    saved_begin();
    begin(ctx, &r);
    r.forwards = true;
    ASSERT_OK(attach(ctx, &r, &err), err);
    connect_ends(ctx, &r, 64, &half);
    connect_ends(ctx, &r, 2, &full);
    ASSERT_EQ(stream_shutdown(half.client, SHUT_WR), 0);
    expect_read(ctx, half.guest, NULL);
    connect_ends(ctx, &r, 64, &back);
    ASSERT_EQ(stream_shutdown(back.guest, SHUT_WR), 0);
    expect_read(ctx, back.client, NULL);
    /* The guest does not read: two bytes are in its stream, two on their way. */
    ASSERT_OK(stream_write_full(ctx, full.client, "abcdef", 6, &err), err);
    ASSERT_OK(stream_write_full(ctx, full.guest, "uvwxyz", 6, &err), err); /* nor the client */
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    SAVED_PASS_ON(w, network_saved(w, 1, &r.opts, &r.n), loop_drop_fibers(ctx->loop, is_port, NULL),
                  s, network_saved(s, 1, &r.opts, &new), again,
                  network_saved(again, 1, &r.opts, &new));
    saved_end();
    r.n = new;
    ASSERT_EQ(network_state(new), NETWORK_ATTACHED);
    ASSERT(new->netns_fd >= 0 && new->forward.listener >= 0 && new->forward.hook >= 0);
    c = LIST_FIRST(&new->forward.all, struct connection, node);
    ASSERT(c->port == 8080 && c->in.ended && !c->out.ended);
    c = LIST_ENTRY(new->forward.all.prev, struct connection, node);
    ASSERT(!c->in.ended && c->out.ended && new->forward.connections == 3);
    ASSERT_EQ(network_count(new), 2);
    ASSERT_STR(network_iface(new, 0)->name, "eth0");
    ASSERT_STR(network_iface(new, 0)->addresses[0].text, "10.1.0.2");
    ASSERT_EQ(network_iface(new, 0)->addresses[0].prefix, 24);
    ASSERT_EQ(network_iface(new, 0)->mtu, 1400);
    ASSERT_EQ(network_iface(new, 0)->mac[5], 1);
    expect_read(ctx, full.guest, "abcdef");
    expect_read(ctx, full.client, "uvwxyz");
    ASSERT_OK(stream_write_full(ctx, half.guest, "def", 3, &err), err);
    expect_read(ctx, half.client, "def");
    stream_free(half.guest);
    expect_read(ctx, half.client, NULL);
    ASSERT_OK(network_detach(ctx, r.n, &err), err); /* ends the other */
    expect_read(ctx, full.client, NULL);
    stream_free(half.client);
    stream_free(back.client);
    stream_free(back.guest);
    stream_free(full.client);
    stream_free(full.guest);
    finish(&r, true);
}
