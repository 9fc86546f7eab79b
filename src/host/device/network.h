/* network.h - the network of one pod. Every interface that CNI put into the pod's network namespace
 * becomes a NIC of the VM with the same MAC and MTU, behind a tap that tc joins to the interface;
 * the guest gives it the same name, addresses, routes, neighbours and sysctls in the pod's
 * namespace there, and the last one brings the pod's policy rules. Who dials a TCP port on an
 * address of the namespace on the host, from within (containerd's port-forward dials 127.0.0.1),
 * reaches that port in the guest. docs/reference/host.md §13.
 *
 * Life: new -> attach (at the start of the pod's first container: CNI may come between Create and
 * Start) -> … -> detach -> free. attach is all or nothing: detach releases what a failed attach
 * leaves. detach succeeds if namespace, VM or guest is gone, continues after an error and can be
 * repeated until it succeeds. Gate: one changing call at a time; queries never wait. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct fsm;
struct guest;
struct ledger;
struct loop;
struct net_counters;
struct net_iface;
struct network;
struct saved;
struct vmm;

enum network_state {
    NETWORK_NONE,     /* before attach */
    NETWORK_ATTACHED, /* also with no interface at all */
    NETWORK_INVALID,  /* an attach or a detach failed: only detach is useful */
    NETWORK_DETACHED,
    NETWORK_STATE_COUNT
};
enum network_event {
    NETWORK_EV_ATTACHED,
    NETWORK_EV_ATTACH_FAILED,
    NETWORK_EV_DETACHED,
    NETWORK_EV_DETACH_FAILED,
    NETWORK_EV_COUNT
};
extern const struct fsm network_fsm;

struct network_opts {
    struct loop *loop;
    /* All borrowed; they outlive the network or, if the VM goes first, its detach. */
    struct vmm *vmm;
    struct guest *guest;
    struct ledger *ledger;
    /* The pod's namespace in the guest: the same text as document_opts.network_namespace of the
     * pod's containers (oci/document.h). The pod's id will do. Copied. */
    const char *guest_ns;
    unsigned queues; /* of a NIC, at most; 0: one */
    bool vhost;      /* NICs with vhost-net, where the host has it */
    /* Around each call to vmm and guest (vm_enter, vm_leave): never held while a path of a client
     * is opened. */
    int (*enter)(void *arg, const char *what, struct err *err);
    void (*leave)(void *arg);
    void *arg;
};
/* Caller frees. */
struct network *network_new(const struct network_opts *o);
/* Only in None or Detached, or when the machine's part was given to the ledger's reclaim. */
void network_free(struct network *n);
AUTO_DEFINE(struct network *, network_free);

/* For the guest's resolv.conf where no file of the host is mounted. NULL: none. Borrowed. */
struct network_dns {
    const char *const *servers;
    const char *const *search; /* NULL-terminated, as is the other */
};

/* Waits. netns: path of the pod's namespace, or /proc/ANCHOR/ns/net for a container that got one of
 * its own (ctr run --cni); one with nothing but lo: loopback only. NULL or "": there is none, the
 * pod has loopback only. Attached: success at once.
 * ERR_INVALID: netns is not a network namespace, ERR_STATE: it is the host's own (net-host), or an
 * interface cannot be handed on (point to point without Ethernet, an ingress qdisc that lcow
 * did not make). dns may be NULL. */
int network_attach(struct ctx *ctx, struct network *n, const char *netns,
                   const struct network_dns *dns, struct err *err);
/* Waits. In order: guest, NIC, tc, tap. None and Detached: success. */
int network_detach(struct ctx *ctx, struct network *n, struct err *err);

/* Queries. */
enum network_state network_state(const struct network *n);
size_t network_count(const struct network *n); /* interfaces handed on */
/* i < network_count. Borrowed until detach. */
const struct net_iface *network_iface(const struct network *n, size_t i);
/* Waits (a thread asks the kernel), as the pod sees it: rx is what it received. */
int network_stats(struct ctx *ctx, struct network *n, size_t i, struct net_counters *ret,
                  struct err *err);

/* network_save.c: one that is inside no call, with its connections. NULL: none. o: as for
 * network_new. */
void network_saved(struct saved *s, uint32_t field, const struct network_opts *o,
                   struct network **n);
