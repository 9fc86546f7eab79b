/* network_priv.h - for network*.c and their tests. */
#pragma once
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "base/gate.h"
#include "host/device/network.h"
#include "host/net/net.h"

enum network_event {
    NETWORK_EV_ATTACHED,
    NETWORK_EV_ATTACH_FAILED,
    NETWORK_EV_DETACHED,
    NETWORK_EV_DETACH_FAILED,
    NETWORK_EV_COUNT
};

/* One interface and how far it has come. A step is noted before it is asked for. */
struct network_nic {
    const struct net_iface *iface; /* borrows from the config */
    char *id;                      /* unique among all NICs of all VMs */
    char tap[NET_NAME_BYTES];
    uint64_t link_note, queue_note; /* 0: none */
    bool in_vm, in_guest;
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
        struct cancel stop;
        struct group fibers;
        struct waitq changed; /* a connection has ended */
    } forward;
};

int network_enter(const struct network *n, const char *what, struct err *err);
void network_leave(const struct network *n);

/* network_forward.c. A machine that cannot is said in the log. */
void network_forward_init(struct network *n);
void network_forward_start(struct ctx *ctx, struct network *n);
/* Waits until its connections have ended; they are ended. Repeatable. */
int network_forward_stop(struct ctx *ctx, struct network *n, struct err *err);
