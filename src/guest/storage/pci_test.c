#include "base/fd.h"
#include "base/str.h"
#include "guest/storage/pci.h"
#include "harness/tap.h"
#include "harness/tempdir.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PORT "devices/pci0000:00/0000:00:10.0"
#define NVME PORT "/0000:05:00.0"

static void lead(struct tempdir *p, const char *name, const char *target)
{
    ASSERT_EQ(symlink(target, tempdir_path(p, name)), 0);
}

/* As a guest's /sys looks once nvme has found its disk. */
static void make_sys(struct tempdir *p, bool with_disk)
{
    tempdir_put(p, NVME "/class", "0x010802\n");
    tempdir_put(p, NVME "/modalias", "pci:v00001B36d00000010sv00001AF4sd00001100bc01sc08i02\n");
    tempdir_put(p, NVME "/driver/name", "");
    tempdir_put(p, NVME "/nvme/nvme0/uevent", "MAJOR=240\nMINOR=0\nDEVNAME=nvme0\n");
    tempdir_put(p, PORT "/class", "0x060400\n");
    tempdir_put(p, PORT "/pci_bus/0000:05/rescan", "");
    tempdir_put(p, PORT "/0000:05:00.0:pcie001/x", "");
    tempdir_put(p, "devices/pci0000:00/0000:00:10.00/uevent", "DEVNAME=other\n");
    tempdir_put(p, "bus/pci/devices/x", "");
    tempdir_put(p, "dev/char/x", "");
    tempdir_put(p, "dev/block/x", "");
    lead(p, "bus/pci/devices/0000:00:10.0", "../../../" PORT);
    lead(p, "dev/char/240:0", "../../" NVME "/nvme/nvme0");
    lead(p, "dev/char/10:1", "../../devices/pci0000:00/0000:00:10.00");
    lead(p, "dev/char/10:2", "../../nothing");
    if (!with_disk)
        return;
    tempdir_put(p, NVME "/nvme/nvme0/nvme0n1/uevent", "DEVNAME=nvme0n1\nMAJOR=259\nMINOR=3\n");
    lead(p, "dev/block/259:3", "../../" NVME "/nvme/nvme0/nvme0n1");
}

static void collect(void *arg, const struct pci_node *n)
{
    sbuf_addf(arg, "%s %c %u:%u\n", n->path, n->type, n->major, n->minor);
}

TEST(a_device_is_found_behind_its_port)
{
    TEMPDIR(p);
    AUTO_FREE char *dir = NULL;

    make_sys(&p, true);
    ASSERT_EQ(pci_find(p.dir, "0000:00:10.0/00.0", &dir), 0);
    ASSERT_STR(dir, tempdir_path(&p, NVME));
    ASSERT_EQ(pci_find(p.dir, "0000:00:10.0/01.0", &dir), -ENXIO);
    ASSERT_EQ(pci_find(p.dir, "0000:00:11.0/00.0", &dir), -ENXIO);
}

TEST(an_invalid_place_reaches_no_file)
{
    static const char *const bad[] = { "",
                                       "0000:00:10.0",
                                       "../../../../etc/0",
                                       "0000:00:10.0/../x",
                                       "0000:00:10.0/00.0/",
                                       "0000:00:10.0/00.0x",
                                       "b1d7c6f2-0a3e-4f25-9d0c-77d1f0a4c911",
                                       "0000:00:10.0/00.00000000000000000000000000000000000" };
    char *dir = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ASSERT_EQ(pci_find("/sys", bad[i], &dir), -EINVAL);
}

TEST(a_bus_is_rescanned_to_know_that_all_is_there)
{
    TEMPDIR(p);
    AUTO_FREE char *text = NULL;
    size_t len;

    make_sys(&p, true);
    ASSERT_EQ(pci_settle(p.dir, "0000:00:10.0/00.0"), 0);
    ASSERT_EQ(file_read_all(tempdir_path(&p, PORT "/pci_bus/0000:05/rescan"), 16, &text, &len), 0);
    ASSERT_STR(text, "1");
    ASSERT_EQ(pci_settle(p.dir, "0000:00:11.0/00.0"), -ENXIO);
}

TEST(its_nodes_are_those_below_it_and_no_others)
{
    TEMPDIR(p);
    AUTO_FREE char *dir = NULL;
    AUTO(sbuf_release) struct sbuf out = { 0 };

    make_sys(&p, true);
    dir = str_dup(tempdir_path(&p, NVME));
    ASSERT_EQ(pci_nodes(p.dir, dir, collect, &out), 0);
    ASSERT_STR(out.data, "/dev/nvme0 c 240:0\n/dev/nvme0n1 b 259:3\n");
}

TEST(a_disk_controller_without_its_disk_is_not_ready)
{
    TEMPDIR(with);
    TEMPDIR(without);
    AUTO_FREE char *dir = NULL;

    make_sys(&with, true);
    make_sys(&without, false);
    dir = str_format("%s/" NVME, with.dir);
    ASSERT(!pci_lacks_disk(with.dir, dir));
    free(dir);
    dir = str_format("%s/" NVME, without.dir);
    ASSERT(pci_lacks_disk(without.dir, dir));
    ASSERT_EQ(dir_remove(tempdir_path(&without, NVME "/driver")), 0);
    ASSERT(!pci_lacks_disk(without.dir, dir)); /* no driver probes for one */
    ASSERT(!pci_has_driver(dir));
    free(dir);
    dir = str_format("%s/" PORT, without.dir);
    ASSERT(!pci_lacks_disk(without.dir, dir)); /* a bridge */
}

TEST(its_modules_are_found_by_alias)
{
    static const char aliases[] = "# comment\n"
                                  "alias pci:v*d*sv*sd*bc01sc08i02* nvme\n"
                                  "alias pci:v00001B36d00000010sv*sd*bc*sc*i* nvme\n"
                                  "alias pci:v00001B36d00000011sv*sd*bc*sc*i* other\n"
                                  "alias pci:v00001B36d*sv*sd*bc*sc*i* quirk\n"
                                  "alias short\n"
                                  "softdep nvme pre: x\n";
    TEMPDIR(p);
    AUTO_FREE char *dir = NULL;
    AUTO(strv_release) struct strv names = { 0 };

    make_sys(&p, true);
    dir = str_dup(tempdir_path(&p, NVME));
    ASSERT_EQ(pci_modules(dir, aliases, &names), 0);
    ASSERT_EQ(names.n, 2);
    ASSERT_STR(names.v[0], "nvme");
    ASSERT_STR(names.v[1], "quirk");
    ASSERT_EQ(pci_modules(p.dir, aliases, &names), -ENXIO);
}
