/* PCI devices of the backend with a puppet in QEMU's place: everything is real but the program in
 * the jail, which misbehaves as its name says. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "harness/place.h"
#include "harness/tap.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/vmm.h"

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture {
    struct ctx *ctx;
    struct ctx root; /* without the limit of a test: many of these are started in one */
    struct place place;
    char *run_dir, *kernel, *initrd, *cpuinfo, *id;
    struct qemu_test_env env;
    struct vmm *v;
    char *dev;
};

static void put(struct fixture *f, const char *name, const char *text)
{
    AUTO_FREE char *path = str_dup(place_path(&f->place, name));
    AUTO_FREE char *parent = str_ndup(path, (size_t)(strrchr(path, '/') - path));

    ASSERT_EQ(dir_make(parent, 0755), 0);
    ASSERT_EQ(file_write(path, text, strlen(text), 0644), 0);
}

static void start(struct ctx *ctx, struct fixture *f, const char *part)
{
    Elf64_Ehdr elf = { .e_machine = EM_X86_64, .e_phnum = 1 };
    struct err err = ERR_INIT;

    if (geteuid() != 0)
        tap_skip("jail and network namespace need root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun here");
    if (!getenv("QEMU_PCI_PUPPET"))
        tap_skip("QEMU_PCI_PUPPET does not name the puppet");
    *f = (struct fixture){ .root = ctx_root(ctx->loop) };
    ctx = f->ctx = &f->root;
    place_init(&f->place, "/tmp");
    f->run_dir = str_format("%s/ns/vm", f->place.dir);
    f->kernel = str_format("%s/kernel", f->place.dir);
    f->initrd = str_format("%s/initrd", f->place.dir);
    f->cpuinfo = str_format("%s/cpuinfo", f->place.dir);
    f->id = str_format("%s@vm", part);
    f->dev = str_format("%s/dev", f->place.dir);
    f->env = (struct qemu_test_env){ f->cpuinfo, "/dev/zero", f->place.dir, f->dev };
    put(f, "bus/pci/devices/0000:03:00.0/vfio-dev/vfio0/dev", "511:0\n");
    put(f, "dev/vfio/devices/vfio0", "");
    put(f, "dev/iommu", "");
    memcpy(elf.e_ident, ELFMAG, SELFMAG);
    elf.e_ident[EI_CLASS] = ELFCLASS64;
    ASSERT_EQ(file_write(f->kernel, &elf, sizeof(elf), 0600), 0);
    ASSERT_EQ(file_write(f->initrd, "070701", 6, 0600), 0);
    ASSERT_EQ(file_write(f->cpuinfo, "flags\t: fpu\n", 12, 0600), 0);
    const struct vm_doc doc = { .id = f->id,
                                .run_dir = f->run_dir,
                                .vmm_path = getenv("QEMU_PCI_PUPPET"),
                                .kernel = f->kernel,
                                .initrd = f->initrd,
                                .memory_mib = 256,
                                .cpus = 1,
                                .max_cpus = 1,
                                .allow_emulation = true,
                                .uid_base = 61300,
                                .uid_count = 4,
                                .pci_ports = 2 };
    f->v = qemu_vmm_new_for_test(ctx->loop, &f->env);
    ASSERT_OK(f->v->ops->create(ctx, f->v, &doc, &err), err);
    ASSERT_OK(f->v->ops->start(ctx, f->v, &err), err);
}

/* The puppet must have nothing left, and must not have choked. */
static void finish(struct fixture *f)
{
    struct vmm_exit e;
    struct err err = ERR_INIT;

    ASSERT_OK(f->v->ops->quit(f->ctx, f->v, &err), err);
    ASSERT_OK(f->v->ops->wait(f->ctx, f->v, &e, &err), err);
    if (!WIFEXITED(e.status) || WEXITSTATUS(e.status) != 0)
        tap_fail(__FILE__, __LINE__, "the puppet ended with status 0x%x: %s", e.status, e.why);
    ASSERT_OK(f->v->ops->release(f->ctx, f->v, &err), err);
    f->v->ops->free(f->v);
    free(f->run_dir);
    free(f->kernel);
    free(f->initrd);
    free(f->cpuinfo);
    free(f->id);
    free(f->dev);
    place_release_auto(&f->place);
}

#define NIC "0000:03:00.0"

static int add(struct fixture *f, const char *address, const char *id, uint64_t timeout,
               struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->ctx, timeout);
    AUTO_FREE char *place = NULL;

    return f->v->ops->pci_add(&limited, f->v, address, id, &place, err);
}

static int take(struct fixture *f, const char *id, uint64_t timeout, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->ctx, timeout);

    return f->v->ops->pci_remove(&limited, f->v, id, err);
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
    ASSERT_OK(f.v->ops->pci_add(f.ctx, f.v, NIC, "a", &place, &err), err);
    ASSERT_STR(place, "0000:00:10.0/00.0");
    f.v->ops->info(f.v, &info);
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
