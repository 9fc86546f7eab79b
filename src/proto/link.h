/* link.h - the two fixed records of the link between host and guest (docs/design.md §2): the
 * preface that opens each dialled connection, and the block the agent reads from fw_cfg. Pure
 * codecs. All numbers little endian. */
#pragma once
#include <stdint.h>

#define LINK_TOKEN_BYTES 32
#define LINK_SEED_BYTES 64

#define LINK_HOST_ADDR "169.254.64.1"
#define LINK_GUEST_ADDR "169.254.64.2"
#define LINK_PREFIX_LEN 30
#define LINK_TCP_PORT 1 /* one listener; the LCOW port is in the preface */
#define LINK_HOST_MAC "02:6c:63:6f:77:01"
#define LINK_GUEST_MAC "02:6c:63:6f:77:02"

/* LCOW's port numbers (docs/reference/gcs-protocol.md §1.1). */
#define PORT_ENTROPY 1u
#define PORT_LOG 109u
#define PORT_BRIDGE 0x40000000u
#define PORT_STDIO_FIRST 0x40000001u

struct link_preface {
    uint8_t token[LINK_TOKEN_BYTES];
    uint32_t port;
};
#define LINK_PREFACE_BYTES 40 /* magic "LCW1", token, port */
void link_preface_encode(const struct link_preface *p, uint8_t out[LINK_PREFACE_BYTES]);
/* 0, or -EBADMSG if the magic is wrong. */
int link_preface_decode(const uint8_t in[LINK_PREFACE_BYTES], struct link_preface *ret);
/* Compares in constant time. */
int link_token_equal(const uint8_t a[LINK_TOKEN_BYTES], const uint8_t b[LINK_TOKEN_BYTES]);

/* The file opt/lcow/boot in fw_cfg: same size always, so that a template's clones can have their
 * own. The wall clock is the host's at the moment the VMM was spawned. */
struct link_boot {
    uint64_t wall_ns;
    uint8_t token[LINK_TOKEN_BYTES];
    uint8_t seed[LINK_SEED_BYTES];
    /* How much the agent logs, enum log_level + 1: a clone has its template's command line. 0: as
     * that says. */
    uint8_t log_level;
    /* The clone that proves a template: its agent sends what the template has logged. Other clones
     * do not send it again. */
    uint8_t repeat;
    /* Over kernel vsock: the guest's own CID, which a clone learns a moment after its start, and
     * the host's port for all connections. 0: over TCP. */
    uint32_t cid, vsock_port;
};
/* magic "LCWB", u32 version 1, wall_ns, token, seed, level, repeat, u32 CID, u32 port, zeros */
#define LINK_BOOT_BYTES 128
#define LINK_BOOT_FILE "opt/lcow/boot"
void link_boot_encode(const struct link_boot *b, uint8_t out[LINK_BOOT_BYTES]);
int link_boot_decode(const uint8_t in[LINK_BOOT_BYTES], struct link_boot *ret);
