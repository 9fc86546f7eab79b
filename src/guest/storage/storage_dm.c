/* storage_dm.c - what stands between a disk and its file system: dm-verity or dm-crypt. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/rand.h"
#include "base/str.h"
#include "guest/storage/dm.h"
#include "guest/storage/storage_priv.h"
#include "guest/storage/verity.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>

#define SECTOR 512
#define CRYPT_SECTORS 8 /* of 512 bytes in one that is encrypted at a time */
/* What was just let go of is busy for a moment: whoever was told of it is looking. */
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
    /* The kernel would find out too, block by block; this tells what is wrong. */
    if (m->root_hash[0] && strcasecmp(m->root_hash, v.root_hash) != 0)
        return err_set(err, ERR_INVALID, "the root hash of the disk is %s, not %s", v.root_hash,
                       m->root_hash);
    AUTO_FREE char *params = verity_params(&v, m->disk, v.root_hash);
    return dm_create(m->name, "verity", params, v.data_blocks * v.block_size / SECTOR, true, false,
                     &m->node, err);
}

/* The key lives in the kernel alone, and only as long as the device does. */
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
    char params[DM_PARAMS_MAX];
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
        return err_wrap(err, "disk %u:%u: %s", d->controller, d->lun,
                        d->verity ? "dm-verity" : "dm-crypt");
    free(*node);
    *node = m.node;
    log_info(ctx, d->verity ? "disk is verified" : "disk is encrypted",
             F_U("controller", d->controller), F_U("lun", d->lun), F_STR("device", *node));
    return 0;
}

struct names {
    const char *verity, *crypt;
};

/* Which of them there is, not every host says again. */
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
