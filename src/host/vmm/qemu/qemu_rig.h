/* qemu_rig.h - for tests: a VM of the backend with a puppet in QEMU's place; everything is real but
 * the program in the jail, which $QEMU_PUPPET names. */
#pragma once
#include "base/ctx.h"
#include "base/fd.h"
#include "base/str.h"
#include "harness/place.h"
#include "harness/tap.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/vmm.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct rig {
    struct ctx *ctx;
    struct place place;
    char *run_dir, *kernel, *initrd, *cpuinfo, *id;
    struct qemu_test_env env;
    struct vm_doc doc;
    struct vmm *v;
};

/* The smallest kernel that is taken for one. */
static inline void rig_write_kernel(const char *path, uint16_t n_segments)
{
    Elf64_Ehdr elf = { .e_machine = EM_X86_64, .e_phnum = n_segments };

    memcpy(elf.e_ident, ELFMAG, SELFMAG);
    elf.e_ident[EI_CLASS] = ELFCLASS64;
    ASSERT_EQ(file_write(path, &elf, sizeof(elf), 0600), 0);
}

/* Files and document, no VMM yet. part: which one the puppet plays. flags: of the processor. Skips
 * the test where it cannot be. uid_base: each program of tests has its own, they run at once. */
static inline void rig_prepare(struct ctx *ctx, struct rig *r, const char *part, const char *flags,
                               uint32_t uid_base)
{
    AUTO_FREE char *cpuinfo = str_format("flags\t: fpu %s\n", flags);

    if (geteuid() != 0)
        tap_skip("jail and network namespace need root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun here");
    if (!getenv("QEMU_PUPPET"))
        tap_skip("QEMU_PUPPET does not name the puppet");
    *r = (struct rig){ .ctx = ctx };
    place_init(&r->place, "/tmp");
    r->run_dir = str_format("%s/ns/vm", r->place.dir);
    r->kernel = str_format("%s/kernel", r->place.dir);
    r->initrd = str_format("%s/initrd", r->place.dir);
    r->cpuinfo = str_format("%s/cpuinfo", r->place.dir);
    r->id = str_format("%s@vm", part);
    r->env = (struct qemu_test_env){ r->cpuinfo, "/dev/zero" };
    rig_write_kernel(r->kernel, 1);
    ASSERT_EQ(file_write(r->initrd, "070701", 6, 0600), 0);
    ASSERT_EQ(file_write(r->cpuinfo, cpuinfo, strlen(cpuinfo), 0600), 0);
    r->doc = (struct vm_doc){ .id = r->id,
                              .run_dir = r->run_dir,
                              .vmm_path = getenv("QEMU_PUPPET"),
                              .kernel = r->kernel,
                              .initrd = r->initrd,
                              .memory_mib = 256,
                              .cpus = 1,
                              .max_cpus = 1,
                              .allow_emulation = true,
                              .uid_base = uid_base,
                              .uid_count = 4 };
}

static inline void rig_start(struct rig *r)
{
    struct err err = ERR_INIT;

    r->v = qemu_vmm_new_for_test(r->ctx->loop, &r->env);
    ASSERT_OK(r->v->ops->create(r->ctx, r->v, &r->doc, &err), err);
    ASSERT_OK(r->v->ops->start(r->ctx, r->v, &err), err);
}

/* Once the VM has ended and was released. Without v: what it would be made of. */
static inline void rig_free(struct rig *r)
{
    if (r->v)
        r->v->ops->free(r->v);
    free(r->run_dir);
    free(r->kernel);
    free(r->initrd);
    free(r->cpuinfo);
    free(r->id);
    ASSERT_EQ(dir_remove(r->place.dir), 0);
}

/* The puppet must have nothing left, and must not have choked. */
static inline void rig_quit(struct rig *r)
{
    struct vmm_exit e;
    struct err err = ERR_INIT;

    ASSERT_OK(r->v->ops->quit(r->ctx, r->v, &err), err);
    ASSERT_OK(r->v->ops->wait(r->ctx, r->v, &e, &err), err);
    if (!WIFEXITED(e.status) || WEXITSTATUS(e.status) != 0)
        tap_fail(__FILE__, __LINE__, "the puppet ended with status 0x%x: %s", e.status, e.why);
    ASSERT_OK(r->v->ops->release(r->ctx, r->v, &err), err);
    rig_free(r);
}
