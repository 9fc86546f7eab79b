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
/* The original guest passes over all from source on. */
struct guest_route {
    const char *destination; /* "10.0.0.0/8"; "0.0.0.0/0", "::/0" for the default */
    const char *next_hop, *source;
    uint32_t metric, mtu; /* 0: as usual */
    bool on_link;         /* the next hop need not be in a known net */
    bool link_scope;      /* the destination is on the link itself */
};
