/* sha256.h - SHA-256 (FIPS 180-4): the image against its manifest, names of sockets. Only
 * those of files touch anything but memory. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32
#define SHA256_HEX_SIZE 65

struct sha256 {
    uint32_t state[8];
    uint64_t total;
    uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t len);
void sha256_hex(struct sha256 *s, char out[SHA256_HEX_SIZE]); /* ends it */

/* All at once. */
void sha256_of(const void *data, size_t len, char out[SHA256_HEX_SIZE]);

/* Of a whole file, lower case. Blocks while reading. 0 or -errno. */
int sha256_file(const char *path, char out[SHA256_HEX_SIZE]);
/* The same for a file that is mostly zero, such as a VM's memory: hashes each 64 KiB block that is
 * not all zero, with its offset, and the length. Holes in the file do not change the result. */
int sha256_sparse_file(const char *path, char out[SHA256_HEX_SIZE]);
