#include "proto/link.h"
#include <errno.h>
#include <string.h>

static const char preface_magic[4] = { 'L', 'C', 'W', '1' };
static const char boot_magic[4] = { 'L', 'C', 'W', 'B' };
#define BOOT_VERSION 1

static uint8_t *put(uint8_t *p, const void *data, size_t len)
{
    memcpy(p, data, len);
    return p + len;
}

static uint8_t *put_le(uint8_t *p, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        *p++ = (uint8_t)(value >> (8 * i));
    return p;
}

static uint64_t get_le(const uint8_t *p, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | p[i];
    return value;
}

void link_preface_encode(const struct link_preface *preface, uint8_t out[LINK_PREFACE_BYTES])
{
    uint8_t *p = put(out, preface_magic, sizeof(preface_magic));

    p = put(p, preface->token, LINK_TOKEN_BYTES);
    put_le(p, preface->port, 4);
}

int link_preface_decode(const uint8_t in[LINK_PREFACE_BYTES], struct link_preface *ret)
{
    if (memcmp(in, preface_magic, sizeof(preface_magic)) != 0)
        return -EBADMSG;
    memcpy(ret->token, in + 4, LINK_TOKEN_BYTES);
    ret->port = (uint32_t)get_le(in + 4 + LINK_TOKEN_BYTES, 4);
    return 0;
}

int link_token_equal(const uint8_t a[LINK_TOKEN_BYTES], const uint8_t b[LINK_TOKEN_BYTES])
{
    volatile uint8_t different = 0; /* so that no compiler finds a reason to stop early */

    for (size_t i = 0; i < LINK_TOKEN_BYTES; i++)
        different |= a[i] ^ b[i];
    return different == 0;
}

#define BOOT_USED_BYTES (4 + 4 + 8 + LINK_TOKEN_BYTES + LINK_SEED_BYTES + 2)
_Static_assert(BOOT_USED_BYTES <= LINK_BOOT_BYTES, "the boot block has room");
_Static_assert(4 + LINK_TOKEN_BYTES + 4 == LINK_PREFACE_BYTES, "the preface has no gaps");

void link_boot_encode(const struct link_boot *b, uint8_t out[LINK_BOOT_BYTES])
{
    uint8_t *p = put(out, boot_magic, sizeof(boot_magic));

    p = put_le(p, BOOT_VERSION, 4);
    p = put_le(p, b->wall_ns, 8);
    p = put(p, b->token, LINK_TOKEN_BYTES);
    p = put(p, b->seed, LINK_SEED_BYTES);
    *p++ = b->log_level;
    *p++ = b->repeat;
    memset(p, 0, (size_t)(out + LINK_BOOT_BYTES - p));
}

int link_boot_decode(const uint8_t in[LINK_BOOT_BYTES], struct link_boot *ret)
{
    if (memcmp(in, boot_magic, sizeof(boot_magic)) != 0 || get_le(in + 4, 4) != BOOT_VERSION)
        return -EBADMSG;
    for (size_t i = BOOT_USED_BYTES; i < LINK_BOOT_BYTES; i++)
        if (in[i] != 0)
            return -EBADMSG; /* a later version that forgot to say so */
    ret->wall_ns = get_le(in + 8, 8);
    memcpy(ret->token, in + 16, LINK_TOKEN_BYTES);
    memcpy(ret->seed, in + 16 + LINK_TOKEN_BYTES, LINK_SEED_BYTES);
    ret->log_level = in[16 + LINK_TOKEN_BYTES + LINK_SEED_BYTES];
    ret->repeat = in[16 + LINK_TOKEN_BYTES + LINK_SEED_BYTES + 1];
    return 0;
}
