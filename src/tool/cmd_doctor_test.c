#include "harness/tap.h"
#include "tool/cmd_doctor.h"

TEST(versions_are_found_in_what_programs_print)
{
    static const struct {
        const char *text;
        unsigned major, minor;
    } cases[] = {
        { "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\nCopyright", 10, 0 },
        { "QEMU emulator version 7.2.17", 7, 2 },
        { "QEMU emulator version 8.2.0-rc1", 8, 2 },
        { "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1", 1, 6 },
        { "containerd containerd.io v2x 1.7.24", 1, 7 },
    };
    struct doctor_version v;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ASSERT(doctor_parse_version(cases[i].text, &v));
        ASSERT_EQ(v.major, cases[i].major);
        ASSERT_EQ(v.minor, cases[i].minor);
    }
    ASSERT(!doctor_parse_version("", &v));
    ASSERT(!doctor_parse_version("no number", &v));
    ASSERT(!doctor_parse_version("version 12", &v));
}

TEST(containerd_with_a_leading_v_has_its_version_found)
{
    struct doctor_version v;

    ASSERT(doctor_parse_version("containerd github.com/containerd/containerd/v2 v2.1.9 abc", &v));
    ASSERT_EQ(v.major, 2);
    ASSERT_EQ(v.minor, 1);
}

TEST(devices_are_matched_by_their_whole_name)
{
    static const char help[] = "Network devices:\nname \"virtio-net-pci\", bus PCI, alias "
                               "\"virtio-net\"\nname \"scsi-hd\", bus SCSI\n";

    ASSERT(doctor_has_device(help, "virtio-net-pci"));
    ASSERT(doctor_has_device(help, "scsi-hd"));
    ASSERT(!doctor_has_device(help, "virtio-net"));
    ASSERT(!doctor_has_device(help, "virtio-9p-pci"));
}

TEST(available_memory_is_read)
{
    uint64_t mib = 0;

    ASSERT(doctor_parse_available("MemTotal: 9 kB\nMemAvailable:   24327168 kB\n", &mib));
    ASSERT_EQ(mib, 23757);
    ASSERT(!doctor_parse_available("MemTotal: 9 kB\n", &mib));
    ASSERT(!doctor_parse_available("MemAvailable: lots\n", &mib));
}

TEST(controllers_of_both_cgroup_versions_are_found)
{
    static const char v1[] = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t2\t1\n"
                             "memory\t5\t7\t1\npids\t0\t1\t1\nblkio\t4\t1\t0\n";

    ASSERT(doctor_cgroup_v1_has(v1, "memory"));
    ASSERT(!doctor_cgroup_v1_has(v1, "pids"));
    ASSERT(!doctor_cgroup_v1_has(v1, "blkio"));
    ASSERT(!doctor_cgroup_v1_has(v1, "mem"));
    ASSERT(doctor_has_word("cpuset cpu io memory pids\n", "memory"));
    ASSERT(!doctor_has_word("cpuset memoryx hugememory\n", "memory"));
}
