/* NICs of the backend with a puppet in QEMU's place: everything is real but the program in the
 * jail, which misbehaves as its name says. */
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

#define AMPLE (30 * NS_PER_S) /* for what succeeds, on a machine that has other things to do */
#define ENOUGH NS_PER_S       /* for what never comes, once all before it has */

struct fixture {
    struct ctx *ctx;
    struct place place;
    char *run_dir, *kernel, *initrd, *cpuinfo, *id;
    struct qemu_test_env env;
    struct vmm *v;
    int tap;
};

static void start(struct ctx *ctx, struct fixture *f, const char *part)
{
    Elf64_Ehdr elf = { .e_machine = EM_X86_64, .e_phnum = 1 };
    struct err err = ERR_INIT;

    if (geteuid() != 0)
        tap_skip("jail and network namespace need root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun here");
    if (!getenv("QEMU_NIC_PUPPET"))
        tap_skip("QEMU_NIC_PUPPET does not name the puppet");
    *f = (struct fixture){ .ctx = ctx };
    place_init(&f->place, "/tmp");
    f->run_dir = str_format("%s/ns/vm", f->place.dir);
    f->kernel = str_format("%s/kernel", f->place.dir);
    f->initrd = str_format("%s/initrd", f->place.dir);
    f->cpuinfo = str_format("%s/cpuinfo", f->place.dir);
    f->id = str_format("%s@vm", part);
    f->env = (struct qemu_test_env){ f->cpuinfo, "/dev/zero" };
    memcpy(elf.e_ident, ELFMAG, SELFMAG);
    elf.e_ident[EI_CLASS] = ELFCLASS64;
    ASSERT_EQ(file_write(f->kernel, &elf, sizeof(elf), 0600), 0);
    ASSERT_EQ(file_write(f->initrd, "070701", 6, 0600), 0);
    ASSERT_EQ(file_write(f->cpuinfo, "flags\t: fpu\n", 12, 0600), 0);
    const struct vm_doc doc = { .id = f->id,
                                .run_dir = f->run_dir,
                                .vmm_path = getenv("QEMU_NIC_PUPPET"),
                                .kernel = f->kernel,
                                .initrd = f->initrd,
                                .memory_mib = 256,
                                .cpus = 1,
                                .max_cpus = 1,
                                .allow_emulation = true,
                                .uid_base = 61200,
                                .uid_count = 4,
                                .scsi_controllers = 1 };
    f->v = qemu_vmm_new_for_test(ctx->loop, &f->env);
    ASSERT_OK(f->v->ops->create(ctx, f->v, &doc, &err), err);
    ASSERT_OK(f->v->ops->start(ctx, f->v, &err), err);
    f->tap = open("/dev/null", O_RDWR | O_CLOEXEC);
    ASSERT(f->tap >= 0);
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
    fd_close(f->tap);
    free(f->run_dir);
    free(f->kernel);
    free(f->initrd);
    free(f->cpuinfo);
    free(f->id);
    place_release_auto(&f->place);
}

static int add(struct fixture *f, const char *id, uint64_t timeout, struct err *err)
{
    const struct vmm_nic n = { .id = id, .tap_fd = f->tap, .mac = { 2 }, .mtu = 1500, .queues = 1 };
    struct ctx limited = ctx_with_timeout(f->ctx, timeout);

    return f->v->ops->nic_add(&limited, f->v, &n, err);
}

static int take(struct fixture *f, const char *id, uint64_t timeout, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->ctx, timeout);

    return f->v->ops->nic_remove(&limited, f->v, id, err);
}

static const char *const steps[] = { "getfd", "netdev_add", "device_add" };

TEST_FIBER(a_nic_that_qemu_refuses_at_any_step_leaves_nothing)
{
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        AUTO_FREE char *part = str_format("error.%s", steps[i]);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, "a", AMPLE, &err), err, ERR_UNKNOWN);
        ASSERT_HAS(err.msg, steps[i]);
        ASSERT_OK(add(&f, "a", AMPLE, &err), err);
        ASSERT_FAIL(add(&f, "a", AMPLE, &err), err, ERR_EXISTS);
        ASSERT_OK(add(&f, "b", AMPLE, &err), err);
        ASSERT_OK(take(&f, "a", AMPLE, &err), err);
        ASSERT_OK(take(&f, "a", AMPLE, &err), err); /* gone is gone */
        ASSERT_OK(take(&f, "b", AMPLE, &err), err);
        finish(&f);
    }
}

TEST_FIBER(a_step_whose_answer_is_lost_is_undone_all_the_same)
{
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        AUTO_FREE char *part = str_format("lost.%s", steps[i]);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, "a", 200 * NS_PER_MS, &err), err, ERR_DEADLINE);
        finish(&f);
    }
}

TEST_FIBER(a_removal_that_fails_at_any_step_goes_on_where_it_stopped)
{
    static const char *const back[] = { "device_del", "netdev_del" };

    for (size_t i = 0; i < ARRAY_LEN(back); i++)
        for (int lost = 0; lost < 2; lost++) {
            AUTO_FREE char *part = str_format("%s.%s", lost ? "lost" : "error", back[i]);
            struct fixture f;
            struct err err = ERR_INIT;

            start(ctx, &f, part);
            ASSERT_OK(add(&f, "a", AMPLE, &err), err);
            ASSERT_FAIL(take(&f, "a", lost ? ENOUGH : AMPLE, &err), err,
                        lost ? ERR_DEADLINE : ERR_UNKNOWN);
            ASSERT_OK(take(&f, "a", AMPLE, &err), err);
            finish(&f);
        }
}

/* The event that frees the name may be on its way still. */
static int add_when_free(struct fixture *f, const char *id, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->ctx, AMPLE);

    while (add(f, id, AMPLE, err) < 0)
        if (err->code != ERR_EXISTS || fiber_sleep(&limited, NS_PER_MS, &(struct err){ 0 }) < 0)
            return -1;
    return 0;
}

TEST_FIBER(a_guest_that_does_not_let_go_is_cut_off)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "deaf.device_del");
    ASSERT_OK(add(&f, "a", AMPLE, &err), err);
    ASSERT_OK(take(&f, "a", AMPLE, &err), err);
    /* It lets go behind that; the next call takes the rest, and the name is free again. */
    ASSERT_OK(take(&f, "a", AMPLE, &err), err);
    ASSERT_OK(add_when_free(&f, "a", &err), err);
    ASSERT_OK(add(&f, "b", AMPLE, &err), err);
    f.v->ops->terminate(f.v);
    struct vmm_exit e;
    ASSERT_OK(f.v->ops->wait(ctx, f.v, &e, &err), err);
    ASSERT_OK(take(&f, "b", AMPLE, &err), err); /* went with it */
    ASSERT_OK(f.v->ops->release(ctx, f.v, &err), err);
    f.v->ops->free(f.v);
    fd_close(f.tap);
    free(f.run_dir);
    free(f.kernel);
    free(f.initrd);
    free(f.cpuinfo);
    free(f.id);
    place_release_auto(&f.place);
}

TEST_FIBER(names_and_sizes_that_are_none_are_refused)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct vmm_nic n = { .id = "a", .mtu = 60, .queues = 1 };

    start(ctx, &f, "fine");
    ASSERT_FAIL(add(&f, "", AMPLE, &err), err, ERR_INVALID);
    ASSERT_FAIL(add(&f, "a,b", AMPLE, &err), err, ERR_INVALID);
    n.tap_fd = f.tap;
    ASSERT_FAIL(f.v->ops->nic_add(ctx, f.v, &n, &err), err, ERR_INVALID);
    n.mtu = 1500;
    n.queues = 2;
    ASSERT_FAIL(f.v->ops->nic_add(ctx, f.v, &n, &err), err, ERR_UNIMPLEMENTED);
    finish(&f);
}
