/* rootfs_verity.c - the mount option X-containerd.dmverity: where the root hash of a layer is. The
 * erofs snapshotter appends the hash tree to the image and writes a metadata file beside it,
 *
 *     layer.erofs.dmverity    {"roothash": "64 hex digits", "hashoffset": bytes}
 *
 * and the option names that file. Its first versions said "on", "auto" or "off" instead. The tree
 * itself is the guest's: it compares the root hash and verifies each block that it reads. */
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/sha256.h"
#include "host/files/rootfs_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define METADATA_MAX 4096
#define BLOCK 4096 /* the superblock's, which comes first of the hashes */

int rootfs_verity_option(const char *option, const char **ret, struct err *err)
{
    const char *value = option + strlen(ROOTFS_VERITY);

    if (value[0] != '/' && !str_eq(value, "on") && !str_eq(value, "auto") && !str_eq(value, "off"))
        return err_set(err, ERR_INVALID,
                       "option \"%.200s\" is not supported: the value must be the absolute path of "
                       "the layer's metadata file, on, auto or off",
                       option);
    *ret = str_eq(value, "off") ? "" : value;
    return 0;
}

/* lseek() knows the size of devices, too. */
static int check_offset(int disk, uint64_t offset, struct err *err)
{
    off_t size = lseek(disk, 0, SEEK_END);

    if (size < 0)
        return err_sys(err, errno, "ask for the size of the image");
    if (offset == 0 || offset % BLOCK)
        return err_set(err, ERR_INVALID, "invalid hashoffset %llu: must be a multiple of %d bytes",
                       (unsigned long long)offset, BLOCK);
    if ((uint64_t)size < BLOCK || offset > (uint64_t)size - BLOCK)
        return err_set(
            err, ERR_INVALID,
            "invalid hashoffset %llu: the image has %lld bytes, so no hash tree is there",
            (unsigned long long)offset, (long long)size);
    return 0;
}

static int read_metadata(int fd, struct rootfs_disk *d, struct err *err)
{
    AUTO(json_decref) json_t *doc = NULL;
    const char *hash = "", *device = "";
    char text[METADATA_MAX + 1];
    uint64_t offset = 0;
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "not a regular file");
    ssize_t n = fd_read_full(fd, text, sizeof(text));
    if (n < 0)
        return err_sys(err, (int)-n, "read it");
    if (n > METADATA_MAX)
        return err_set(err, ERR_INVALID, "it has more than %d bytes", METADATA_MAX);
    if (js_parse(text, (size_t)n, METADATA_MAX, &doc, err) < 0 ||
        js_str(doc, "roothash", &hash, err) < 0 || js_u64(doc, "hashoffset", &offset, err) < 0 ||
        js_str(doc, "hashdevice", &device, err) < 0)
        return -1;
    if (strlen(hash) != SHA256_HEX_SIZE - 1 ||
        strspn(hash, "0123456789abcdefABCDEF") != SHA256_HEX_SIZE - 1)
        return err_set(err, ERR_INVALID, "the roothash \"%.80s\" is not %d hex digits (SHA-256)",
                       hash, SHA256_HEX_SIZE - 1);
    if (*device)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "a hash tree in a file of its own (hashdevice %.200s) is not supported: it "
                       "must be in the image, behind the file system",
                       device);
    if (check_offset(d->fd, offset, err) < 0)
        return -1;
    d->root_hash = str_dup(hash);
    return 0;
}

int rootfs_verity_read(const char *value, struct rootfs_disk *d, struct err *err)
{
    AUTO_FREE char *path = value[0] == '/' ? str_dup(value) : str_format("%s.dmverity", d->path);
    AUTO_FD int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT && str_eq(value, "auto"))
        return 0;
    if (fd < 0)
        return err_sys(err, errno, "open the dm-verity metadata %s", path);
    if (read_metadata(fd, d, err) < 0)
        return err_wrap_because(err, REASON_VERITY_MISSING, "dm-verity metadata %s", path);
    return 0;
}
