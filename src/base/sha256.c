#include "base/sha256.h"
#include "base/fd.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 65536 /* also of a sparse file */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t ror(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static void compress(uint32_t state[8], const uint8_t *p)
{
    uint32_t w[64], v[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] = w[i - 16] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) + w[i - 7] +
               (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof(v));
    for (int i = 0; i < 64; i++) { /* instead of moving a to h, the place of a moves */
        uint32_t a = v[-i & 7], b = v[(1 - i) & 7], c = v[(2 - i) & 7];
        uint32_t e = v[(4 - i) & 7], f = v[(5 - i) & 7], g = v[(6 - i) & 7], *h = &v[(7 - i) & 7];

        *h += (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
        v[(3 - i) & 7] += *h;
        *h += (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void sha256_init(struct sha256 *s)
{
    *s = (struct sha256){ .state = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                     0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
}

void sha256_add(struct sha256 *s, const void *data, size_t len)
{
    for (const uint8_t *p = data; len > 0;) {
        size_t have = s->total % 64, n = len < 64 - have ? len : 64 - have;

        memcpy(s->block + have, p, n);
        if (have + n == 64)
            compress(s->state, s->block);
        s->total += n;
        p += n;
        len -= n;
    }
}

void sha256_hex(struct sha256 *s, char out[SHA256_HEX_SIZE])
{
    static const uint8_t end[64] = { 0x80 };
    uint64_t bits = s->total * 8;
    size_t have = s->total % 64;
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, end, (have < 56 ? 56 : 120) - have);
    sha256_add(s, length, sizeof(length));
    for (int i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", s->state[i]);
}

static int sum_file(const char *path, bool sparse, char out[SHA256_HEX_SIZE])
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    AUTO_FREE uint8_t *buf = mem_alloc(BLOCK);
    uint64_t at = 0;
    struct sha256 s;
    ssize_t n;

    if (fd < 0)
        return -errno;
    sha256_init(&s);
    for (; (n = fd_read_full(fd, buf, BLOCK)) > 0; at += (uint64_t)n) {
        if (sparse && buf[0] == 0 && memcmp(buf, buf + 1, (size_t)n - 1) == 0)
            continue;
        if (sparse)
            sha256_add(&s, &at, sizeof(at));
        sha256_add(&s, buf, (size_t)n);
    }
    if (n < 0)
        return (int)n;
    if (sparse)
        sha256_add(&s, &at, sizeof(at));
    sha256_hex(&s, out);
    return 0;
}

int sha256_file(const char *path, char out[SHA256_HEX_SIZE])
{
    return sum_file(path, false, out);
}

int sha256_sparse_file(const char *path, char out[SHA256_HEX_SIZE])
{
    return sum_file(path, true, out);
}

void sha256_of(const void *data, size_t len, char out[SHA256_HEX_SIZE])
{
    struct sha256 s;

    sha256_init(&s);
    sha256_add(&s, data, len);
    sha256_hex(&s, out);
}
