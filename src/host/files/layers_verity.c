/* layers_verity.c - the hash tree of dm-verity behind an image, as veritysetup writes it: a
 * superblock, then the levels, the smallest first. Levels are made from the data upwards, so each
 * is kept until the one above it is complete; 1 GiB of data has 8 MiB of hashes. */
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "host/files/layers_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096
#define PER_BLOCK (BLOCK / SHA256_BYTES)
#define LEVELS_MAX 10
#define SALT_MAX 256

struct level {
    uint8_t *data;
    uint64_t n; /* blocks */
};

static void digest(const void *salt, size_t salt_len, const uint8_t *block, uint8_t *out)
{
    struct sha256 s;
    char hex[SHA256_HEX_SIZE];

    sha256_init(&s);
    sha256_add(&s, salt, salt_len);
    sha256_add(&s, block, BLOCK);
    sha256_hex(&s, hex);
    for (int i = 0; i < SHA256_BYTES; i++) {
        const char byte[] = { hex[2 * i], hex[2 * i + 1], '\0' };

        out[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
}

/* The hashes of n blocks: of below, or of the file. */
static int hash_level(int fd, const void *salt, size_t salt_len, const uint8_t *below, uint64_t n,
                      struct level *ret, struct err *err)
{
    ret->n = (n + PER_BLOCK - 1) / PER_BLOCK;
    ret->data = mem_zalloc(ret->n * BLOCK);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t block[BLOCK];

        if (!below && pread(fd, block, BLOCK, (off_t)(i * BLOCK)) != BLOCK)
            return err_sys(err, errno ? errno : EIO, "read the image");
        digest(salt, salt_len, below ? below + i * BLOCK : block, ret->data + i * SHA256_BYTES);
    }
    return 0;
}

static int write_tree(int fd, const uint8_t *super, const struct level *levels, size_t n,
                      struct err *err)
{
    int r = lseek(fd, 0, SEEK_END) < 0 ? -errno : fd_write_full(fd, super, BLOCK);

    for (size_t i = n; i > 0 && r == 0; i--)
        r = fd_write_full(fd, levels[i - 1].data, levels[i - 1].n * BLOCK);
    return r < 0 ? err_sys(err, -r, "write the hash tree") : 0;
}

int layers_add_verity(int fd, const void *salt, size_t salt_len, char ret_root[65], struct err *err)
{
    uint8_t super[BLOCK] = "verity", top[SHA256_BYTES], block[BLOCK];
    struct level levels[LEVELS_MAX] = { 0 };
    off_t size = lseek(fd, 0, SEEK_END);
    size_t n_levels = 0;
    int r = 0;

    if (size <= 0 || size % BLOCK || salt_len > SALT_MAX)
        return err_set(err, ERR_INVALID, "an image of %lld bytes cannot be verified",
                       (long long)size);
    uint64_t n = (uint64_t)size / BLOCK;
    memcpy(super + 8, &(uint32_t[]){ 1, 1 }, 8); /* version, type */
    memcpy(super + 32, "sha256", 6);
    memcpy(super + 64, &(uint32_t[]){ BLOCK, BLOCK }, 8);
    memcpy(super + 72, &n, 8);
    memcpy(super + 80, &(uint16_t){ (uint16_t)salt_len }, 2);
    memcpy(super + 88, salt, salt_len);
    while (n > 1 && r == 0) {
        r = hash_level(fd, salt, salt_len, n_levels ? levels[n_levels - 1].data : NULL, n,
                       &levels[n_levels], err);
        n = levels[n_levels++].n;
    }
    if (r == 0 && n_levels == 0 && pread(fd, block, BLOCK, 0) != BLOCK)
        r = err_sys(err, errno, "read the image");
    if (r == 0)
        r = write_tree(fd, super, levels, n_levels, err);
    if (r == 0) {
        digest(salt, salt_len, n_levels ? levels[n_levels - 1].data : block, top);
        for (int i = 0; i < SHA256_BYTES; i++)
            snprintf(ret_root + 2 * i, 3, "%02x", top[i]);
    }
    for (size_t i = 0; i < n_levels; i++)
        free(levels[i].data);
    return r;
}
