/* rtnl.h - the rtnetlink messages of interfaces, addresses, routes, rules, neighbours and tc that a
 * pod's network needs, on both sides: bytes <-> structs, no I/O. Reading: 0, or -EBADMSG for an
 * invalid message; unknown attributes are ignored. */
#pragma once
#include "base/netlink.h"

#define RTNL_NAME_BYTES 16 /* IFNAMSIZ */

/* An address of either family; family 0: none. */
struct rtnl_ip {
    uint8_t family; /* AF_INET, AF_INET6 */
    uint8_t bytes[16];
};
#define RTNL_IP_TEXT 46
/* "" for none. */
void rtnl_ip_text(const struct rtnl_ip *ip, char ret[RTNL_IP_TEXT]);
/* "" means no address. 0 or -EINVAL. */
int rtnl_ip_parse(const char *text, struct rtnl_ip *ret);
/* "10.0.0.0/8". 0 or -EINVAL. */
int rtnl_prefix_parse(const char *text, struct rtnl_ip *ret, uint8_t *ret_prefix);

struct rtnl_counters {
    uint64_t rx_packets, tx_packets, rx_bytes, tx_bytes;
    uint64_t rx_errors, tx_errors, rx_dropped, tx_dropped;
};

struct rtnl_iface {
    int index;
    uint16_t type;                                     /* ARPHRD_… */
    uint32_t flags;                                    /* IFF_… */
    char name[RTNL_NAME_BYTES], kind[RTNL_NAME_BYTES]; /* kind "": a device */
    bool has_mac;                                      /* of six bytes */
    uint8_t mac[6];
    uint32_t mtu;
    int master;     /* 0: none */
    int link;       /* the interface that it is on top of, in the same namespace; 0: none */
    uint16_t mode;  /* of an ipvlan: IPVLAN_MODE_… */
    char qdisc[32]; /* the one for sending */
    struct rtnl_counters counters;
};
void rtnl_get_ifaces(struct nl_msg *m);
int rtnl_read_iface(const uint8_t *body, size_t len, struct rtnl_iface *ret);

/* Changes what is named; the rest stays. */
struct rtnl_iface_change {
    int index;
    bool up, down;
    uint32_t mtu;     /* 0: leave */
    const char *name; /* NULL: leave */
    int netns;        /* fd to move it to; -1: leave */
};
void rtnl_set_iface(struct nl_msg *m, const struct rtnl_iface_change *c);

struct rtnl_address {
    int index;
    struct rtnl_ip ip;
    uint8_t prefix;
    uint32_t flags; /* IFA_F_… */
};
void rtnl_get_addresses(struct nl_msg *m);
int rtnl_read_address(const uint8_t *body, size_t len, struct rtnl_address *ret);
void rtnl_add_address(struct nl_msg *m, const struct rtnl_address *a);

struct rtnl_route {
    uint8_t family, prefix, type, protocol, scope;
    uint32_t table, flags; /* RTM_F_…, RTNH_F_…; table 0: main */
    struct rtnl_ip destination, gateway, source;
    int oif;
    uint32_t metric, mtu;
    bool multipath;      /* gateway, oif and flags are the next hop's, by rtnl_next_hop */
    unsigned weight;     /* of a next hop, 1 to 256 */
    struct nl_iter hops; /* borrowed from the message that was read */
    const char *odd;     /* NULL, or a description of what is unsupported in it */
};
void rtnl_get_routes(struct nl_msg *m);
int rtnl_read_route(const uint8_t *body, size_t len, struct rtnl_route *ret);
/* Of a route with several, the next one; false after the last. */
bool rtnl_next_hop(struct rtnl_route *r);
/* One with several next hops has neither gateway nor oif; rtnl_put_hop follows for each of them,
 * between nl_nest(m, RTA_MULTIPATH) and its end. */
void rtnl_add_route(struct nl_msg *m, const struct rtnl_route *r);
void rtnl_put_hop(struct nl_msg *m, const struct rtnl_route *hop);

/* A policy rule: what matches is looked up in a table. */
struct rtnl_rule {
    uint8_t family, from_prefix, to_prefix;
    struct rtnl_ip from, to;
    char iif[RTNL_NAME_BYTES], oif[RTNL_NAME_BYTES];
    uint32_t priority, table, mark, mask;
    bool invert;
    bool kernels; /* one of those that each namespace begins with */
    bool odd;     /* it has an unsupported action or selector, which is not read */
};
void rtnl_get_rules(struct nl_msg *m);
int rtnl_read_rule(const uint8_t *body, size_t len, struct rtnl_rule *ret);
void rtnl_add_rule(struct nl_msg *m, const struct rtnl_rule *r);

struct rtnl_neighbour {
    int index;
    struct rtnl_ip ip;
    uint16_t nud;  /* NUD_… */
    uint8_t flags; /* NTF_… */
    bool has_mac;
    uint8_t mac[6];
};
void rtnl_get_neighbours(struct nl_msg *m);
int rtnl_read_neighbour(const uint8_t *body, size_t len, struct rtnl_neighbour *ret);
/* Permanent; replaces an existing one. */
void rtnl_set_neighbour(struct nl_msg *m, const struct rtnl_neighbour *n);

/* tc: the queue of what comes in, and "all that comes in at index leaves by to". */
void rtnl_add_ingress(struct nl_msg *m, int index);
void rtnl_delete_ingress(struct nl_msg *m, int index);
void rtnl_redirect(struct nl_msg *m, int index, int to);
/* Has priority over that: frames of this protocol (ETH_P_8021Q, ETH_P_8021AD) stay, for a VLAN on
 * top. */
void rtnl_leave_vlan(struct nl_msg *m, int index, uint16_t protocol);
