#include "guest/storage/verity.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "guest/storage/blockfs.h"
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "verity\0\0"
#define BLOCK_MIN 512
#define BLOCK_MAX 4096 /* the page size */

/* As cryptsetup writes it; all numbers are little-endian. */
struct super {
    char magic[8];
    uint32_t version, hash_type;
    uint8_t uuid[16];
    char algorithm[32];
    uint32_t data_block_size, hash_block_size;
    uint64_t data_blocks;
    uint16_t salt_size;
    uint8_t pad[6];
    uint8_t salt[VERITY_SALT_MAX];
};
_Static_assert(offsetof(struct super, algorithm) == 32 && offsetof(struct super, salt) == 88,
               "as on the disk");

static int read_at(int fd, uint64_t offset, void *buf, size_t len, struct err *err)
{
    ssize_t n = pread(fd, buf, len, (off_t)offset);

    if (n < 0)
        return err_sys(err, errno, "read the disk");
    if ((size_t)n != len)
        return err_set(err, ERR_INVALID, "the disk ends before its hashes do");
    return 0;
}

static int check(const struct super *s, uint64_t fs_bytes, struct err *err)
{
    uint32_t block = le32toh(s->data_block_size);

    if (memcmp(s->magic, MAGIC, sizeof(s->magic)) != 0)
        return err_set(err, ERR_INVALID, "no dm-verity superblock behind the file system");
    if (le32toh(s->version) != 1 || le32toh(s->hash_type) != 1 ||
        strncmp(s->algorithm, "sha256", sizeof(s->algorithm)) != 0)
        return err_set(err, ERR_INVALID, "dm-verity of another version, or not with sha256");
    if (block < BLOCK_MIN || block > BLOCK_MAX || (block & (block - 1)) ||
        le32toh(s->hash_block_size) != block || le16toh(s->salt_size) > VERITY_SALT_MAX)
        return err_set(err, ERR_INVALID, "the dm-verity superblock is damaged");
    if (le64toh(s->data_blocks) != (fs_bytes + block - 1) / block)
        return err_set(err, ERR_INVALID, "dm-verity covers another size than the file system has");
    return 0;
}

int verity_read(int fd, struct verity *ret, struct err *err)
{
    char head[BLOCKFS_HEAD_BYTES], top[BLOCK_MAX];
    struct super super;
    struct sha256 sum;

    if (read_at(fd, 0, head, sizeof(head), err) < 0)
        return -1;
    uint64_t bytes = blockfs_size(head, sizeof(head));
    if (bytes == 0 || bytes > INT64_MAX - 2 * BLOCK_MAX)
        return err_set(err, ERR_INVALID, "no file system of known size on the disk");
    uint64_t at = (bytes + BLOCK_MAX - 1) / BLOCK_MAX * BLOCK_MAX;
    if (read_at(fd, at, &super, sizeof(super), err) < 0 || check(&super, bytes, err) < 0)
        return -1;
    *ret = (struct verity){ .block_size = le32toh(super.data_block_size),
                            .data_blocks = le64toh(super.data_blocks),
                            .salt_len = le16toh(super.salt_size) };
    memcpy(ret->salt, super.salt, ret->salt_len);
    /* The tree of a single block is that block. */
    uint64_t root = ret->data_blocks == 1 ? 0 : at + ret->block_size;
    if (read_at(fd, root, top, ret->block_size, err) < 0)
        return -1;
    sha256_init(&sum);
    sha256_add(&sum, ret->salt, ret->salt_len);
    sha256_add(&sum, top, ret->block_size);
    sha256_hex(&sum, ret->root_hash);
    return 0;
}

char *verity_params(const struct verity *v, const char *node, const char *root_hash)
{
    uint64_t data = v->data_blocks * v->block_size;
    uint64_t super = (data + BLOCK_MAX - 1) / BLOCK_MAX * BLOCK_MAX;
    struct sbuf b = { 0 };

    sbuf_addf(&b, "1 %s %s %u %u %llu %llu sha256 %s ", node, node, v->block_size, v->block_size,
              (unsigned long long)v->data_blocks, (unsigned long long)(super / v->block_size + 1),
              root_hash);
    for (size_t i = 0; i < v->salt_len; i++)
        sbuf_addf(&b, "%02x", v->salt[i]);
    sbuf_adds(&b, v->salt_len ? "" : "-");
    return sbuf_take(&b);
}
