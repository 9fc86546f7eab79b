/* network_save.c - the network of a pod. Not saved: routes, neighbours, rules and sysctls, which
 * the guest was given and nothing reads again; taps, which are QEMU's; the options, which the pod
 * gives again. */
#include "base/saved.h"
#include "base/stream.h"
#include "host/device/network_priv.h"

#include <stdlib.h>

static void address_saved(struct saved *s, struct net_address *a)
{
    saved_text(s, 1, a->text, sizeof(a->text));
    saved_u8(s, 2, &a->prefix);
}

static void iface_saved(struct saved *s, struct net_iface *f)
{
    saved_text(s, 1, f->name, sizeof(f->name));
    saved_bytes(s, 2, f->mac, sizeof(f->mac));
    saved_u32(s, 3, &f->mtu);
    f->n_addresses = saved_count(s, 4, f->n_addresses);
    if (saved_reads(s) && f->n_addresses > 0)
        f->addresses = mem_zalloc(f->n_addresses * sizeof(*f->addresses));
    for (size_t i = 0; i < f->n_addresses && saved_open(s, 4); i++) {
        address_saved(s, &f->addresses[i]);
        saved_close(s);
    }
}

static void config_saved(struct saved *s, struct net_config *c)
{
    c->n = saved_count(s, 1, c->n);
    if (c->n > NET_MAX_IFACES) {
        saved_fail(s, "%zu interfaces are more than %d", c->n, NET_MAX_IFACES);
        c->n = 0;
    }
    for (size_t i = 0; i < c->n && saved_open(s, 1); i++) {
        iface_saved(s, &c->ifaces[i]);
        saved_close(s);
    }
}

static void nic_saved(struct saved *s, struct network_nic *nic, struct net_config *c)
{
    uint64_t iface = nic->iface ? (uint64_t)(nic->iface - c->ifaces) : UINT64_MAX;

    saved_u64(s, 1, &iface);
    saved_str(s, 2, &nic->id);
    saved_text(s, 3, nic->tap, sizeof(nic->tap));
    saved_u64(s, 4, &nic->iface_record);
    saved_u64(s, 5, &nic->queue_record);
    saved_bool(s, 6, &nic->in_vm);
    saved_bool(s, 7, &nic->in_guest);
    if (!nic->id || !c || iface >= c->n)
        saved_fail(s, "a NIC has no interface");
    else
        nic->iface = &c->ifaces[iface];
}

static void nics_saved(struct saved *s, struct network *n)
{
    n->n_nics = saved_count(s, 6, n->n_nics);
    if (saved_reads(s))
        n->nics = mem_zalloc((n->n_nics + 1) * sizeof(*n->nics));
    for (size_t i = 0; i < n->n_nics && saved_open(s, 6); i++) {
        nic_saved(s, &n->nics[i], n->config);
        saved_close(s);
    }
}

static void connection_saved(struct saved *s, struct network *n, struct connection *c)
{
    if (!saved_reads(s) && !c->client)
        saved_fail(s, "a connection to port %u is being opened", c->port);
    saved_u16(s, 1, &c->port);
    saved_stream(s, 2, "a client of a port", n->o.loop, &c->client);
    saved_stream(s, 3, "a port in the guest", n->o.loop, &c->guest);
    saved_bool(s, 4, &c->in.ended);
    saved_sbuf(s, 5, &c->in.pending);
    saved_bool(s, 6, &c->out.ended);
    saved_sbuf(s, 7, &c->out.pending);
    if (!c->client || !c->guest)
        saved_fail(s, "a connection to port %u has one side only", c->port);
}

static void write_connections(struct saved *s, struct network *n)
{
    LIST_FOR (struct connection, c, &n->forward.all, node) {
        (void)saved_open(s, 7);
        connection_saved(s, n, c);
        saved_close(s);
    }
}

static void read_connections(struct saved *s, struct network *n)
{
    struct err ignored = ERR_INIT;

    for (size_t i = saved_count(s, 7, 0); i > 0 && saved_open(s, 7); i--) {
        struct connection *c = mem_new(struct connection);

        c->n = n;
        c->fd = -1;
        connection_saved(s, n, c);
        saved_close(s);
        if (saved_check(s, &ignored) == 0)
            network_serve(c);
    }
}

static void fields(struct saved *s, struct network *n)
{
    SAVED_ENUM(s, 1, n->state, NETWORK_STATE_COUNT);
    saved_fd(s, 2, "the pod's network namespace", &n->netns_fd);
    saved_fd(s, 3, "the listener for the pod's ports", &n->forward.listener);
    saved_fd(s, 4, "the pod's ports", &n->forward.hook);
    if ((n->config || saved_reads(s)) && saved_open(s, 5)) {
        if (saved_reads(s))
            n->config = mem_new(struct net_config);
        config_saved(s, n->config);
        saved_close(s);
    }
    nics_saved(s, n);
}

void network_saved(struct saved *s, uint32_t field, const struct network_opts *o,
                   struct network **n)
{
    struct err ignored = ERR_INIT;

    if ((!saved_reads(s) && !*n) || !saved_open(s, field))
        return;
    if (saved_reads(s))
        *n = network_new(o);
    fields(s, *n);
    if (!saved_reads(s))
        write_connections(s, *n);
    else if (saved_check(s, &ignored) == 0 && (*n)->forward.listener >= 0) {
        network_listen(*n);
        read_connections(s, *n);
    }
    saved_close(s);
}
