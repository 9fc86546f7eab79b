/* storage_dm.c - what stands between a disk and its file system: dm-verity or dm-crypt, made by the
 * ioctls of the device mapper (docs/reference/gcs-protocol.md §4.4). The content of the disk is not
 * trusted. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/rand.h"
#include "base/sha256.h"
#include "base/str.h"
#include "guest/storage/blockfs.h"
#include "guest/storage/storage_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* --- the device mapper --- */

#define CONTROL "/dev/mapper/control"
#define PARAMS_MAX 1024

/* What goes to the kernel, and room for what comes back. */
struct message {
    struct dm_ioctl io;
    struct dm_target_spec spec;
    char params[PARAMS_MAX];
};

static void fill(struct message *m, const char *name, uint32_t flags)
{
    *m = (struct message){ .io = { .version = { DM_VERSION_MAJOR, 0, 0 },
                                   .data_size = sizeof(*m),
                                   .data_start = offsetof(struct message, spec),
                                   .flags = flags } };
    strncpy(m->io.name, name, sizeof(m->io.name) - 1);
}

static int load_table(int fd, const char *name, const char *target, const char *params,
                      uint64_t sectors, uint32_t flags)
{
    struct message m;
    int r = 0;

    fill(&m, name, flags);
    m.io.target_count = 1;
    m.spec = (struct dm_target_spec){ .length = sectors };
    strncpy(m.spec.target_type, target, sizeof(m.spec.target_type) - 1);
    strcpy(m.params, params); /* its length was checked */
    if (ioctl(fd, DM_TABLE_LOAD, &m) < 0)
        r = -errno;
    explicit_bzero(&m, sizeof(m));
    return r;
}

static int remove_device(int fd, const char *name)
{
    struct message m;

    fill(&m, name, 0);
    return ioctl(fd, DM_DEV_REMOVE, &m) < 0 ? -errno : 0;
}

/* Makes the device and resumes it. *ret_node: "/dev/dm-0", caller frees. secret: the kernel wipes
 * its copies of params. A failure leaves nothing behind. */
static int dm_create(const char *name, const char *target, const char *params, uint64_t sectors,
                     bool read_only, bool secret, char **ret_node, struct err *err)
{
    AUTO_FD int fd = open(CONTROL, O_RDWR | O_CLOEXEC);
    struct message m;

    if (fd < 0)
        return err_sys(err, errno, "open %s", CONTROL);
    if (strlen(params) >= PARAMS_MAX || strlen(name) >= DM_NAME_LEN)
        return err_set(err, ERR_INVALID, "invalid device %s: name or parameters are too long",
                       name);
    (void)remove_device(fd, name); /* left by a call that was given up, if there is one */
    fill(&m, name, 0);
    if (ioctl(fd, DM_DEV_CREATE, &m) < 0)
        return err_sys(err, errno, "make device %s", name);
    uint64_t dev = m.io.dev;
    int r = load_table(fd, name, target, params, sectors,
                       (read_only ? DM_READONLY_FLAG : 0) | (secret ? DM_SECURE_DATA_FLAG : 0));
    fill(&m, name, 0); /* not "suspend": resume */
    if (r == 0 && ioctl(fd, DM_DEV_SUSPEND, &m) < 0)
        r = -errno;
    if (r < 0) {
        (void)remove_device(fd, name); /* not in use yet */
        return err_sys(err, -r, "set up device %s (%s)", name, target);
    }
    *ret_node = str_format("/dev/dm-%u", minor(dev));
    return 0;
}

/* No such device, or no device mapper at all, is fine. EBUSY while it is open. */
static int dm_remove(const char *name, struct err *err)
{
    AUTO_FD int fd = open(CONTROL, O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT || errno == ENODEV ? 0 : err_sys(err, errno, "open %s", CONTROL);
    int r = remove_device(fd, name);
    return r < 0 && r != -ENXIO ? err_sys(err, -r, "remove device %s", name) : 0;
}

/* --- verity: a file system, one block with its superblock, then the hash tree, top first --- */

#define VERITY_SALT_MAX 256

struct verity {
    uint32_t block_size;  /* of data and hashes alike */
    uint64_t data_blocks; /* before the superblock */
    uint8_t salt[VERITY_SALT_MAX];
    size_t salt_len;
    char root_hash[SHA256_HEX_SIZE]; /* as read from the disk, so not trusted by itself */
};

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
        return err_set(err, ERR_INVALID, "the disk is too small for its dm-verity hashes");
    return 0;
}

static int check_super(const struct super *s, uint64_t fs_bytes, struct err *err)
{
    uint32_t block = le32toh(s->data_block_size);

    if (memcmp(s->magic, MAGIC, sizeof(s->magic)) != 0)
        return err_set(err, ERR_INVALID, "no dm-verity superblock behind the file system");
    if (le32toh(s->version) != 1 || le32toh(s->hash_type) != 1 ||
        strncmp(s->algorithm, "sha256", sizeof(s->algorithm)) != 0)
        return err_set(err, ERR_INVALID,
                       "unsupported dm-verity superblock: must be version 1 with sha256");
    if (block < BLOCK_MIN || block > BLOCK_MAX || (block & (block - 1)) ||
        le32toh(s->hash_block_size) != block || le16toh(s->salt_size) > VERITY_SALT_MAX)
        return err_set(err, ERR_INVALID, "the dm-verity superblock is damaged");
    if (le64toh(s->data_blocks) != (fs_bytes + block - 1) / block)
        return err_set(err, ERR_INVALID,
                       "invalid dm-verity superblock: its data size is not the file system's");
    return 0;
}

/* ERR_INVALID with the reason if it has none, or an unusable one. */
static int verity_read(int fd, struct verity *ret, struct err *err)
{
    char head[BLOCKFS_HEAD_BYTES], top[BLOCK_MAX];
    struct super super;
    struct sha256 sum;

    if (read_at(fd, 0, head, sizeof(head), err) < 0)
        return -1;
    uint64_t bytes = blockfs_size(head, sizeof(head));
    if (bytes == 0 || bytes > INT64_MAX - 2 * BLOCK_MAX)
        return err_set(err, ERR_INVALID,
                       "no supported file system on the disk, so its size is unknown");
    uint64_t at = (bytes + BLOCK_MAX - 1) / BLOCK_MAX * BLOCK_MAX;
    if (read_at(fd, at, &super, sizeof(super), err) < 0 || check_super(&super, bytes, err) < 0)
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

/* The table of the device. Caller frees. */
static char *verity_params(const struct verity *v, const char *node, const char *root_hash)
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

/* --- disks --- */

#define SECTOR 512
#define CRYPT_SECTORS 8 /* of 512 bytes in one that is encrypted at a time */
/* A device that was just closed stays busy for a moment, while others handle its event. */
#define BUSY_NS (5 * NS_PER_S)
#define BUSY_PAUSE_NS (10 * NS_PER_MS)
#define KEY_BYTES 64 /* AES-256 twice, for XTS */

/* Ciphers and hashes come by the kernel's own call of modprobe. */
static const char *const verity_modules[] = { "dm_mod", "dm_verity", NULL };
static const char *const crypt_modules[] = { "dm_mod", "dm_crypt", NULL };

static char *name_of(const struct storage_disk *d, const char *what)
{
    return str_format("dm-%s-scsi-contr%u-lun%u-p%llu", what, d->controller, d->lun,
                      (unsigned long long)d->partition);
}

struct make {
    const char *disk, *name;
    const char *root_hash; /* that must be there; "": any */
    char *node;            /* out */
};

static void make_drop(void *arg)
{
    free(((struct make *)arg)->node);
}

static int make_verity(void *arg, struct err *err)
{
    struct make *m = arg;
    AUTO_FD int fd = open(m->disk, O_RDONLY | O_CLOEXEC);
    struct verity v;

    if (fd < 0)
        return err_sys(err, errno, "open %s", m->disk);
    if (verity_read(fd, &v, err) < 0)
        return -1;
    /* The kernel would fail too, but only with I/O errors; this error names the cause. */
    if (m->root_hash[0] && strcasecmp(m->root_hash, v.root_hash) != 0)
        return err_because(err, REASON_VERITY_MISMATCH, ERR_INVALID,
                           "wrong root hash of the disk: it is %s, must be %s", v.root_hash,
                           m->root_hash);
    AUTO_FREE char *params = verity_params(&v, m->disk, v.root_hash);
    return dm_create(m->name, "verity", params, v.data_blocks * v.block_size / SECTOR, true, false,
                     &m->node, err);
}

/* Only the kernel keeps the key, for the life of the device. */
static int crypt_params(const char *node, char *out, size_t size, struct err *err)
{
    uint8_t key[KEY_BYTES];
    char hex[2 * KEY_BYTES + 1];

    rand_bytes(key, sizeof(key));
    for (size_t i = 0; i < sizeof(key); i++)
        snprintf(hex + 2 * i, 3, "%02x", key[i]);
    int n = snprintf(out, size, "aes-xts-plain64 %s 0 %s 0 1 sector_size:%d", hex, node,
                     CRYPT_SECTORS * SECTOR);
    explicit_bzero(key, sizeof(key));
    explicit_bzero(hex, sizeof(hex));
    return n < 0 || (size_t)n >= size ? err_set(err, ERR_INVALID, "%s is too long", node) : 0;
}

static int make_crypt(void *arg, struct err *err)
{
    struct make *m = arg;
    AUTO_FD int fd = open(m->disk, O_RDWR | O_CLOEXEC);
    char params[PARAMS_MAX];
    uint64_t bytes = 0;

    if (fd < 0 || ioctl(fd, BLKGETSIZE64, &bytes) < 0)
        return err_sys(err, errno, "open %s", m->disk);
    uint64_t sectors = bytes / SECTOR / CRYPT_SECTORS * CRYPT_SECTORS;
    if (sectors == 0)
        return err_set(err, ERR_INVALID, "%s is too small", m->disk);
    if (crypt_params(m->disk, params, sizeof(params), err) < 0)
        return -1;
    int r = dm_create(m->name, "crypt", params, sectors, false, true, &m->node, err);
    explicit_bzero(params, sizeof(params));
    return r;
}

int storage_dm_add(struct ctx *ctx, struct storage *s, const struct storage_disk *d, char **node,
                   struct err *err)
{
    AUTO_FREE char *name = name_of(d, d->verity ? "verity" : "crypt");
    struct make m = { *node, name, d->root_hash ? d->root_hash : "", NULL };

    if (!d->verity && !d->encrypted)
        return 0;
    if (storage_load(ctx, s, d->verity ? verity_modules : crypt_modules, err) < 0 ||
        OFFLOAD(ctx, d->verity ? make_verity : make_crypt, &m, 3, make_drop, "device to be made",
                err) < 0)
        return err_wrap_because(err, d->verity ? REASON_VERITY_MISSING : REASON_DISK_FAILED,
                                "disk %u:%u: %s", d->controller, d->lun,
                                d->verity ? "dm-verity" : "dm-crypt");
    free(*node);
    *node = m.node;
    log_info(ctx, d->verity ? "disk is verified" : "disk is encrypted",
             F_U(LK_CONTROLLER, d->controller), F_U(LK_LUN, d->lun), F_STR("device", *node));
    return 0;
}

struct names {
    const char *verity, *crypt;
};

/* Tries both, because not every host names the kind again on removal. */
static int unmake(void *arg, struct err *err)
{
    const struct names *n = arg;

    return dm_remove(n->verity, err) < 0 || dm_remove(n->crypt, err) < 0 ? -1 : 0;
}

int storage_dm_remove(struct ctx *ctx, const struct storage_disk *d, struct err *err)
{
    AUTO_FREE char *verity = name_of(d, "verity"), *crypt = name_of(d, "crypt");
    struct ctx bounded = ctx_with_timeout(ctx, BUSY_NS);
    struct names n = { verity, crypt };
    int r;

    while ((r = OFFLOAD(&bounded, unmake, &n, 2, NULL, "device to be removed", err)) < 0 &&
           err->sys == EBUSY) {
        struct err late = ERR_INIT;

        if (fiber_sleep(&bounded, BUSY_PAUSE_NS, &late) < 0)
            break; /* err says what is busy */
    }
    return r;
}
