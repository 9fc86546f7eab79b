/* settings.h - what the guest is given, as both the guest seam (host/bridge/guest.h) and the wire
 * (proto/bridge.h) have it: plain structs. Strings are borrowed. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* A disk of the VM, found by controller and LUN, to be mounted in the guest. */
struct guest_disk {
    uint8_t controller, lun;
    uint64_t partition;
    const char *mount_path;
    bool read_only, encrypted, ensure_filesystem, block_device;
    bool verity;                /* the hashes are where the disk's own superblock of verity says */
    const char *root_hash;      /* of verity, hex; NULL or "": found. The original ignores both */
    const char *filesystem;     /* NULL or "": found */
    const char *const *options; /* NULL-terminated; may be NULL */
    /* lcow's own: its files become this group's, as the kubelet does for an fsGroup. */
    uint32_t fs_group;
    const char *fs_group_policy; /* "Always", "OnRootMismatch"; NULL or "": no group is set */
};
struct guest_share {
    const char *name, *mount_path;
    bool read_only;
};

/* Texts as inet_pton takes them; "" where there is none. */
struct guest_ip {
    const char *address;
    uint8_t prefix;
};
/* The original guest ignores all fields from source on. */
struct guest_route {
    const char *destination; /* "10.0.0.0/8"; "0.0.0.0/0", "::/0" for the default */
    const char *next_hop, *source;
    uint32_t metric, mtu; /* 0: the default */
    bool on_link;         /* the next hop need not be in a known net */
    bool link_scope;      /* the destination is on the link itself */
    uint32_t table;       /* 0: main */
    /* One with several next hops is as many of these in a row: all of them have a weight, the first
     * says how many there are. */
    const char *dev;       /* the next hop's, of those that the pod has by then */
    uint32_t weight, hops; /* 1 to 256 */
};
/* A policy rule: what matches all that is named is looked up in the table. */
struct guest_rule {
    const char *source, *destination; /* "10.0.0.0/8" */
    const char *iif, *oif;            /* names of interfaces */
    uint32_t priority, table, mark, mask;
    bool ipv6, invert;
};
