/* nets.h - the networks of pods in the guest (docs/reference/gcs-protocol.md §4.7): namespaces by
 * name, each with loopback up, and the NICs that the host adds to them. A namespace is made when a
 * container or a NIC first names it, and removed with the last of them. Containers join it by path,
 * so that NICs may come before them, between their Create and Start, or later. All calls wait
 * unless said otherwise; changing calls on one namespace run one after another. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bridge_network;
struct ctx;
struct err;
struct nets;

#define NETS_MAX 256          /* namespaces */
#define NETS_NICS_MAX 64      /* of one */
#define NETS_FORWARDS_MAX 256 /* connections to pods' ports at a time */

struct nets *nets_new(void);
/* Namespaces are removed with their last container. */
void nets_free(struct nets *n);
AUTO_DEFINE(struct nets *, nets_free);
/* Makes one namespace ahead, in a template. The first pod of a clone then uses it. */
int nets_prepare(struct ctx *ctx, struct nets *n, struct err *err);

/* Waits for the device to appear, moves it to the namespace and configures it. A NIC without a name
 * comes from the original's host: then the kernel makes the routes to the addresses' subnets, else
 * only the given ones are made. Policy rules belong to the namespace and are removed with it.
 * ERR_EXISTS: the id is in use. A failure leaves the namespace as it was, with the device down. */
int nets_add(struct ctx *ctx, struct nets *n, const struct bridge_network *nic, struct err *err);
/* Takes the NIC down, so that the host can remove the device. Unknown names: success. */
int nets_remove(struct ctx *ctx, struct nets *n, const char *ns, const char *id, struct err *err);

/* For a container: makes the namespace if it is new and counts. *ret_path is for crun; caller frees
 * it. ERR_INVALID: invalid name. */
int nets_hold(struct ctx *ctx, struct nets *n, const char *ns, char **ret_path, struct err *err);
/* The same for the namespace of pid, a container's first process, which belongs to its user
 * namespace. ERR_STATE: another namespace has that name. */
int nets_adopt(struct ctx *ctx, struct nets *n, const char *ns, uint32_t pid, struct err *err);
/* Never waits. */
void nets_release(struct nets *n, const char *ns);
/* The lists of all its NICs, joined by commas; "" if there are none. Caller frees. Never waits. */
void nets_dns(const struct nets *n, const char *ns, char **ret_search, char **ret_servers);

/* Connects to a TCP port in the namespace: on loopback, then on its addresses of that family.
 * ERR_UNAVAILABLE: nothing listens there, ERR_NOT_FOUND: no such namespace. Caller closes *ret_fd,
 * which does not block. */
int nets_connect(struct ctx *ctx, struct nets *n, const char *ns, bool ipv6, uint16_t port,
                 int *ret_fd, struct err *err);
