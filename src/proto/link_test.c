#include "harness/tap.h"
#include "proto/link.h"
#include <errno.h>
#include <string.h>

TEST(preface_is_magic_token_and_port)
{
    struct link_preface p = { .port = 0x40000001 }, got;
    uint8_t bytes[LINK_PREFACE_BYTES];

    memset(p.token, 0xa5, sizeof(p.token));
    link_preface_encode(&p, bytes);
    ASSERT(memcmp(bytes, "LCW1\xa5", 5) == 0);
    ASSERT(memcmp(bytes + 35, "\xa5\x01\x00\x00\x40", 5) == 0);
    ASSERT_EQ(link_preface_decode(bytes, &got), 0);
    ASSERT_EQ(got.port, p.port);
    ASSERT(memcmp(got.token, p.token, sizeof(p.token)) == 0);
}

TEST(preface_with_another_magic_is_refused)
{
    struct link_preface p = { .port = 1 };
    uint8_t bytes[LINK_PREFACE_BYTES];

    for (size_t i = 0; i < 4; i++) {
        link_preface_encode(&p, bytes);
        bytes[i] ^= 0x20;
        ASSERT_EQ(link_preface_decode(bytes, &p), -EBADMSG);
    }
}

TEST(tokens_differ_in_any_bit)
{
    uint8_t a[LINK_TOKEN_BYTES], b[LINK_TOKEN_BYTES];

    for (size_t i = 0; i < sizeof(a); i++)
        a[i] = b[i] = (uint8_t)(i * 7);
    ASSERT(link_token_equal(a, b));
    for (size_t bit = 0; bit < sizeof(a) * 8; bit++) {
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ASSERT(!link_token_equal(a, b));
        b[bit / 8] = a[bit / 8];
    }
}

static void fill_boot(struct link_boot *b)
{
    b->wall_ns = 0x0102030405060708;
    for (size_t i = 0; i < sizeof(b->token); i++)
        b->token[i] = (uint8_t)(0x40 + i);
    for (size_t i = 0; i < sizeof(b->seed); i++)
        b->seed[i] = (uint8_t)(0x80 + i);
    b->log_level = 3;
    b->repeat = 1;
    b->cid = 0x11121314;
    b->vsock_port = 0x21222324;
}

TEST(boot_block_is_128_bytes_and_comes_back)
{
    struct link_boot b, got;
    uint8_t bytes[LINK_BOOT_BYTES];

    fill_boot(&b);
    memset(bytes, 0xee, sizeof(bytes));
    link_boot_encode(&b, bytes);
    ASSERT(memcmp(bytes, "LCWB\x01\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x40\x41", 18) == 0);
    ASSERT_EQ(bytes[48], 0x80);
    ASSERT_EQ(bytes[112], 3);
    ASSERT_EQ(bytes[113], 1);
    ASSERT(memcmp(bytes + 114, "\x14\x13\x12\x11\x24\x23\x22\x21", 8) == 0);
    for (size_t i = 122; i < sizeof(bytes); i++)
        ASSERT_EQ(bytes[i], 0);
    ASSERT_EQ(link_boot_decode(bytes, &got), 0);
    ASSERT_EQ(got.wall_ns, b.wall_ns);
    ASSERT(memcmp(got.token, b.token, sizeof(b.token)) == 0);
    ASSERT(memcmp(got.seed, b.seed, sizeof(b.seed)) == 0);
    ASSERT_EQ(got.log_level, 3);
    ASSERT_EQ(got.repeat, 1);
    ASSERT_EQ(got.cid, b.cid);
    ASSERT_EQ(got.vsock_port, b.vsock_port);
}

TEST(boot_block_with_another_magic_version_or_tail_is_refused)
{
    static const size_t offsets[] = { 0, 3, 4, 7, 122, 127 };
    struct link_boot b;
    uint8_t bytes[LINK_BOOT_BYTES];

    fill_boot(&b);
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        link_boot_encode(&b, bytes);
        bytes[offsets[i]] ^= 1;
        ASSERT_EQ(link_boot_decode(bytes, &b), -EBADMSG);
    }
}
