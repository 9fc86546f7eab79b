/* Disks and shares of a real VM: what the guest sees when they come, and when they go. */
#include "base/child.h"
#include "fixture/real_vm.h"
#include "host/files/rootfs.h"
#include "host/files/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define MODULES                                                                                    \
    "for m in virtio_scsi sd_mod crc32c_generic ext4 9p 9pnet_virtio overlay; do "                 \
    "modprobe $m || exit 1; done"
#define MOUNT_9P                                                                                   \
    "mkdir -p /run/9p && mount -t 9p -o trans=virtio,version=9p2000.L,cache=mmap,access=client,"   \
    "msize=512000 lcow /run/9p"
/* $d: the disk at LUN n, as soon as the kernel has it. */
#define DISK(n)                                                                                    \
    "i=0; until d=$(ls /sys/bus/scsi/devices/*:0:0:" #n "/block 2>/dev/null) && "                  \
    "[ -b /dev/$d ]; do i=$((i+1)); [ $i -lt 200 ] || exit 9; usleep 20000; done; "
#define NO_DISK(n)                                                                                 \
    "i=0; while ls -d /sys/bus/scsi/devices/*:0:0:" #n " >/dev/null 2>&1; do i=$((i+1)); "         \
    "[ $i -lt 200 ] || exit 9; usleep 20000; done; echo gone"

static void host_sh(struct real_vm *r, const char *line)
{
    const char *const argv[] = { "/bin/sh", "-ec", line, NULL };
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_CALL_NS);
    AUTO(child_free) struct child *c = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(child_spawn(&limited, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT_OK(child_wait(&limited, c, &status, &err), err);
    if (status != 0)
        tap_fail(__FILE__, __LINE__, "%s: status %d", line, status);
}

static int open_image(struct real_vm *r, const char *name, const char *content, int flags)
{
    AUTO_FREE char *line = str_format("cd %s && mkdir -p d && rm -rf d/* && echo %s > d/hello && "
                                      "truncate -s 16M %s && mke2fs -q -t ext4 -d d %s",
                                      r->temp.dir, content, name, name);

    host_sh(r, line);
    int fd = open(tempdir_path(&r->temp, name), flags | O_CLOEXEC);
    ASSERT(fd >= 0);
    return fd;
}

static void attach(struct real_vm *r, unsigned lun, int fd, bool read_only)
{
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;

    ASSERT_OK(r->vmm->ops->scsi_add(&limited, r->vmm, (struct scsi_slot){ 0, (uint8_t)lun }, fd,
                                    read_only, &err),
              err);
}

static void detach(struct real_vm *r, unsigned lun)
{
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;

    ASSERT_OK(
        r->vmm->ops->scsi_remove(&limited, r->vmm, (struct scsi_slot){ 0, (uint8_t)lun }, &err),
        err);
}

static void share(struct real_vm *r, const char *name, int tree, bool read_only)
{
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;

    ASSERT_OK(r->vmm->ops->share_add(&limited, r->vmm, name, tree, read_only, &err), err);
}

static void unshare_name(struct real_vm *r, const char *name)
{
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;

    ASSERT_OK(r->vmm->ops->share_remove(&limited, r->vmm, name, &err), err);
}

/* Opens QEMU's descriptor of this image anew, as QEMU could: 0 or errno. */
static int reopen_for_writing(struct real_vm *r, const char *name)
{
    struct vmm_info info;
    struct stat want, st;

    ASSERT_EQ(stat(tempdir_path(&r->temp, name), &want), 0);
    r->vmm->ops->info(r->vmm, &info);
    for (int n = 0; n < 64; n++) {
        AUTO_FREE char *link = str_format("/proc/%d/fd/%d", info.pid, n);

        if (stat(link, &st) < 0 || st.st_dev != want.st_dev || st.st_ino != want.st_ino)
            continue;
        AUTO_FD int fd = open(link, O_RDWR | O_CLOEXEC);
        return fd < 0 ? errno : 0;
    }
    return ENOENT;
}

TEST_FIBER(disks_come_and_go)
{
    struct real_vm r;
    struct err err = ERR_INIT;

    real_vm_start(ctx, &r);
    real_vm_expect(&r, MODULES, "");
    AUTO_FD int ro = open_image(&r, "a.img", "layer", O_RDONLY);
    AUTO_FD int rw = open_image(&r, "b.img", "scratch", O_RDWR);

    attach(&r, 7, ro, true);
    attach(&r, 0, rw, false);
    real_vm_expect(&r,
                   DISK(7) "mkdir /run/a /run/b; mount -t ext4 -o ro /dev/$d /run/a && "
                           "cat /run/a/hello; cat /sys/block/$d/ro",
                   "layer\n1\n");
    real_vm_expect(&r,
                   DISK(0) "mount -t ext4 /dev/$d /run/b && cat /run/b/hello && "
                           "echo kept > /run/b/new && cat /sys/block/$d/ro && umount /run/b",
                   "scratch\n0\n");
    /* QEMU cannot get more from its descriptor than reading. */
    ASSERT_EQ(reopen_for_writing(&r, "a.img"), EROFS);
    ASSERT_EQ(reopen_for_writing(&r, "b.img"), 0);
    /* A slot that is in use is refused, and what is there stays. */
    struct ctx limited = ctx_with_timeout(&r.root, FIXTURE_CALL_NS);
    ASSERT_FAIL(r.vmm->ops->scsi_add(&limited, r.vmm, (struct scsi_slot){ 0, 7 }, ro, true, &err),
                err, ERR_STATE);
    ASSERT_FAIL(r.vmm->ops->scsi_add(&limited, r.vmm, (struct scsi_slot){ 4, 0 }, ro, true, &err),
                err, ERR_INVALID);
    real_vm_expect(&r, "cat /run/a/hello && umount /run/a", "layer\n");
    detach(&r, 7);
    detach(&r, 0);
    detach(&r, 0); /* repeatable */
    real_vm_expect(&r, NO_DISK(7), "gone\n");
    real_vm_expect(&r, NO_DISK(0), "gone\n");
    /* What the guest wrote is in the file; the slot serves again. */
    attach(&r, 0, rw, false);
    real_vm_expect(&r, DISK(0) "mount -t ext4 /dev/$d /run/b && cat /run/b/new && umount /run/b",
                   "kept\n");
    detach(&r, 0);
    real_vm_finish(&r);
}

/* One for reading, one for writing, through descriptors that QEMU cannot open anew. */
TEST_FIBER(block_devices_are_disks_too)
{
    struct real_vm r;
    char path[64];

    real_vm_start(ctx, &r);
    fd_close(open_image(&r, "c.img", "device", O_RDONLY));
    AUTO_FREE char *up =
        str_format("cd %s && losetup -f --show c.img > loop 2>/dev/null || :", r.temp.dir);
    AUTO_FREE char *down = str_format("losetup -d $(cat %s/loop)", r.temp.dir);
    AUTO_FREE char *name = NULL;
    size_t len;

    host_sh(&r, up);
    ASSERT_EQ(file_read_all(tempdir_path(&r.temp, "loop"), sizeof(path) - 1, &name, &len), 0);
    if (len == 0) {
        real_vm_finish(&r);
        tap_skip("no loop devices here");
    }
    snprintf(path, sizeof(path), "%.*s", (int)strcspn(name, "\n"), name);
    AUTO_FD int ro = open(path, O_RDONLY | O_CLOEXEC), rw = open(path, O_RDWR | O_CLOEXEC);
    host_sh(&r, down); /* when the last user releases it */
    ASSERT(ro >= 0 && rw >= 0);
    real_vm_expect(&r, MODULES, "");
    attach(&r, 1, rw, false);
    real_vm_expect(&r,
                   DISK(1) "mkdir -p /run/c; mount -t ext4 /dev/$d /run/c && cat /run/c/hello && "
                           "echo kept > /run/c/new && umount /run/c",
                   "device\n");
    detach(&r, 1);
    attach(&r, 2, ro, true);
    real_vm_expect(&r,
                   DISK(2) "mount -t ext4 -o ro /dev/$d /run/c && cat /run/c/new && umount /run/c; "
                           "cat /sys/block/$d/ro",
                   "kept\n1\n");
    detach(&r, 2);
    real_vm_finish(&r);
}

TEST_FIBER(a_refused_disk_leaves_nothing_in_qemu)
{
    struct real_vm r;
    struct err err = ERR_INIT;

    real_vm_start(ctx, &r);
    real_vm_expect(&r, MODULES, "");
    AUTO_FD int ro = open_image(&r, "a.img", "first", O_RDONLY);
    struct ctx limited = ctx_with_timeout(&r.root, FIXTURE_CALL_NS);
    ASSERT_FAIL(r.vmm->ops->scsi_add(&limited, r.vmm, (struct scsi_slot){ 0, 3 }, ro, false, &err),
                err, ERR_INVALID);
    /* A directory is not an image: QEMU refuses in the second step. */
    AUTO_FD int dir = open(r.temp.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_FAIL(r.vmm->ops->scsi_add(&limited, r.vmm, (struct scsi_slot){ 0, 3 }, dir, true, &err),
                err, ERR_UNKNOWN);
    ASSERT_HAS(err.msg, "disk 0:3: blockdev-add");
    err_clear(&err);
    attach(&r, 3, ro, true);
    real_vm_expect(&r,
                   DISK(3) "mkdir /run/a; mount -t ext4 -o ro /dev/$d /run/a && cat /run/a/hello",
                   "first\n");
    /* Sixty disks on one controller, each its own file, and all gone again. */
    for (unsigned lun = 4; lun < 64; lun++) {
        AUTO_FREE char *name = str_format("%s/disk%u", r.temp.dir, lun);
        AUTO_FD int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        ASSERT(fd >= 0 && ftruncate(fd, 1 << 20) == 0 && pwrite(fd, name, strlen(name), 0) > 0);
        attach(&r, lun, fd, false);
    }
    real_vm_expect(&r,
                   DISK(63) "head -c 512 /dev/$d | tr -d '\\0' | sed 's/.*disk//'; ls -d "
                            "/sys/bus/scsi/devices/*:0:0:* | wc -l",
                   "6361\n");
    for (unsigned lun = 3; lun < 64; lun++)
        detach(&r, lun);
    real_vm_finish(&r);
}

TEST_FIBER(shares_come_and_go)
{
    struct real_vm r;
    struct err err = ERR_INIT;
    struct tree dir, file, rw;

    real_vm_start(ctx, &r);
    real_vm_expect(&r, MODULES, "");
    host_sh(&r, "true");
    AUTO_FREE char *make =
        str_format("cd %s && mkdir -p s/sub w && echo one > s/sub/f && echo two > s/g && "
                   "echo secret > outside && ln -s %s/outside s/link && chown 1234:5678 s/g",
                   r.temp.dir, r.temp.dir);
    host_sh(&r, make);
    struct ctx limited = ctx_with_timeout(&r.root, FIXTURE_CALL_NS);
    ASSERT_OK(tree_open(&limited, tempdir_path(&r.temp, "s"),
                        &(struct tree_opts){ .read_only = true }, &dir, &err),
              err);
    ASSERT_OK(tree_open(&limited, tempdir_path(&r.temp, "s/g"),
                        &(struct tree_opts){ .read_only = true }, &file, &err),
              err);
    ASSERT_OK(tree_open(&limited, tempdir_path(&r.temp, "w"), &(struct tree_opts){ 0 }, &rw, &err),
              err);
    share(&r, "0", dir.fd, true);
    share(&r, "1", file.fd, true);
    share(&r, "2", rw.fd, false);
    fd_close(dir.fd);
    fd_close(file.fd);
    fd_close(rw.fd);
    real_vm_expect(&r, MOUNT_9P " && ls /run/9p && cat /run/9p/0/sub/f", "0\n1\n2\none\n");
    real_vm_expect(&r, "ls /run/9p/1; cat /run/9p/1/g; stat -c '%u:%g' /run/9p/1/g",
                   "g\ntwo\n1234:5678\n");
    real_vm_expect(&r,
                   "for f in 0/new 0/sub/f 1/new 1/g new; do "
                   "echo x > /run/9p/$f && echo written; done 2>&1 | grep -c 'Read-only'",
                   "5\n");
    real_vm_expect(&r, "cat /run/9p/0/link 2>&1 | grep -c 'No such file'", "1\n");
    real_vm_expect(&r, "echo hi > /run/9p/2/x && chown 7:8 /run/9p/2/x && cat /run/9p/2/x", "hi\n");
    struct stat st;
    ASSERT_EQ(stat(tempdir_path(&r.temp, "w/x"), &st), 0);
    ASSERT_EQ(st.st_uid, 7);
    ASSERT_EQ(st.st_gid, 8);
    unshare_name(&r, "0");
    unshare_name(&r, "1");
    unshare_name(&r, "2");
    unshare_name(&r, "2"); /* repeatable */
    real_vm_expect(&r, "ls /run/9p; echo end", "end\n");
    ASSERT_FAIL(r.vmm->ops->share_add(&limited, r.vmm, "../x", -1, true, &err), err, ERR_INVALID);
    real_vm_finish(&r);
}

/* As the overlayfs snapshotter leaves it: a layer, one above with a deletion and an opaque
 * directory. In the guest an overlay over the share, its upper directory on a disk. */
TEST_FIBER(a_merged_root_file_system_is_seen_as_it_is)
{
    struct real_vm r;
    struct err err = ERR_INIT;
    struct rootfs fs = { .tree = -1 };

    real_vm_start(ctx, &r);
    real_vm_expect(&r, MODULES, "");
    AUTO_FREE char *make = str_format(
        "cd %s && mkdir -p l/d l/keep u/d w && echo low > l/gone && echo low > l/d/hid && "
        "echo low > l/keep/f && echo up > u/d/new && mknod u/gone c 0 0",
        r.temp.dir);
    host_sh(&r, make);
    ASSERT_EQ(setxattr(tempdir_path(&r.temp, "u/d"), "trusted.overlay.opaque", "y", 1, 0), 0);
    AUTO_FREE char *lower = str_format("lowerdir=%s/l", r.temp.dir);
    AUTO_FREE char *upper = str_format("upperdir=%s/u", r.temp.dir);
    AUTO_FREE char *work = str_format("workdir=%s/w", r.temp.dir);
    const char *const options[] = { "index=off", work, upper, lower, NULL };
    const struct rootfs_mount m = { "overlay", "overlay", options };
    struct ctx limited = ctx_with_timeout(&r.root, FIXTURE_CALL_NS);

    ASSERT_OK(rootfs_open(&limited, &m, 1, NULL, false, NULL, &fs, &err), err);
    share(&r, "7", fs.tree, true);
    rootfs_release(&fs);
    real_vm_expect(&r, MOUNT_9P " && cd /run/9p/7 && find . | sort | tr '\\n' ' '",
                   ". ./d ./d/new ./keep ./keep/f ");
    AUTO_FD int rw = open_image(&r, "b.img", "scratch", O_RDWR);
    attach(&r, 0, rw, false);
    real_vm_expect(&r,
                   DISK(0) "mkdir /run/b /run/root; mount -t ext4 /dev/$d /run/b && "
                           "mkdir /run/b/up /run/b/work && mount -t overlay -o "
                           "lowerdir=/run/9p/7,upperdir=/run/b/up,workdir=/run/b/work o /run/root "
                           "&& cd /run/root && cat keep/f && echo changed > keep/f && rm d/new && "
                           "cat keep/f && ls d && cat /run/9p/7/keep/f && ls /run/9p/7/d",
                   "low\nchanged\nlow\nnew\n");
    real_vm_expect(&r, "cd /; umount /run/root /run/b", "");
    detach(&r, 0);
    unshare_name(&r, "7");
    real_vm_finish(&r);
}

TEST_FIBER(a_vm_that_is_gone_has_neither_disks_nor_shares)
{
    struct real_vm r;
    struct err err = ERR_INIT;
    struct tree dir;

    real_vm_start(ctx, &r);
    AUTO_FD int ro = open_image(&r, "a.img", "x", O_RDONLY);
    struct ctx limited = ctx_with_timeout(&r.root, FIXTURE_CALL_NS);
    ASSERT_OK(tree_open(&limited, r.temp.dir, &(struct tree_opts){ .read_only = true }, &dir, &err),
              err);
    attach(&r, 1, ro, true);
    share(&r, "0", dir.fd, true);
    r.vmm->ops->terminate(r.vmm);
    ASSERT_FAIL(r.vmm->ops->scsi_add(&limited, r.vmm, (struct scsi_slot){ 0, 2 }, ro, true, &err),
                err, ERR_UNAVAILABLE);
    ASSERT_FAIL(r.vmm->ops->share_add(&limited, r.vmm, "1", dir.fd, true, &err), err,
                ERR_UNAVAILABLE);
    detach(&r, 1);
    unshare_name(&r, "0");
    fd_close(dir.fd);
    real_vm_finish(&r);
}
