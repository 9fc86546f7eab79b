/* vm_fixture.h - for tests with a real VM: boots build/image with a real QEMU by vm.h, runs
 * commands in the guest, takes it down, and looks that nothing stayed. Skips with a reason where a
 * VM cannot be had. */
#pragma once
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/bridge/bridge.h"
#include "host/bridge/guest.h"
#include "host/control/vm.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/vmm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIXTURE_BOOT_NS (90 * NS_PER_S)
#define FIXTURE_CALL_NS (60 * NS_PER_S)
#define FIXTURE_OUTPUT_MAX (1u << 20)

struct vm_fixture {
    struct ctx root;
    struct tempdir temp;
    char *run_dir, *kernel, *initrd;
    struct timeline timeline;
    struct vmm *vmm;     /* borrowed from vm */
    struct guest *guest; /* the same */
    struct vm *vm;
};

static inline void vm_fixture_start(struct ctx *ctx, struct vm_fixture *r)
{
    const char *image = getenv("LCOW_IMAGE");
    struct err err = ERR_INIT;

    *r = (struct vm_fixture){ .root = ctx_root(ctx->loop) };
    if (geteuid() != 0)
        tap_skip("a VM needs root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun here");
    if (!image)
        tap_skip("LCOW_IMAGE names no image");
    r->kernel = str_format("%s/vmlinux", image);
    r->initrd = str_format("%s/initrd.cpio", image);
    if (access(r->kernel, R_OK) < 0 || access(r->initrd, R_OK) < 0)
        tap_skip("no guest image in %s: make image", image);
    tempdir_init(&r->temp, "/tmp");
    r->run_dir = str_format("%s/run/test/vm", r->temp.dir);
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_BOOT_NS);
    const struct vm_doc doc = { .id = "files@vm",
                                .run_dir = r->run_dir,
                                .kernel = r->kernel,
                                .initrd = r->initrd,
                                .memory_mib = 256,
                                .cpus = 1,
                                .max_cpus = 1,
                                .allow_emulation = true,
                                .uid_base = 62000,
                                .uid_count = 16,
                                .scsi_controllers = 1 };

    r->vmm = qemu_vmm_new(ctx->loop);
    r->vmm->timeline = &r->timeline;
    r->guest = bridge_new(ctx->loop, r->vmm, &r->timeline);
    r->vm = vm_new(ctx->loop, r->vmm, r->guest);
    ASSERT_OK(vm_start(&limited, r->vm, &doc, &err), err);
}

/* Runs a line of shell in the guest; its output, standard error too. Caller frees. */
static inline char *vm_fixture_sh(struct vm_fixture *r, const char *line, uint32_t *ret_code)
{
    AUTO_FREE char *both = str_format("exec 2>&1; %s", line);
    const char *const argv[] = { "/bin/sh", "-c", both, NULL };
    const char *const env[] = { "PATH=/bin:/sbin", NULL };
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_CALL_NS);
    AUTO(vm_process_free) struct vm_process *p = NULL;
    struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    size_t n;

    ASSERT_OK(vm_exec(&limited, r->vm,
                      &(struct vm_exec){ .argv = argv, .env = env, .want_stdout = true }, &p, &err),
              err);
    AUTO(stream_free) struct stream *s = vm_process_take_stream(p, 1);
    do {
        ASSERT_OK(stream_read(&limited, s, sbuf_room(&out, 4096), 4096, &n, &err), err);
        out.len += n;
    } while (n > 0 && out.len < FIXTURE_OUTPUT_MAX);
    sbuf_addc(&out, '\0');
    stream_free(TAKE_PTR(s));
    ASSERT_OK(vm_process_wait(&limited, p, ret_code, &err), err);
    return sbuf_take(&out);
}

/* The same, which must succeed and print exactly this. */
static inline void vm_fixture_expect(struct vm_fixture *r, const char *line, const char *want)
{
    uint32_t code;
    AUTO_FREE char *out = vm_fixture_sh(r, line, &code);

    if (code != 0 || !str_eq(out, want))
        tap_fail(__FILE__, __LINE__, "in the guest: %s\nexit code %u, printed: %s\nexpected: %s",
                 line, code, out, want);
}

static inline void vm_fixture_finish(struct vm_fixture *r)
{
    struct ctx limited = ctx_with_timeout(&r->root, FIXTURE_CALL_NS);
    struct err err = ERR_INIT;

    vm_kill(r->vm, VM_END_KILL, "the VM was terminated");
    ASSERT_OK(vm_wait(&limited, r->vm, NULL, &err), err);
    vm_free(TAKE_PTR(r->vm));
    ASSERT_EQ(access(r->run_dir, F_OK), -1);
    free(r->run_dir);
    free(r->kernel);
    free(r->initrd);
    tempdir_release_auto(&r->temp);
}
