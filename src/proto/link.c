#include "proto/link.h"
#include <endian.h>
#include <errno.h>
#include <string.h>

#define PREFACE_MAGIC "LCW1"
#define BOOT_MAGIC "LCWB"
#define BOOT_VERSION 1

/* As they are sent: numbers are little-endian. */
struct preface {
    char magic[4];
    uint8_t token[LINK_TOKEN_BYTES];
    uint32_t port;
} __attribute__((packed));
struct boot {
    char magic[4];
    uint32_t version;
    uint64_t wall_ns;
    uint8_t token[LINK_TOKEN_BYTES], seed[LINK_SEED_BYTES];
    uint8_t log_level, repeat;
    uint32_t cid, vsock_port;
} __attribute__((packed));
_Static_assert(sizeof(struct preface) == LINK_PREFACE_BYTES, "the preface is all of it");
_Static_assert(sizeof(struct boot) <= LINK_BOOT_BYTES, "the boot block has room");

void link_preface_encode(const struct link_preface *preface, uint8_t out[LINK_PREFACE_BYTES])
{
    struct preface p = { .magic = PREFACE_MAGIC, .port = htole32(preface->port) };

    memcpy(p.token, preface->token, LINK_TOKEN_BYTES);
    memcpy(out, &p, sizeof(p));
}

int link_preface_decode(const uint8_t in[LINK_PREFACE_BYTES], struct link_preface *ret)
{
    struct preface p;

    memcpy(&p, in, sizeof(p));
    if (memcmp(p.magic, PREFACE_MAGIC, sizeof(p.magic)) != 0)
        return -EBADMSG;
    memcpy(ret->token, p.token, LINK_TOKEN_BYTES);
    ret->port = le32toh(p.port);
    return 0;
}

int link_token_equal(const uint8_t a[LINK_TOKEN_BYTES], const uint8_t b[LINK_TOKEN_BYTES])
{
    volatile uint8_t different = 0; /* volatile, so that the compiler cannot return early */

    for (size_t i = 0; i < LINK_TOKEN_BYTES; i++)
        different |= a[i] ^ b[i];
    return different == 0;
}

void link_boot_encode(const struct link_boot *b, uint8_t out[LINK_BOOT_BYTES])
{
    struct boot w = { .magic = BOOT_MAGIC,
                      .version = htole32(BOOT_VERSION),
                      .wall_ns = htole64(b->wall_ns),
                      .log_level = b->log_level,
                      .repeat = b->repeat,
                      .cid = htole32(b->cid),
                      .vsock_port = htole32(b->vsock_port) };

    memcpy(w.token, b->token, LINK_TOKEN_BYTES);
    memcpy(w.seed, b->seed, LINK_SEED_BYTES);
    memset(out, 0, LINK_BOOT_BYTES);
    memcpy(out, &w, sizeof(w));
}

int link_boot_decode(const uint8_t in[LINK_BOOT_BYTES], struct link_boot *ret)
{
    struct boot w;

    memcpy(&w, in, sizeof(w));
    if (memcmp(w.magic, BOOT_MAGIC, sizeof(w.magic)) != 0 || le32toh(w.version) != BOOT_VERSION)
        return -EBADMSG;
    for (size_t i = sizeof(w); i < LINK_BOOT_BYTES; i++)
        if (in[i] != 0)
            return -EBADMSG; /* not zero: a later format with the same version number */
    *ret = (struct link_boot){ .wall_ns = le64toh(w.wall_ns),
                               .log_level = w.log_level,
                               .repeat = w.repeat,
                               .cid = le32toh(w.cid),
                               .vsock_port = le32toh(w.vsock_port) };
    memcpy(ret->token, w.token, LINK_TOKEN_BYTES);
    memcpy(ret->seed, w.seed, LINK_SEED_BYTES);
    return 0;
}
