/* netlink.h - taking back what was made in another network namespace: all the rtnetlink that the
 * ledger needs. A namespace is named "path#inode", as netlink_place writes it: a path may lead to
 * another namespace by now (/proc/PID/ns/net), which is then left alone. Without "#inode" the path
 * alone counts. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;

/* "path#inode ifname", for the ledger. Caller frees. */
char *netlink_place(const char *netns_path, uint64_t inode, const char *ifname);

enum netlink_thing {
    NETLINK_LINK,    /* the interface itself */
    NETLINK_INGRESS, /* its queue of what comes in, with the filters there */
};
/* Waits (a thread enters the namespace). 1 taken back, or there to be taken back if dry_run; 0
 * there was none; -1 with err. */
int netlink_take_back(struct ctx *ctx, enum netlink_thing thing, const char *place, bool dry_run,
                      struct err *err);
