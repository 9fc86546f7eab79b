/* rootfs_disk.c - images and devices of a mount list, and the image behind a directory that
 * somebody mounted already (containerd 2.1 mounts erofs layers itself). */
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "host/files/rootfs_priv.h"
#include "host/files/tree_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MOUNTINFO_MAX (16u << 20)
#define LOOP_MAJOR 7
#define PATH_BYTES 8192

const char *rootfs_filesystem(const char *type)
{
    static const struct {
        const char *type, *as;
    } known[] = { { "ext4", "ext4" }, { "ext3", "ext4" },   { "ext2", "ext4" },
                  { "xfs", "xfs" },   { "erofs", "erofs" }, { "squashfs", "squashfs" } };

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (str_eq(known[i].type, type))
            return known[i].as;
    return NULL;
}

void rootfs_disk_release(struct rootfs_disk *d)
{
    fd_close_later(d->fd);
    free(d->path);
}

static int check_kind(const char *path, bool device, const struct stat *st, struct err *err)
{
    if (S_ISREG(st->st_mode) || (S_ISBLK(st->st_mode) && device))
        return 0;
    if (S_ISBLK(st->st_mode))
        return err_set(err, ERR_INVALID,
                       "%s is a device where the image file of a layer is expected; a device is "
                       "taken only if the mount names it below /dev and has no option loop",
                       path);
    return err_set(err, ERR_INVALID, "%s is %s, not the image file of a layer", path,
                   S_ISDIR(st->st_mode)    ? "a directory"
                   : S_ISLNK(st->st_mode)  ? "a symbolic link"
                   : S_ISFIFO(st->st_mode) ? "a fifo"
                                           : "a socket or a character device");
}

/* Looked at first, then opened by what was looked at: opening a fifo or a tape would do things. */
int rootfs_disk_open(const char *path, bool device, struct rootfs_disk *d, struct err *err)
{
    /* /dev/mapper/x is a link to /dev/dm-3; elsewhere links are not followed. */
    bool in_dev = str_starts(path, "/dev/") && !strstr(path, "/../");
    AUTO_FD int seen = open(path, O_PATH | O_CLOEXEC | (in_dev ? 0 : O_NOFOLLOW));
    struct stat st;

    if (path[0] != '/')
        return err_set(err, ERR_INVALID, "\"%s\" is no absolute path", path);
    if (seen < 0)
        return err_sys(err, errno, "open %s", path);
    if (fstat(seen, &st) < 0)
        return err_sys(err, errno, "look at %s", path);
    if (check_kind(path, device && in_dev, &st, err) < 0)
        return -1;
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", seen);
    d->fd = open(again, (d->writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC);
    if (d->fd < 0)
        return err_sys(err, errno, "open %s for %s", path, d->writable ? "writing" : "reading");
    d->path = str_dup(path);
    return 0;
}

/* --- what is mounted on a directory --- */

struct mounted {
    char *type, *source;
    bool whole, read_only; /* its root, not a directory of it; nobody writes to it */
};

static void mounted_release_auto(struct mounted *m)
{
    free(m->type);
    free(m->source);
}

/* As the kernel writes names: \040 is a blank. */
static char *unescape(const char *text, size_t len)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\\' && len - i > 3) {
            sbuf_addc(&out, (char)((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                   (text[i + 3] - '0')));
            i += 3;
        } else {
            sbuf_addc(&out, text[i]);
        }
    }
    return sbuf_take(&out);
}

static const char *next_word(const char *p, const char **ret_word, size_t *ret_len)
{
    *ret_word = p;
    *ret_len = strcspn(p, " \n");
    p += *ret_len;
    return *p == ' ' ? p + 1 : p;
}

/* "36 35 98:0 / /mnt ro,noatime master:1 - ext3 /dev/root rw,errors=continue" */
static void read_line(const char *line, struct mounted *m)
{
    const char *word, *p = line;
    size_t len;

    for (int i = 0; i < 4; i++)
        p = next_word(p, &word, &len);
    m->whole = len == 1 && *word == '/';
    do
        p = next_word(p, &word, &len);
    while (*p && *p != '\n' && !(len == 1 && *word == '-'));
    p = next_word(p, &word, &len);
    m->type = unescape(word, len);
    p = next_word(p, &word, &len);
    m->source = unescape(word, len);
    (void)next_word(p, &word, &len);
    m->read_only = len >= 2 && memcmp(word, "ro", 2) == 0 && (len == 2 || word[2] == ',');
}

static bool find_mount(const char *table, uint64_t id, struct mounted *m)
{
    for (const char *line = table; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        char *end;
        if (*line && strtoull(line, &end, 10) == id && *end == ' ') {
            read_line(line, m);
            return true;
        }
    }
    return false;
}

/* A loop device's file, by its name in /sys, if that still is the same file. */
static int open_loop(const char *device, struct rootfs_disk *d, struct err *err)
{
    AUTO_FD int fd = open(device, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct loop_info64 info;
    struct stat st;
    size_t len;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISBLK(st.st_mode) || major(st.st_rdev) != LOOP_MAJOR ||
        ioctl(fd, LOOP_GET_STATUS64, &info) < 0 || info.lo_offset || info.lo_sizelimit)
        return err_set(err, ERR_NOT_FOUND, "%s is no loop device of a whole file", device);
    AUTO_FREE char *text = NULL, *name = str_format("/sys/dev/block/%u:%u/loop/backing_file",
                                                    major(st.st_rdev), minor(st.st_rdev));
    if (file_read_all(name, PATH_BYTES, &text, &len) < 0)
        return err_set(err, ERR_NOT_FOUND, "%s has no file", device);
    text[strcspn(text, "\n")] = '\0';
    if (rootfs_disk_open(text, false, d, err) < 0)
        return -1;
    if (fstat(d->fd, &st) < 0 || st.st_dev != info.lo_device || st.st_ino != info.lo_inode)
        return err_set(err, ERR_NOT_FOUND, "%s is not the file of %s any more", text, device);
    return 0;
}

/* 1, 0 or -1 as below. */
static int find_image(const char *dir, const char *table, struct rootfs_disk *d, struct err *err)
{
    AUTO_FD int fd = tree_open_path(dir, true, err);
    AUTO(mounted_release) struct mounted m = { 0 };
    struct err no = ERR_INIT;
    struct statx st;

    if (fd < 0)
        return -1;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &st) < 0 || !(st.stx_mask & STATX_MNT_ID) ||
        !(st.stx_attributes & STATX_ATTR_MOUNT_ROOT) || !find_mount(table, st.stx_mnt_id, &m))
        return 0;
    d->filesystem = rootfs_filesystem(m.type);
    if (!m.whole || !m.read_only || !d->filesystem || m.source[0] != '/')
        return 0;
    return (str_starts(m.source, "/dev/loop") ? open_loop(m.source, d, &no)
                                              : rootfs_disk_open(m.source, false, d, &no)) == 0;
}

int rootfs_find_images(const struct strv *dirs, struct rootfs *r, struct err *err)
{
    AUTO_FREE char *table = NULL;
    size_t len;
    if (dirs->n > ROOTFS_IMAGES_MAX)
        return 0;

    int found = file_read_all("/proc/thread-self/mountinfo", MOUNTINFO_MAX, &table, &len) == 0;

    r->disks = mem_zalloc((dirs->n + 1) * sizeof(*r->disks));
    for (size_t i = 0; i < dirs->n && found == 1; i++) {
        r->disks[i].fd = -1;
        found = find_image(dirs->v[i], table, &r->disks[i], err);
        r->n_disks = i + 1;
    }
    if (found != 1)
        rootfs_release(r);
    return found;
}
