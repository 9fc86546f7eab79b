/* network_priv.h - the inside of a pod's network, for network*.c and its tests. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "host/device/network.h"
#include "host/net/net.h"

struct stream;

/* One interface and how far it has come. Each step is set before it is asked for, so that it is
 * undone even if the answer is lost, and cleared when it is undone. */
struct network_nic {
    const struct net_iface *iface; /* borrows from the config */
    char *id;                      /* unique among all NICs of all VMs */
    char tap[NET_NAME_BYTES];
    uint64_t iface_record, queue_record; /* 0: none */
    bool in_vm, in_guest;
    unsigned queues; /* for the log, as is vhost */
    bool vhost;
};

struct network {
    struct network_opts o;
    char *guest_ns, *netns;
    unsigned state; /* enum network_state */
    struct gate gate;
    int netns_fd; /* -1: none */
    uint64_t inode;
    struct net_config *config;
    struct network_nic *nics;
    size_t n_nics;
    struct {
        bool on;
        int listener, hook;
        unsigned connections;
        struct list all; /* of them */
        struct cancel stop;
        struct fibers fibers;
        struct waitq changed; /* a connection has ended */
    } forward;
};

/* A connection from the pod's namespace on the host to a port in the guest. */
struct connection {
    struct list node; /* of forward.all */
    struct network *n;
    int fd; /* until it is a stream */
    bool ipv6;
    uint16_t port;
    struct stream *client, *guest; /* both or none: not yet connected */
    struct way {
        struct connection *c;
        struct stream *from, *to;
        struct sbuf pending; /* read, not written yet */
        bool ended;
    } in, out;
    struct fibers ways;
};
/* Starts the fiber that accepts, with the two descriptors of forward; that of a connection, which
 * takes c. */
void network_listen(struct network *n);
void network_serve(struct connection *c);
