/* Disks that fail under a running VM: a full host disk, an image that is cut, a guest that does not
 * release a disk. The VM keeps running, and the failure is reported. */
#include "base/log.h"
#include "fixture/disks_fixture.h"

#include <sys/mman.h>
#include <sys/mount.h>

/* What is logged from now on, for the test to look at. */
static int begin_log(void)
{
    int fd = memfd_create("log", MFD_CLOEXEC);

    ASSERT(fd >= 0);
    log_init(fd, LOG_INFO, LOG_LOGFMT);
    return fd;
}

static void end_log(void)
{
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
}

/* Waits for a line with all these words. */
static void expect_log(struct disks_fixture *r, int fd, const char *a, const char *b)
{
    struct ctx limited = ctx_with_timeout(&r->vm.root, FIXTURE_CALL_NS);
    static char text[1 << 20];
    struct err err = ERR_INIT;

    for (;;) {
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        char *save = NULL;

        ASSERT(n >= 0);
        text[n] = '\0';
        for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
            if (strstr(l, a) && strstr(l, b))
                return;
        if (fiber_sleep(&limited, 50 * NS_PER_MS, &err) < 0)
            tap_fail(__FILE__, __LINE__, "no line with \"%s\" and \"%s\" in the log", a, b);
    }
}

TEST_FIBER(a_full_host_disk_is_an_io_error_in_the_guest_and_is_reported)
{
    struct disks_fixture r;

    disks_start(ctx, &r);
    AUTO_FREE char *small = str_format("%s/small", r.vm.temp.dir);
    ASSERT_EQ(mkdir(small, 0700), 0);
    ASSERT_EQ(mount("small", small, "tmpfs", 0, "size=4m"), 0);
    AUTO_FD int log = begin_log();
    AUTO_FD int fd =
        open(tempdir_path(&r.vm.temp, "small/x.img"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && ftruncate(fd, 64 << 20) == 0);
    uint64_t id =
        disks_reserve(&r, "small/x.img", false, (struct guest_disk){ .block_device = true });
    AUTO_FREE char *path = disks_map(&r, id);

    disks_guest(&r, path,
                "dd if=/dev/zero bs=64k count=256 2>/dev/null | tr '\\0' x | "
                "dd of=$d bs=64k conv=fsync 2>/dev/null && echo wrote || echo failed",
                "failed\n");
    expect_log(&r, log, "reason=DISK_FULL", "No space left on device");
    expect_log(&r, log, "disk I/O error on the host", "disk=disk-0-0");
    real_vm_expect(&r.vm, "echo the VM is alive", "the VM is alive\n");
    disks_unmap(&r, id);
    end_log();
    fd_close(TAKE_FD(fd));
    ASSERT_EQ(umount2(small, 0), 0); /* nobody has it any more */
    disks_finish(&r);
}

/* Beyond the file's new end QEMU reads zeros and the guest gets no error, so the shim reports it
 * when it finds out. */
TEST_FIBER(an_image_that_is_cut_under_a_running_vm_does_not_stop_it)
{
    struct disks_fixture r;

    disks_start(ctx, &r);
    AUTO_FD int log = begin_log();
    disks_host(&r, "mkdir d && head -c 2000000 /dev/urandom > d/data && truncate -s 16M c.img && "
                   "mke2fs -q -t ext4 -d d c.img && cp c.img o.img");
    uint64_t other = disks_reserve(&r, "o.img", true, (struct guest_disk){ 0 });
    AUTO_FREE char *other_path = disks_map(&r, other);
    uint64_t id = disks_reserve(&r, "c.img", true, (struct guest_disk){ 0 });
    AUTO_FREE char *path = disks_map(&r, id);
    ASSERT_EQ(truncate(tempdir_path(&r.vm.temp, "c.img"), 64 << 10), 0);
    disks_guest(&r, path, "cat $d/data > /dev/null 2>&1; echo the VM is alive",
                "the VM is alive\n");
    disks_guest(&r, other_path, "wc -c < $d/data", "2000000\n"); /* first read now */
    disks_unmap(&r, id);
    disks_unmap(&r, other);
    expect_log(&r, log, "reason=DISK_TRUNCATED", "c.img");
    end_log();
    disks_finish(&r);
}

/* Somebody in the guest is in there: unmounting fails, and can be repeated. */
TEST_FIBER(a_disk_that_the_guest_holds_on_to_is_refused_and_given_back_later)
{
    struct disks_fixture r;
    struct err err = ERR_INIT;

    disks_start(ctx, &r);
    disks_host(
        &r, "mkdir d && echo x > d/hello && truncate -s 4M h.img && mke2fs -q -t ext4 -d d h.img");
    uint64_t id = disks_reserve(&r, "h.img", false, (struct guest_disk){ 0 });
    AUTO_FREE char *path = disks_map(&r, id);
    disks_guest(&r, path, "cd $d && { sleep 1000 & echo $! > /run/holder; } > /dev/null 2>&1", "");
    struct ctx limited = ctx_with_timeout(&r.vm.root, FIXTURE_CALL_NS);
    ASSERT_EQ(scsi_unmap(&limited, r.scsi, id, &err), -1);
    ASSERT_HAS(err.msg, "busy");
    ASSERT_EQ(scsi_used_slots(r.scsi), 1);
    real_vm_expect(&r.vm, "kill $(cat /run/holder)", "");
    disks_unmap(&r, id);
    disks_finish(&r);
}
