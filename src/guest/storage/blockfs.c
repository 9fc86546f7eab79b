#include "guest/storage/blockfs.h"
#include "base/err.h"
#include "base/fd.h"
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define EMPTY_BYTES (1u << 20)

static const struct {
    const char *name, *magic;
    size_t offset, len;
} known[] = {
    { "ext4", "\x53\xef", 1080, 2 },
    { "xfs", "XFSB", 0, 4 },
    { "erofs", "\xe2\xe1\xf5\xe0", 1024, 4 },
    { "squashfs", "hsqs", 0, 4 },
};

const char *blockfs_detect(const void *head, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].offset + known[i].len <= len &&
            memcmp((const char *)head + known[i].offset, known[i].magic, known[i].len) == 0)
            return known[i].name;
    return NULL;
}

static uint64_t le(const uint8_t *p, size_t bytes)
{
    uint64_t n = 0;

    for (size_t i = bytes; i > 0; i--)
        n = n << 8 | p[i - 1];
    return n;
}

static uint64_t be(const uint8_t *p, size_t bytes)
{
    uint64_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n = n << 8 | p[i];
    return n;
}

/* 0 for what no file system has. */
static uint64_t product(uint64_t blocks, unsigned shift)
{
    return shift > 16 || blocks > UINT64_MAX >> shift ? 0 : blocks << shift;
}

static uint64_t ext4_size(const uint8_t *super)
{
    bool has_64bit = super[0x60] & 0x80;
    uint64_t high = has_64bit ? le(super + 0x150, 4) : 0;

    return product(high << 32 | le(super + 4, 4), 10 + (unsigned)le(super + 24, 1));
}

static uint64_t xfs_size(const uint8_t *super)
{
    uint64_t block = be(super + 4, 4);

    return block == 0 || block > 1u << 16 || be(super + 8, 8) > UINT64_MAX / block
               ? 0
               : be(super + 8, 8) * block;
}

uint64_t blockfs_size(const void *head, size_t len)
{
    const char *type = blockfs_detect(head, len);
    const uint8_t *p = head;

    if (!type || len < BLOCKFS_HEAD_BYTES)
        return 0;
    if (strcmp(type, "ext4") == 0)
        return ext4_size(p + 1024);
    if (strcmp(type, "xfs") == 0)
        return xfs_size(p);
    if (strcmp(type, "erofs") == 0)
        return product(le(p + 1024 + 36, 4), p[1024 + 12]);
    return le(p + 40, 8); /* squashfs */
}

int blockfs_of(const char *path, const char **ret)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    char head[BLOCKFS_HEAD_BYTES];

    if (fd < 0)
        return -errno;
    ssize_t n = fd_read_full(fd, head, sizeof(head));
    if (n < 0)
        return (int)n;
    *ret = blockfs_detect(head, (size_t)n);
    return 0;
}

int blockfs_is_empty(const char *path, bool *ret)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    static const char zeros[BLOCKFS_HEAD_BYTES];
    char block[BLOCKFS_HEAD_BYTES];

    if (fd < 0)
        return -errno;
    for (size_t at = 0; at < EMPTY_BYTES; at += sizeof(block)) {
        ssize_t n = fd_read_full(fd, block, sizeof(block));
        if (n < 0)
            return (int)n;
        *ret = memcmp(block, zeros, (size_t)n) == 0;
        if (!*ret || n < (ssize_t)sizeof(block))
            return 0;
    }
    return 0;
}

/* --- a new ext4 --- */

#define BLOCK 4096u
#define GROUP_BLOCKS (8 * BLOCK) /* as many as one bitmap has bits */
#define INODE 256u
#define INODES_PER_BLOCK (BLOCK / INODE)
#define BLOCKS_PER_INODE 4 /* one for 16 KiB, as mke2fs does */
#define ROOT_INODE 2
#define FIRST_INODE 11 /* lost+found */
#define GROUPS_MAX (1u << 17)
#define LAST_GROUP_MIN 64 /* blocks beside its own tables; a group with fewer is left out */

#define COMPAT 0x28    /* ext_attr dir_index */
#define INCOMPAT 0x42  /* filetype extents */
#define RO_COMPAT 0x7b /* sparse_super large_file huge_file uninit_bg dir_nlink extra_isize */
enum { INODE_UNINIT = 1, BLOCK_UNINIT = 2 };

struct fs {
    int fd;
    const uint8_t *uuid;
    uint32_t blocks, groups, gdt_blocks, inodes_per_group, table_blocks;
    uint32_t free_blocks, free_inodes;
    uint8_t *gdt; /* as it is on the disk */
};

static void put16(uint8_t *p, unsigned at, uint32_t v)
{
    uint16_t le = htole16((uint16_t)v);
    memcpy(p + at, &le, sizeof(le));
}

static void put32(uint8_t *p, unsigned at, uint32_t v)
{
    uint32_t le = htole32(v);
    memcpy(p + at, &le, sizeof(le));
}

static uint16_t crc16(uint16_t crc, const uint8_t *p, size_t len)
{
    for (; len > 0; len--, p++) {
        crc ^= *p;
        for (int i = 0; i < 8; i++)
            crc = (uint16_t)(crc >> 1 ^ (crc & 1 ? 0xa001 : 0));
    }
    return crc;
}

static int write_block(const struct fs *fs, uint32_t block, const void *data, uint32_t n,
                       struct err *err)
{
    size_t len = (size_t)n * BLOCK;
    ssize_t done = pwrite(fs->fd, data, len, (off_t)block * BLOCK);

    if (done == (ssize_t)len)
        return 0;
    return err_sys(err, done < 0 ? errno : EIO, "write block %u of a new file system", block);
}

/* --- where things are --- */

/* Groups that begin with a copy of superblock and descriptors: powers of 3, 5 and 7. */
static bool has_super(uint32_t group)
{
    for (uint32_t base = 3; base <= 7; base += 2)
        for (uint64_t power = base; power <= group; power *= base)
            if (power == group)
                return true;
    return group <= 1;
}

static uint32_t group_start(uint32_t group)
{
    return group * GROUP_BLOCKS;
}

static uint32_t group_blocks(const struct fs *fs, uint32_t group)
{
    return group + 1 < fs->groups ? GROUP_BLOCKS : fs->blocks - group_start(group);
}

static uint32_t bitmap_at(const struct fs *fs, uint32_t group)
{
    return group_start(group) + (has_super(group) ? 1 + fs->gdt_blocks : 0);
}

/* Everything before the first block that files may have: two bitmaps, the table. */
static uint32_t overhead(const struct fs *fs, uint32_t group)
{
    return bitmap_at(fs, group) - group_start(group) + 2 + fs->table_blocks;
}

static int lay_out(struct fs *fs, uint64_t bytes, struct err *err)
{
    uint64_t blocks = bytes / BLOCK;

    if (bytes < MKEXT4_MIN_BYTES)
        return err_set(err, ERR_INVALID, "a disk of %llu bytes is too small for ext4",
                       (unsigned long long)bytes);
    if (blocks > (uint64_t)GROUPS_MAX * GROUP_BLOCKS - 1)
        blocks = (uint64_t)GROUPS_MAX * GROUP_BLOCKS - 1;
    fs->blocks = (uint32_t)blocks;
    fs->groups = (fs->blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
    uint32_t in_group = fs->blocks < GROUP_BLOCKS ? fs->blocks : GROUP_BLOCKS;
    fs->table_blocks = (in_group / BLOCKS_PER_INODE + INODES_PER_BLOCK - 1) / INODES_PER_BLOCK;
    fs->inodes_per_group = fs->table_blocks * INODES_PER_BLOCK;
    fs->gdt_blocks = (fs->groups * 32 + BLOCK - 1) / BLOCK;
    if (fs->groups > 1 &&
        group_blocks(fs, fs->groups - 1) < overhead(fs, fs->groups - 1) + LAST_GROUP_MIN) {
        fs->groups--;
        fs->blocks = fs->groups * GROUP_BLOCKS;
        fs->gdt_blocks = (fs->groups * 32 + BLOCK - 1) / BLOCK; /* as the kernel counts them */
    }
    return 0;
}

/* --- what is there --- */

static void describe(struct fs *fs, uint32_t group)
{
    uint8_t *d = fs->gdt + (size_t)group * 32;
    uint32_t used = group == 0 ? FIRST_INODE : 0, free = group_blocks(fs, group);
    uint32_t at = bitmap_at(fs, group), number = htole32(group);
    bool last = group + 1 == fs->groups;

    free -= overhead(fs, group) + (group == 0 ? 2 : 0); /* two directories */
    put32(d, 0, at);
    put32(d, 4, at + 1);
    put32(d, 8, at + 2);
    put16(d, 12, free);
    put16(d, 14, fs->inodes_per_group - used);
    put16(d, 16, group == 0 ? 2 : 0);
    put16(d, 18, group == 0 ? 0 : last ? INODE_UNINIT : INODE_UNINIT | BLOCK_UNINIT);
    put16(d, 28, fs->inodes_per_group - used);
    uint16_t crc = crc16(0xffff, fs->uuid, 16);
    crc = crc16(crc, (uint8_t *)&number, sizeof(number));
    put16(d, 30, crc16(crc, d, 30));
    fs->free_blocks += free;
    fs->free_inodes += fs->inodes_per_group - used;
}

static void fill_super(const struct fs *fs, uint32_t group, uint8_t *s)
{
    put32(s, 0, fs->inodes_per_group * fs->groups);
    put32(s, 4, fs->blocks);
    put32(s, 12, fs->free_blocks);
    put32(s, 16, fs->free_inodes);
    put32(s, 24, 2); /* 1024 << 2 */
    put32(s, 28, 2);
    put32(s, 32, GROUP_BLOCKS);
    put32(s, 36, GROUP_BLOCKS);
    put32(s, 40, fs->inodes_per_group);
    put16(s, 54, 0xffff); /* no check by number of mounts */
    put16(s, 56, 0xef53);
    put16(s, 58, 1); /* clean */
    put16(s, 60, 1); /* on an error: continue */
    put32(s, 76, 1); /* dynamic revision */
    put32(s, 84, FIRST_INODE);
    put16(s, 88, INODE);
    put16(s, 90, group);
    put32(s, 92, COMPAT);
    put32(s, 96, INCOMPAT);
    put32(s, 100, RO_COMPAT);
    memcpy(s + 104, fs->uuid, 16);
    memcpy(s + 236, fs->uuid, 16); /* seed of directory hashes */
    s[252] = 1;                    /* half MD4 */
    put16(s, 348, 32);             /* room in inodes beyond the old 128 bytes */
    put16(s, 350, 32);
    put32(s, 352, 1); /* hashes of signed characters */
}

static int write_super(const struct fs *fs, uint32_t group, struct err *err)
{
    uint8_t block[BLOCK] = { 0 };

    fill_super(fs, group, block + (group == 0 ? 1024 : 0));
    if (write_block(fs, group_start(group), block, 1, err) < 0)
        return -1;
    return write_block(fs, group_start(group) + 1, fs->gdt, fs->gdt_blocks, err);
}

static void set_bits(uint8_t *map, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        map[i / 8] = (uint8_t)(map[i / 8] | 1u << i % 8);
}

/* Of blocks; what lies beyond the end counts as used. */
static int write_bitmap(const struct fs *fs, uint32_t group, uint32_t files, struct err *err)
{
    uint8_t map[BLOCK] = { 0 };

    set_bits(map, 0, overhead(fs, group) + files);
    set_bits(map, group_blocks(fs, group), GROUP_BLOCKS);
    return write_block(fs, bitmap_at(fs, group), map, 1, err);
}

/* --- the two directories --- */

static void fill_inode(uint8_t *table, uint32_t number, uint32_t mode, uint32_t links,
                       uint32_t block)
{
    uint8_t *i = table + (size_t)(number - 1) * INODE;

    put16(i, 0, 0x4000 | mode);
    put32(i, 4, BLOCK); /* its size */
    put16(i, 26, links);
    put32(i, 28, BLOCK / 512);
    put32(i, 40, block);
    put16(i, 128, 32);
}

/* The next place in the block. */
static uint32_t add_entry(uint8_t *block, uint32_t at, uint32_t inode, uint32_t len,
                          const char *name)
{
    put32(block, at, inode);
    put16(block, at + 4, len);
    block[at + 6] = (uint8_t)strlen(name);
    block[at + 7] = 2; /* directory */
    memcpy(block + at + 8, name, strlen(name));
    return at + len;
}

static int write_directories(const struct fs *fs, struct err *err)
{
    uint32_t at = overhead(fs, 0), table_at = bitmap_at(fs, 0) + 2;
    uint8_t table[BLOCK] = { 0 }, root[BLOCK] = { 0 }, lost[BLOCK] = { 0 }, map[BLOCK] = { 0 };

    fill_inode(table, ROOT_INODE, 0755, 3, at);
    fill_inode(table, FIRST_INODE, 0700, 2, at + 1);
    uint32_t next = add_entry(root, 0, ROOT_INODE, 12, ".");
    next = add_entry(root, next, ROOT_INODE, 12, "..");
    (void)add_entry(root, next, FIRST_INODE, BLOCK - next, "lost+found");
    next = add_entry(lost, 0, FIRST_INODE, 12, ".");
    (void)add_entry(lost, next, ROOT_INODE, BLOCK - next, "..");
    set_bits(map, 0, FIRST_INODE);
    set_bits(map, fs->inodes_per_group, GROUP_BLOCKS);
    if (write_block(fs, table_at, table, 1, err) < 0 || write_block(fs, at, root, 1, err) < 0 ||
        write_block(fs, at + 1, lost, 1, err) < 0)
        return -1;
    return write_block(fs, table_at - 1, map, 1, err);
}

static int write_all(struct fs *fs, struct err *err)
{
    for (uint32_t g = 0; g < fs->groups; g++)
        describe(fs, g);
    if (write_directories(fs, err) < 0 || write_bitmap(fs, 0, 2, err) < 0)
        return -1;
    if (fs->groups > 1 && write_bitmap(fs, fs->groups - 1, 0, err) < 0)
        return -1;
    for (uint32_t g = 1; g < fs->groups; g++)
        if (has_super(g) && write_super(fs, g, err) < 0)
            return -1;
    return write_super(fs, 0,
                       err); /* written last, so that an incomplete file system is not recognized */
}

int mkext4(int fd, uint64_t bytes, const uint8_t uuid[16], struct err *err)
{
    struct fs fs = { .fd = fd, .uuid = uuid };

    if (lay_out(&fs, bytes, err) < 0)
        return -1;
    AUTO_FREE uint8_t *gdt = mem_zalloc((size_t)fs.gdt_blocks * BLOCK);
    fs.gdt = gdt;
    return write_all(&fs, err);
}
