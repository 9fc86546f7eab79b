/* PCI devices of the backend with a peer in QEMU's place: everything is real but the program in
 * the jail, which misbehaves as its name says. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "fixture/qemu_fixture.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct fixture {
    struct qemu_fixture fixture;
    struct ctx root; /* without the limit of a test: many of these are started in one */
    char *dev;
};

#define NIC "0000:03:00.0"   /* by iommufd */
#define GPU "0000:04:00.0"   /* by its group */
#define SOUND "0000:04:00.1" /* of the same group */

/* A device of the kernel that anybody may open: what vfio's nodes do is not tested here. */
static void put_node(struct fixture *f, const char *name)
{
    AUTO_FREE char *path = str_format("%s/%s", f->dev, name);

    ASSERT_EQ(mknod(path, S_IFCHR | 0600, makedev(1, 3)), 0);
}

static void put_function(struct fixture *f, const char *address)
{
    AUTO_FREE char *name = str_format("bus/pci/devices/%s/vendor", address);

    tempdir_put(&f->fixture.temp, name, "0x10de\n");
    AUTO_FREE char *link =
        str_format("%s/bus/pci/devices/%s/iommu_group", f->fixture.temp.dir, address);
    ASSERT_EQ(symlink("../../../../kernel/iommu_groups/12", link), 0);
}

static void start(struct ctx *ctx, struct fixture *f, const char *part)
{
    f->root = ctx_root(ctx->loop);
    fixture_prepare(&f->root, &f->fixture, part, "", 61300);
    f->dev = str_format("%s/dev", f->fixture.temp.dir);
    f->fixture.env.pci_sys = f->fixture.temp.dir;
    f->fixture.env.pci_dev = f->dev;
    f->fixture.doc.pci_ports = 2;
    tempdir_put(&f->fixture.temp, "bus/pci/devices/0000:03:00.0/vfio-dev/vfio0/dev", "511:0\n");
    tempdir_put(&f->fixture.temp, "dev/vfio/devices/vfio0", "");
    tempdir_put(&f->fixture.temp, "dev/iommu", "");
    put_node(f, "vfio/vfio");
    put_node(f, "vfio/12");
    put_node(f, "vfio/13");
    put_function(f, GPU);
    put_function(f, SOUND);
    fixture_start(&f->fixture);
}

static void finish(struct fixture *f)
{
    fixture_quit(&f->fixture);
    free(f->dev);
}

static int add(struct fixture *f, const char *address, const char *id, uint64_t timeout,
               struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, timeout);
    AUTO_FREE char *place = NULL;

    return f->fixture.v->ops->pci_add(&limited, f->fixture.v, address, id, &place, err);
}

static int take(struct fixture *f, const char *id, uint64_t timeout, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, timeout);

    return f->fixture.v->ops->pci_remove(&limited, f->fixture.v, id, err);
}

/* What is asked for on the way to each kind of device. */
static const struct step {
    const char *address, *command;
} steps[] = {
    { "test:edu", "device_add" },  { "test:nvme", "add-fd" }, { "test:nvme", "blockdev-add" },
    { "test:nvme", "device_add" }, { NIC, "getfd" },          { NIC, "object-add" },
    { NIC, "device_add" },         { GPU, "device_add" },
};

TEST_FIBER(a_device_that_qemu_refuses_at_any_step_leaves_nothing)
{
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        AUTO_FREE char *part = str_format("error.%s", steps[i].command);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, steps[i].address, "a", 30 * NS_PER_S, &err), err, ERR_UNKNOWN);
        ASSERT_HAS(err.msg, steps[i].command);
        ASSERT_OK(add(&f, steps[i].address, "b", 30 * NS_PER_S, &err), err);
        ASSERT_FAIL(add(&f, steps[i].address, "c", 30 * NS_PER_S, &err), err, ERR_EXISTS);
        ASSERT_OK(take(&f, "b", 30 * NS_PER_S, &err), err);
        ASSERT_OK(take(&f, "b", 30 * NS_PER_S, &err), err); /* gone is gone */
        finish(&f);
    }
}

TEST_FIBER(a_step_whose_answer_is_lost_is_undone_all_the_same)
{
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        if (str_eq(steps[i].command, "object-add"))
            continue; /* the IOMMU's object stays for the next device */
        AUTO_FREE char *part = str_format("lost.%s", steps[i].command);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, steps[i].address, "a", 200 * NS_PER_MS, &err), err, ERR_DEADLINE);
        finish(&f);
    }
}

TEST_FIBER(a_removal_that_fails_at_any_step_continues_there)
{
    static const char *const back[] = { "device_del", "blockdev-del" };

    for (size_t i = 0; i < ARRAY_LEN(back); i++)
        for (int lost = 0; lost < 2; lost++) {
            AUTO_FREE char *part = str_format("%s.%s", lost ? "lost" : "error", back[i]);
            struct fixture f;
            struct err err = ERR_INIT;

            start(ctx, &f, part);
            ASSERT_OK(add(&f, "test:nvme", "a", 30 * NS_PER_S, &err), err);
            ASSERT_FAIL(take(&f, "a", lost ? 2 * NS_PER_S : 60 * NS_PER_S, &err), err,
                        lost ? ERR_DEADLINE : ERR_UNKNOWN);
            ASSERT_OK(take(&f, "a", 30 * NS_PER_S, &err), err);
            finish(&f);
        }
}

TEST_FIBER(a_device_that_the_guest_does_not_release_stays_and_is_reported)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "deaf.device_del");
    ASSERT_OK(add(&f, "test:nvme", "a", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "a", 60 * NS_PER_S, &err), err); /* succeeds, in bounded time */
    ASSERT_FAIL(add(&f, "test:nvme", "b", 30 * NS_PER_S, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "did not release");
    /* Its port is not used again until the guest has released it; the next call removes the rest.
     */
    ASSERT_OK(add(&f, "test:edu", "c", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "c", 30 * NS_PER_S, &err), err);
    ASSERT_OK(add(&f, "test:nvme", "d", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "d", 30 * NS_PER_S, &err), err);
    finish(&f);
}

/* CAP_SYS_RESOURCE, which root in a container may lack. */
static bool may_raise_limits(void)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all("/proc/self/status", 1 << 16, &text, &len), 0);
    const char *caps = strstr(text, "CapEff:");
    return caps && strtoull(caps + strlen("CapEff:"), NULL, 16) >> 24 & 1;
}

TEST_FIBER(a_function_of_the_host_comes_as_descriptors)
{
    struct fixture f;
    struct vmm_info info;
    struct err err = ERR_INIT;
    AUTO_FREE char *place = NULL, *text = NULL;
    size_t len;

    start(ctx, &f, "fine");
    ASSERT_OK(f.fixture.v->ops->pci_add(f.fixture.ctx, f.fixture.v, NIC, "a", &place, &err), err);
    ASSERT_STR(place, "0000:00:10.0/00.0");
    f.fixture.v->ops->info(f.fixture.v, &info);
    AUTO_FREE char *path = str_format("/proc/%d/limits", info.pid);
    ASSERT_EQ(file_read_all(path, 1 << 16, &text, &len), 0);
    if (may_raise_limits())
        ASSERT_HAS(text, "Max locked memory         1342177280"); /* 256 MiB and 1 GiB */
    ASSERT_OK(take(&f, "a", 30 * NS_PER_S, &err), err);
    /* The next one shares the IOMMU's. */
    ASSERT_OK(add(&f, NIC, "b", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "b", 30 * NS_PER_S, &err), err);
    ASSERT_FAIL(add(&f, "0000:09:00.0", "c", 30 * NS_PER_S, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "0000:09:00.0 has no IOMMU group");
    finish(&f);
}

/* What QEMU sees of vfio. */
static int count_in_jail(struct fixture *f)
{
    struct vmm_info info;
    int n = 0;

    f->fixture.v->ops->info(f->fixture.v, &info);
    AUTO_FREE char *path = str_format("/proc/%d/root/dev/vfio", info.pid);
    AUTO(closedir) DIR *dir = opendir(path);
    ASSERT(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    return n;
}

/* The peer looks at the nodes: this group's alone, its own, and not to be changed. */
TEST_FIBER(a_function_of_a_group_has_nodes_in_the_jail_while_it_is_added)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "fine");
    ASSERT_EQ(count_in_jail(&f), 0);
    ASSERT_OK(add(&f, GPU, "a", 30 * NS_PER_S, &err), err);
    ASSERT_EQ(count_in_jail(&f), 0);
    ASSERT_OK(add(&f, SOUND, "b", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "a", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "b", 30 * NS_PER_S, &err), err);
    ASSERT_OK(add(&f, GPU, "c", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "c", 30 * NS_PER_S, &err), err);
    finish(&f);
}

TEST_FIBER(a_group_that_another_vm_has_is_an_error_that_says_why)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "busy.device_add");
    ASSERT_FAIL(add(&f, GPU, "a", 30 * NS_PER_S, &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_DEVICE_IN_USE);
    ASSERT_MSG_HAS(err.msg, "add PCI device 0000:04:00.0: another VM or program has");
    ASSERT_EQ(count_in_jail(&f), 0);
    finish(&f);
}

TEST_FIBER(an_old_qemu_has_devices_by_their_groups_alone)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "fine");
    strcpy(qemu_of(f.fixture.v)->version, "8.2.0");
    ASSERT_OK(add(&f, GPU, "a", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "a", 30 * NS_PER_S, &err), err);
    ASSERT_FAIL(add(&f, NIC, "b", 30 * NS_PER_S, &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_QEMU_TOO_OLD);
    ASSERT_MSG_HAS(err.msg,
                   "this host has only iommufd, which needs QEMU 9.0 or later; this is 8.2.0");
    finish(&f);
}

TEST_FIBER(invalid_names_and_used_ports_are_refused)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "fine");
    ASSERT_FAIL(add(&f, "test:edu", "", NS_PER_S, &err), err, ERR_INVALID);
    ASSERT_FAIL(add(&f, "test:edu", "a,b", NS_PER_S, &err), err, ERR_INVALID);
    ASSERT_FAIL(add(&f, "test:usb", "a", NS_PER_S, &err), err, ERR_INVALID);
    ASSERT_FAIL(add(&f, "3:0.0", "a", NS_PER_S, &err), err, ERR_INVALID);
    ASSERT_FAIL(add(&f, "0000:03:00.0,x=y", "a", NS_PER_S, &err), err, ERR_INVALID);
    ASSERT_OK(add(&f, "test:edu", "a", 30 * NS_PER_S, &err), err);
    ASSERT_OK(add(&f, "test:nvme", "b", 30 * NS_PER_S, &err), err);
    ASSERT_FAIL(add(&f, NIC, "c", 30 * NS_PER_S, &err), err, ERR_EXHAUSTED);
    ASSERT_MSG_HAS(err.msg, "device_slots");
    ASSERT_OK(take(&f, "a", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "b", 30 * NS_PER_S, &err), err);
    finish(&f);
}
