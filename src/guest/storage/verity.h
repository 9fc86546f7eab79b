/* verity.h - reads what dm-verity needs from a disk that carries it (gcs-protocol.md §4.4): a file
 * system, one block with verity's superblock, then the hash tree, its top first. Leaf code; blocks
 * while it reads. Whoever made the disk is not trusted. */
#pragma once
#include "base/sha256.h"
#include <stddef.h>
#include <stdint.h>

struct err;

#define VERITY_SALT_MAX 256

struct verity {
    uint32_t block_size;  /* of data and hashes alike */
    uint64_t data_blocks; /* before the superblock */
    uint8_t salt[VERITY_SALT_MAX];
    size_t salt_len;
    char root_hash[SHA256_HEX_SIZE]; /* as the disk has it: not to be trusted for itself */
};

/* ERR_INVALID with the reason if it has none, or one that is of no use. */
int verity_read(int fd, struct verity *ret, struct err *err);
/* The target's parameters for this device with this root hash. Caller frees. */
char *verity_params(const struct verity *v, const char *node, const char *root_hash);
