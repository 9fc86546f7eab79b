/* A made-up /sys: hosts below PCI devices, as the kernel lays them out. */
#include "base/str.h"
#include "guest/storage/scsi.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

static void make(struct tempdir *p, const char *path)
{
    ASSERT_EQ(dir_make(tempdir_path(p, path), 0755), 0);
}

static void put(struct tempdir *p, const char *path, const char *text)
{
    ASSERT_EQ(file_write(tempdir_path(p, path), text, strlen(text), 0644), 0);
}

static void add_host(struct tempdir *p, unsigned number, const char *address, const char *driver)
{
    AUTO_FREE char *dir = str_format("devices/pci0000:00/%s/virtio1/host%u/scsi_host/host%u",
                                     address, number, number);
    AUTO_FREE char *name = str_format("%s/proc_name", dir);
    AUTO_FREE char *scan = str_format("%s/scan", dir),
                   *link = str_format("class/scsi_host/host%u", number);
    AUTO_FREE char *target = str_format("../../%s", dir);

    make(p, dir);
    put(p, name, driver);
    put(p, scan, "");
    make(p, "class/scsi_host");
    ASSERT_EQ(symlink(target, tempdir_path(p, link)), 0);
}

TEST(controllers_are_virtio_hosts_in_the_order_of_their_addresses)
{
    unsigned host = 99;
    TEMPDIR(p);

    ASSERT_EQ(scsi_host(p.dir, 0, &host), -ENXIO);
    add_host(&p, 2, "0000:00:03.0", "virtio_scsi\n");
    add_host(&p, 0, "0000:00:05.0", "virtio_scsi\n");
    add_host(&p, 1, "0000:00:04.0", "ahci\n");
    ASSERT_EQ(scsi_host(p.dir, 0, &host), 0);
    ASSERT_EQ(host, 2);
    ASSERT_EQ(scsi_host(p.dir, 1, &host), 0);
    ASSERT_EQ(host, 0);
    ASSERT_EQ(scsi_host(p.dir, 2, &host), -ENXIO);
    ASSERT_EQ(scsi_host(p.dir, 4, &host), -EINVAL);
}

TEST(a_controller_that_was_added_later_is_known_by_its_place)
{
    unsigned host = 99;
    TEMPDIR(p);

    add_host(&p, 0, "0000:00:03.0", "virtio_scsi\n");
    add_host(&p, 1, "0000:00:05.0/0000:01:1f.0", "virtio_scsi\n");
    add_host(&p, 2, "0000:00:05.0/0000:01:04.0",
             "virtio_scsi\n"); /* not one of lcow's controllers */
    ASSERT_EQ(scsi_host(p.dir, 0, &host), 0);
    ASSERT_EQ(host, 0);
    ASSERT_EQ(scsi_host(p.dir, 1, &host), -ENXIO); /* not yet, though there are more hosts */
    ASSERT_EQ(scsi_host(p.dir, 3, &host), 0);
    ASSERT_EQ(host, 1);
    add_host(&p, 3, "0000:00:05.0/0000:01:1d.0", "virtio_scsi\n");
    ASSERT_EQ(scsi_host(p.dir, 1, &host), 0);
    ASSERT_EQ(host, 3);
    ASSERT_EQ(scsi_host(p.dir, 2, &host), -ENXIO);
}

TEST(a_vmbus_controller_wins)
{
    unsigned host = 99;
    TEMPDIR(p);

    add_host(&p, 2, "0000:00:03.0", "virtio_scsi\n");
    make(&p, "bus/vmbus/devices/0110f83b-de10-5172-a266-78bca56bf50a/host7");
    ASSERT_EQ(scsi_host(p.dir, 1, &host), 0);
    ASSERT_EQ(host, 7);
    ASSERT_EQ(scsi_host(p.dir, 0, &host), 0);
    ASSERT_EQ(host, 2);
}

TEST(a_disk_is_found_by_lun_and_partition)
{
    AUTO_FREE char *whole = NULL, *part = NULL, *none = NULL;
    TEMPDIR(p);

    ASSERT_EQ(scsi_block(p.dir, 2, 5, 0, &none), -ENXIO);
    make(&p, "bus/scsi/devices/2:0:0:5/block");
    ASSERT_EQ(scsi_block(p.dir, 2, 5, 0, &none), -ENXIO);
    make(&p, "bus/scsi/devices/2:0:0:5/block/sdb/sdb1");
    ASSERT_EQ(scsi_block(p.dir, 2, 5, 0, &whole), 0);
    ASSERT_STR(whole, "sdb");
    ASSERT_EQ(scsi_block(p.dir, 2, 5, 1, &part), 0);
    ASSERT_STR(part, "sdb1");
    ASSERT_EQ(scsi_block(p.dir, 2, 5, 2, &none), -ENXIO);
    make(&p, "bus/scsi/devices/2:0:0:5/block/sdc");
    ASSERT_EQ(scsi_block(p.dir, 2, 5, 0, &none), -EEXIST);
}

TEST(a_disk_whose_capacity_the_kernel_failed_to_read_has_none)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    TEMPDIR(p);

    ASSERT(!scsi_has_capacity(p.dir, 2, 5, "sdb"));
    make(&p, "bus/scsi/devices/2:0:0:5/block/sdb");
    put(&p, "bus/scsi/devices/2:0:0:5/block/sdb/size", "0\n");
    put(&p, "bus/scsi/devices/2:0:0:5/rescan", "");
    ASSERT(!scsi_has_capacity(p.dir, 2, 5, "sdb"));
    ASSERT_EQ(scsi_reread(p.dir, 2, 5), 0);
    ASSERT_EQ(file_read_all(tempdir_path(&p, "bus/scsi/devices/2:0:0:5/rescan"), 16, &text, &len),
              0);
    ASSERT_STR(text, "1\n");
    put(&p, "bus/scsi/devices/2:0:0:5/block/sdb/size", "8\n");
    ASSERT(scsi_has_capacity(p.dir, 2, 5, "sdb"));
}

TEST(scan_and_forget_write_what_the_kernel_wants)
{
    AUTO_FREE char *scan = NULL, *forget = NULL;
    size_t len;
    TEMPDIR(p);

    add_host(&p, 3, "0000:00:03.0", "virtio_scsi\n");
    ASSERT_EQ(scsi_scan(p.dir, 3, 9), 0);
    ASSERT_EQ(file_read_all(tempdir_path(&p, "class/scsi_host/host3/scan"), 64, &scan, &len), 0);
    ASSERT_STR(scan, "0 0 9");
    ASSERT_EQ(scsi_forget(p.dir, 3, 9), 0); /* never was there */
    make(&p, "bus/scsi/devices/3:0:0:9");
    put(&p, "bus/scsi/devices/3:0:0:9/delete", "");
    ASSERT_EQ(scsi_forget(p.dir, 3, 9), 0);
    ASSERT_EQ(file_read_all(tempdir_path(&p, "bus/scsi/devices/3:0:0:9/delete"), 64, &forget, &len),
              0);
    ASSERT_STR(forget, "1\n");
}
