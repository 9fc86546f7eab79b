#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/pci.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void lead(struct tempdir *p, const char *name, const char *target)
{
    ASSERT_EQ(symlink(target, tempdir_path(p, name)), 0);
}

/* One with two virtual functions, of which the first is ours; one that belongs to a driver. */
static void make_host(struct tempdir *p)
{
    tempdir_put(p, "bus/pci/devices/0000:03:00.0/vendor", "0x8086\n");
    tempdir_put(p, "bus/pci/devices/0000:03:00.0/device", "0x1572\n");
    lead(p, "bus/pci/devices/0000:03:00.0/driver", "../../../bus/pci/drivers/i40e");
    lead(p, "bus/pci/devices/0000:03:00.0/virtfn0", "../0000:03:02.0");
    tempdir_put(p, "bus/pci/devices/0000:03:02.0/vendor", "0x8086\n");
    tempdir_put(p, "bus/pci/devices/0000:03:02.0/device", "0x154c\n");
    lead(p, "bus/pci/devices/0000:03:02.0/driver", "../../../bus/pci/drivers/vfio-pci");
    tempdir_put(p, "bus/pci/devices/0000:03:02.0/vfio-dev/vfio7/dev", "511:7\n");
    tempdir_put(p, "bus/pci/devices/0000:04:00.0/vendor", "rubbish");
    tempdir_put(p, "dev/vfio/devices/vfio7", "");
}

TEST(addresses_have_one_form)
{
    char out[PCI_ADDRESS_MAX];

    ASSERT_EQ(pci_address("0000:03:00.0", out), 0);
    ASSERT_STR(out, "0000:03:00.0");
    ASSERT_EQ(pci_address("3:0.1", out), 0);
    ASSERT_STR(out, "0000:03:00.1");
    ASSERT_EQ(pci_address("10000:E1:1f.7", out), 0);
    ASSERT_STR(out, "10000:e1:1f.7");

    static const char *const bad[] = { "",
                                       "0000",
                                       "3",
                                       "3:0",
                                       "3:0.",
                                       "3:0.8",
                                       "3:20.0",
                                       "3:0.0x",
                                       "3:0.0/1",
                                       "../3:0.0",
                                       "1:2:3:4.5",
                                       "0000:3:0",
                                       ":3:0.0",
                                       "0000:03:00,0",
                                       "100:00.0",
                                       "8086:1572",
                                       "-3:0.0",
                                       " 3:0.0",
                                       "000000000:03:00.0" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (pci_address(bad[i], out) != -EINVAL)
            tap_fail(__FILE__, __LINE__, "\"%s\" was taken as %s", bad[i], out);
}

TEST(a_function_is_found_with_its_driver)
{
    TEMPDIR(p);
    struct pci_function f;
    struct err err = ERR_INIT;

    make_host(&p);
    ASSERT_OK(pci_find(p.dir, "03:00.0", &f, &err), err);
    ASSERT_STR(f.address, "0000:03:00.0");
    ASSERT_EQ(f.vendor, 0x8086);
    ASSERT_EQ(f.device, 0x1572);
    ASSERT_STR(f.driver, "i40e");
    ASSERT_OK(pci_find(p.dir, "0000:03:00.0/0", &f, &err), err);
    ASSERT_STR(f.address, "0000:03:02.0");
    ASSERT_STR(f.driver, "vfio-pci");
}

TEST(what_is_not_there_is_named)
{
    TEMPDIR(p);
    struct pci_function f;
    struct err err = ERR_INIT;

    make_host(&p);
    ASSERT_FAIL(pci_find(p.dir, "../../etc", &f, &err), err, ERR_INVALID);
    ASSERT_FAIL(pci_find(p.dir, "05:00.0", &f, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "0000:05:00.0");
    ASSERT_EQ(err.reason, REASON_DEVICE_NOT_FOUND);
    ASSERT_FAIL(pci_find(p.dir, "04:00.0", &f, &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(pci_find(p.dir, "03:00.0/1", &f, &err), err, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "virtual function 1");
    ASSERT_FAIL(pci_find(p.dir, "03:00.0/x", &f, &err), err, ERR_INVALID);
    ASSERT_FAIL(pci_find(p.dir, "03:00.0/70000", &f, &err), err, ERR_INVALID);
}

TEST(vfio_opens_the_device_or_the_error_names_what_is_missing)
{
    TEMPDIR(p);
    AUTO_FREE char *dev = str_format("%s/dev", p.dir);
    struct err err = ERR_INIT;
    int fd = -1;

    make_host(&p);
    ASSERT_OK(pci_open(p.dir, dev, "0000:03:02.0", &fd, &err), err);
    fd_close(fd);
    ASSERT_FAIL(pci_open(p.dir, dev, "0000:03:00.0", &fd, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "vfio-pci");
    ASSERT_FAIL(pci_open_iommu(dev, &fd, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "iommufd");
    ASSERT_EQ(err.reason, REASON_DEVICE_NO_IOMMU);
    tempdir_put(&p, "dev/iommu", "");
    err_clear(&err);
    ASSERT_OK(pci_open_iommu(dev, &fd, &err), err);
    fd_close(fd);
}

/* Group 12: ours, one without a driver, a bridge, and one more with the driver that is named. */
static void make_group(struct tempdir *p, const char *driver)
{
    AUTO_FREE char *target = str_format("../../../bus/pci/drivers/%s", driver);

    tempdir_put(p, "kernel/iommu_groups/12/devices/0000:03:02.0/x", "");
    tempdir_put(p, "kernel/iommu_groups/12/devices/0000:03:02.1/x", "");
    tempdir_put(p, "kernel/iommu_groups/12/devices/0000:03:02.2/x", "");
    tempdir_put(p, "kernel/iommu_groups/12/devices/0000:00:01.0/x", "");
    lead(p, "bus/pci/devices/0000:03:02.0/iommu_group", "../../../kernel/iommu_groups/12");
    tempdir_put(p, "bus/pci/devices/0000:03:02.1/vendor", "0x8086\n");
    tempdir_put(p, "bus/pci/devices/0000:03:02.2/vendor", "0x8086\n");
    tempdir_put(p, "bus/pci/devices/0000:00:01.0/vendor", "0x8086\n");
    lead(p, "bus/pci/devices/0000:00:01.0/driver", "../../../bus/pci/drivers/pcieport");
    lead(p, "bus/pci/devices/0000:03:02.2/driver", target);
}

TEST(a_group_that_a_driver_of_the_host_uses_names_the_rival)
{
    static const struct {
        const char *driver, *rival;
    } cases[] = { { "i40e", "0000:03:02.2" }, { "vfio-pci", "" }, { "pci-stub", "" } };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        TEMPDIR(p);
        struct pci_function f;
        struct err err = ERR_INIT;

        make_host(&p);
        make_group(&p, cases[i].driver);
        ASSERT_OK(pci_find(p.dir, "03:02.0", &f, &err), err);
        ASSERT_STR(f.group, "12");
        ASSERT_STR(f.rival, cases[i].rival);
        ASSERT_STR(f.rival_driver, cases[i].rival[0] ? cases[i].driver : "");
        ASSERT_OK(pci_find(p.dir, "03:00.0", &f, &err), err);
        ASSERT_STR(f.group, ""); /* no IOMMU */
    }
}

TEST(the_host_has_one_way_or_both_or_none)
{
    TEMPDIR(p);
    AUTO_FREE char *dev = str_format("%s/dev", p.dir);

    make_host(&p);
    make_group(&p, "i40e");
    ASSERT_EQ(pci_ways(p.dir, dev, "0000:03:02.0"), 0);
    ASSERT_EQ(pci_ways(p.dir, dev, NULL), 0);
    tempdir_put(&p, "dev/iommu", "");
    ASSERT_EQ(pci_ways(p.dir, dev, "0000:03:02.0"), PCI_IOMMUFD);
    ASSERT_EQ(pci_ways(p.dir, dev, NULL), PCI_IOMMUFD);
    ASSERT_EQ(pci_ways(p.dir, dev, "0000:03:00.0"), 0); /* not bound to vfio-pci */
    tempdir_put(&p, "dev/vfio/vfio", "");
    ASSERT_EQ(pci_ways(p.dir, dev, "0000:03:02.0"), PCI_IOMMUFD);
    ASSERT_EQ(pci_ways(p.dir, dev, NULL), PCI_IOMMUFD | PCI_GROUPS);
    tempdir_put(&p, "dev/vfio/12", "");
    ASSERT_EQ(pci_ways(p.dir, dev, "0000:03:02.0"), PCI_IOMMUFD | PCI_GROUPS);
    ASSERT_EQ(unlink(tempdir_path(&p, "dev/vfio/devices/vfio7")), 0);
    ASSERT_EQ(pci_ways(p.dir, dev, "0000:03:02.0"), PCI_GROUPS);
}

/* That the nodes are QEMU's and work in its jail: qemu_pci_test.c. */
TEST(a_group_is_shown_whole_or_not_at_all)
{
    TEMPDIR(p);
    AUTO_FREE char *dev = str_format("%s/dev", p.dir);
    struct err err = ERR_INIT;

    make_host(&p);
    make_group(&p, "vfio-pci");
    tempdir_put(&p, "jail/x", "");
    AUTO_FD int dir = open(tempdir_path(&p, "jail"), O_PATH | O_DIRECTORY | O_CLOEXEC);
    ASSERT_FAIL(pci_show(dir, p.dir, dev, "0000:03:00.0", 7, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "0000:03:00.0 has no IOMMU group");
    tempdir_put(&p, "dev/vfio/vfio", ""); /* not a device */
    err_clear(&err);
    ASSERT_FAIL(pci_show(dir, p.dir, dev, "0000:03:02.0", 7, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "/dev/vfio/vfio does not exist");
    ASSERT_EQ(access(tempdir_path(&p, "jail/0000:03:02.0"), F_OK), -1);
}

static int of_node(struct tempdir *p, uint32_t minor, struct sbuf *text, struct err *err)
{
    AUTO(strv_release) struct strv got = { 0 };
    int r = pci_of_node(p->dir, 511, minor, &got, err);

    text->len = 0;
    sbuf_addf(text, "%d", r);
    for (size_t i = 0; i < got.n; i++)
        sbuf_addf(text, " %s", got.v[i]);
    return r;
}

TEST(a_node_of_vfio_stands_for_the_functions_of_its_group)
{
    static const char *const groups[] = { "12/devices/0000:04:00.0", "12/devices/0000:04:00.1",
                                          "12/devices/0000:04:00.2", "12/devices/0000:04:00.3",
                                          "12/devices/0000:00:01.0", "13/devices/0000:00:01.0",
                                          "14/devices/mdev" };
    TEMPDIR(p);
    AUTO(sbuf_release) struct sbuf text = { 0 };
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
        AUTO_FREE char *name = str_format("kernel/iommu_groups/%s/x", groups[i]);

        tempdir_put(&p, name, "");
    }
    tempdir_put(&p, "bus/pci/devices/0000:00:01.0/class", "0x060400\n");
    tempdir_put(&p, "bus/pci/devices/0000:04:00.0/class", "0x030000\n");
    tempdir_put(&p, "dev/char/none", "");
    lead(&p, "dev/char/511:0", "../../devices/virtual/vfio/12");
    lead(&p, "dev/char/511:1", "../../devices/virtual/vfio/13");
    lead(&p, "dev/char/511:2", "../../devices/virtual/vfio/14");
    lead(&p, "dev/char/511:3", "../../devices/pci0000:00/0000:04:00.0/vfio-dev/vfio3");
    lead(&p, "dev/char/511:4", "../../devices/platform/x/vfio-dev/vfio4");
    lead(&p, "dev/char/511:5", "../../devices/virtual/misc/vfio");
    lead(&p, "dev/char/511:6", "../../devices/virtual/misc/fuse");

    ASSERT_EQ(of_node(&p, 0, &text, &err), 1);
    ASSERT_STR(text.data, "1 0000:04:00.0 0000:04:00.1 0000:04:00.2 0000:04:00.3"); /* no bridge */
    ASSERT_FAIL(of_node(&p, 1, &text, &err), err, ERR_NOT_FOUND);
    ASSERT_MSG(err.msg, "vfio group 13 has no PCI function");
    ASSERT_FAIL(of_node(&p, 2, &text, &err), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "vfio group 14 has mdev, which is not a PCI function");
    ASSERT_EQ(of_node(&p, 3, &text, &err), 1);
    ASSERT_STR(text.data, "1 0000:04:00.0");
    ASSERT_FAIL(of_node(&p, 4, &text, &err), err, ERR_INVALID);
    ASSERT_EQ(of_node(&p, 5, &text, &err), 1);
    ASSERT_STR(text.data, "1");
    ASSERT_EQ(of_node(&p, 6, &text, &err), 0);
    ASSERT_EQ(of_node(&p, 7, &text, &err), 0);
}
