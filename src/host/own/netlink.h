/* netlink.h - deleting an interface in another network namespace: all the rtnetlink that taking
 * things back needs. */
#pragma once
struct ctx;
struct err;

/* Waits (a thread enters the namespace). 1 deleted, 0 there was none, -1 with err. */
int netlink_delete_link(struct ctx *ctx, const char *netns_path, const char *ifname,
                        struct err *err);
