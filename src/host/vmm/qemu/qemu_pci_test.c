/* PCI devices of the backend with a peer in QEMU's place: everything is real but the program in
 * the jail, which misbehaves as its name says. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "fixture/qemu_fixture.h"

#include <stdlib.h>
#include <string.h>

struct fixture {
    struct qemu_fixture fixture;
    struct ctx root; /* without the limit of a test: many of these are started in one */
    char *dev;
};

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
    fixture_start(&f->fixture);
}

static void finish(struct fixture *f)
{
    fixture_quit(&f->fixture);
    free(f->dev);
}

#define NIC "0000:03:00.0"

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
    { NIC, "device_add" },
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

TEST_FIBER(a_removal_that_fails_at_any_step_goes_on_where_it_stopped)
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

TEST_FIBER(a_guest_that_does_not_let_go_keeps_the_device_and_is_told_of)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "deaf.device_del");
    ASSERT_OK(add(&f, "test:nvme", "a", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "a", 60 * NS_PER_S, &err), err); /* bounded, and then it is over */
    ASSERT_FAIL(add(&f, "test:nvme", "b", 30 * NS_PER_S, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "has not let go");
    /* Its port is not given away. It lets go behind that: the next call takes the rest. */
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
    ASSERT_HAS(err.msg, "vfio-pci");
    finish(&f);
}

TEST_FIBER(names_that_are_none_and_ports_that_are_taken_are_refused)
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
    ASSERT_HAS(err.msg, "device_slots");
    ASSERT_OK(take(&f, "a", 30 * NS_PER_S, &err), err);
    ASSERT_OK(take(&f, "b", 30 * NS_PER_S, &err), err);
    finish(&f);
}
