/* cmd_doctor_vm.c - what a VM itself needs: QEMU, acceleration, the guest image, memory. */
#include "base/child.h"
#include "base/clock.h"
#include "base/fd.h"
#include "host/template/template.h"
#include "tool/cmd_doctor.h"
#include "tool/lib/capture.h"
#include "tool/lib/image.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QEMU_FIX "apt install qemu-system-x86 (Debian 12: from bookworm-backports; scripts/deps)"
#define EMULATION_FIX                                                                              \
    "set allow_emulation = true below [vm] in " CONFIG_PATH ", or give --allow-emulation"
#define PROGRAM_LIMIT (20 * NS_PER_S)

/* Memory that QEMU itself needs beside the guest's. */
#define QEMU_OWN_MIB 128

/* Output of a program that must succeed; NULL after having said why not. */
static char *output_of(struct ctx *ctx, struct doctor *d, const char *const *argv, const char *fix)
{
    struct capture c = { .argv = argv, .limit_ns = PROGRAM_LIMIT };
    AUTO_FREE char *text = NULL;
    struct err err = ERR_INIT;
    int status;

    if (capture_run(ctx, &c, &text, &status, &err) < 0)
        doctor_say(d, DOCTOR_FAILED, fix, "%s", err.msg);
    else if (status != 0)
        doctor_say(d, DOCTOR_FAILED, fix, "%s %s fails: %.120s", argv[0], argv[1], text);
    else
        return TAKE_PTR(text);
    return NULL;
}

static enum doctor_status check_qemu(struct ctx *ctx, struct doctor *d)
{
    const char *name = d->tool->config.qemu;
    struct doctor_version v;

    d->qemu = child_find(name);
    if (!d->qemu)
        return doctor_say(d, DOCTOR_FAILED, QEMU_FIX, "%s is not %s", name,
                          strchr(name, '/') ? "a program" : "in PATH");
    AUTO_FREE char *text =
        output_of(ctx, d, (const char *const[]){ d->qemu, "--version", NULL }, QEMU_FIX);

    if (!text) {
        free(TAKE_PTR(d->qemu));
        return d->now.status;
    }
    if (!doctor_parse_version(text, &v))
        return doctor_say(d, DOCTOR_FAILED, QEMU_FIX, "%s does not tell its version: %.60s",
                          d->qemu, text);
    if (v.major < 7 || (v.major == 7 && v.minor < 2))
        return doctor_say(d, DOCTOR_FAILED, QEMU_FIX,
                          "%s is version %u.%u, 7.2 is the oldest that works", d->qemu, v.major,
                          v.minor);
    if (v.major < 8 || (v.major == 8 && v.minor < 2))
        return doctor_say(d, DOCTOR_WARNING, QEMU_FIX,
                          "%s is version %u.%u; VMs start from templates with 8.2 or later only",
                          d->qemu, v.major, v.minor);
    return doctor_say(d, DOCTOR_OK, NULL, "version %u.%u, %s", v.major, v.minor, d->qemu);
}

static enum doctor_status check_devices(struct ctx *ctx, struct doctor *d)
{
    static const char *const needed[] = { "virtio-net-pci", "virtio-scsi-pci", "scsi-hd",
                                          "virtio-9p-pci",  "pcie-pci-bridge", "pcie-root-port",
                                          "virtio-mem-pci" };
    AUTO(sbuf_release) struct sbuf missing = { 0 };

    if (!d->qemu)
        return doctor_say(d, DOCTOR_FAILED, "see the line above", "unknown without QEMU");
    AUTO_FREE char *help =
        output_of(ctx, d, (const char *const[]){ d->qemu, "-device", "help", NULL }, QEMU_FIX);

    if (!help)
        return d->now.status;
    for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
        if (!doctor_has_device(help, needed[i]))
            sbuf_addf(&missing, " %s", needed[i]);
    }
    if (missing.len > 0)
        return doctor_say(d, DOCTOR_FAILED, QEMU_FIX, "QEMU lacks%s", missing.data);
    return doctor_say(d, DOCTOR_OK, NULL, "all %zu that are needed", ARRAY_LEN(needed));
}

/* QEMU itself tries: a machine that is set up with KVM, and left at once. */
static enum doctor_status try_kvm(struct ctx *ctx, struct doctor *d)
{
    const char *const argv[] = { d->qemu, "-accel",      "kvm",      "-machine", "none", "-display",
                                 "none",  "-nodefaults", "-monitor", "stdio",    NULL };
    struct capture c = { .argv = argv, .input = "quit\n", .limit_ns = PROGRAM_LIMIT };
    AUTO_FREE char *text = NULL;
    struct err err = ERR_INIT;
    int status;

    if (capture_run(ctx, &c, &text, &status, &err) < 0)
        return doctor_say(d, DOCTOR_FAILED, EMULATION_FIX, "QEMU with KVM: %s", err.msg);
    if (status != 0)
        return doctor_say(d, DOCTOR_FAILED, EMULATION_FIX, "QEMU with KVM: %.120s", text);
    return doctor_say(d, DOCTOR_OK, NULL, "QEMU accepts KVM; the first boot proves it");
}

/* A VM of its own, up and down, by this very program. Says what happened if KVM is not proven by
 * it; then true. */
static bool retest_failed(struct ctx *ctx, struct doctor *d, char **ret_why)
{
    const struct config *c = &d->tool->config;
    const char *named = d->tool->opts.config ? d->tool->opts.config : getenv(CONFIG_ENV);
    AUTO_FREE char *config = named ? str_format("--config=%s", named) : NULL;
    const char *const argv[] = { "/proc/self/exe", "boot", "--kvm", config ? config : "--cold",
                                 "--cold",         "--",   "true",  NULL };
    struct capture boot = { .argv = argv,
                            .limit_ns = c->boot_timeout_s * NS_PER_S + PROGRAM_LIMIT };
    AUTO_FREE char *text = NULL;
    struct err err = ERR_INIT;
    int status;
    int r = d->tool->backend->accel_forget(c->run_root);

    if (r < 0)
        *ret_why = str_format("%s/accel: %s", c->run_root, strerror(-r));
    else if (capture_run(ctx, &boot, &text, &status, &err) < 0)
        *ret_why = str_dup(err.msg);
    else if (status != 0)
        *ret_why = str_dup(text);
    return *ret_why;
}

static enum doctor_status say_accel(struct ctx *ctx, struct doctor *d, enum tool_accel found,
                                    const char *why)
{
    bool allowed = d->tool->config.allow_emulation;

    if (found == TOOL_ACCEL_WORKS)
        return doctor_say(d, DOCTOR_OK, NULL, "KVM works: a VM has booted with it");
    if (found == TOOL_ACCEL_BROKEN)
        return doctor_say(d, allowed ? DOCTOR_WARNING : DOCTOR_FAILED,
                          allowed ? NULL
                                  : "see what dmesg says of kvm, then lcow doctor --retest; to go "
                                    "on without KVM, " EMULATION_FIX,
                          "%s; %s", why,
                          allowed ? "VMs run by emulation, which the configuration allows: slow, "
                                    "and no security boundary"
                                  : "VMs are refused");
    if (found == TOOL_ACCEL_NONE && allowed)
        return doctor_say(
            d, DOCTOR_WARNING, NULL,
            "emulation only, which the configuration allows: slow, and no security boundary; %s",
            why);
    if (found == TOOL_ACCEL_NONE)
        return doctor_say(d, DOCTOR_WARNING, EMULATION_FIX,
                          "emulation only, and it is not allowed, so VMs are refused; %s", why);
    if (!d->qemu)
        return doctor_say(d, DOCTOR_FAILED, "see qemu above", "cannot be tried without QEMU");
    return try_kvm(ctx, d);
}

static enum doctor_status check_accel(struct ctx *ctx, struct doctor *d)
{
    const struct tool_backend *backend = d->tool->backend;
    AUTO_FREE char *why = NULL, *failed = NULL, *now = NULL;
    enum tool_accel found = backend->accel(d->tool->config.run_root, &why);

    if (!d->retest || found == TOOL_ACCEL_NONE || !d->qemu)
        return say_accel(ctx, d, found, why);

    bool bad = retest_failed(ctx, d, &failed);

    found = backend->accel(d->tool->config.run_root, &now);
    if (!bad || found == TOOL_ACCEL_BROKEN)
        return say_accel(ctx, d, found, now);
    if (found == TOOL_ACCEL_WORKS)
        return doctor_say(d, DOCTOR_FAILED, "lcow boot -- true shows more",
                          "KVM works, but the VM did not boot: %.300s", failed);
    return doctor_say(d, DOCTOR_FAILED, "lcow boot --kvm -- true shows more",
                      "KVM could not be tried: %.300s", failed);
}

static enum doctor_status check_image(struct ctx *ctx, struct doctor *d)
{
    AUTO(image_free) struct image *img = NULL;
    struct err err = ERR_INIT;

    if (image_open(d->tool->config.image_dir, &img, &err) < 0 || image_verify(img, &err) < 0) {
        char *remedy = strstr(err.msg, "; build it");

        if (remedy)
            *remedy = '\0';
        return doctor_say(d, DOCTOR_FAILED,
                          "make image, or set image_dir below [vm] in " CONFIG_PATH, "%s", err.msg);
    }
    return doctor_say(d, DOCTOR_OK, NULL, "kernel %s, hashes are right, %s", img->release,
                      img->dir);
}

static enum doctor_status check_templates(struct ctx *ctx, struct doctor *d)
{
    const struct config *c = &d->tool->config;
    char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    struct err err = ERR_INIT;
    size_t n = 0, bad = 0;

    if (!c->use_template)
        return doctor_say(d, DOCTOR_OK, NULL, "off, so each VM boots on its own");
    if (template_list(c->template_dir, &keys, &n, &err) < 0)
        return doctor_say(d, DOCTOR_WARNING, "set template_dir below [host] in " CONFIG_PATH, "%s",
                          err.msg);
    for (size_t i = 0; i < n; i++) {
        struct template t = { .ram_fd = -1, .state_fd = -1 };

        bad += template_open(c->template_dir, keys[i], &t, &err) < 0;
        template_close(&t);
    }
    free(keys);
    AUTO_FREE struct template_failure *failed = NULL;
    size_t n_failed = template_failures(c->template_dir, &failed);
    if (n_failed > 0)
        return doctor_say(d, DOCTOR_WARNING, "lcow template build",
                          "the last build of %s failed: %s", failed[0].key, failed[0].why);
    if (bad > 0)
        return doctor_say(d, DOCTOR_WARNING, "lcow template build",
                          "%zu of %zu in %s cannot be used: %s", bad, n, c->template_dir, err.msg);
    if (n == 0)
        return doctor_say(d, DOCTOR_OK, NULL, "none yet in %s; the first cold start has one built",
                          c->template_dir);
    return doctor_say(d, DOCTOR_OK, NULL, "%zu in %s", n, c->template_dir);
}

static enum doctor_status check_memory(struct ctx *ctx, struct doctor *d)
{
    AUTO_FREE char *text = file_text(65536, "/proc/meminfo");
    uint64_t mib, need = d->tool->config.memory_mib + QEMU_OWN_MIB;

    if (!text || !doctor_parse_available(text, &mib))
        return doctor_say(d, DOCTOR_WARNING, "mount /proc", "/proc/meminfo tells no MemAvailable");
    if (mib < need)
        return doctor_say(d, DOCTOR_FAILED, "end other programs, or set a smaller memory_mib",
                          "%llu MiB are free, one VM of %u MiB needs about %llu",
                          (unsigned long long)mib, d->tool->config.memory_mib,
                          (unsigned long long)need);
    return doctor_say(d, DOCTOR_OK, NULL, "%llu MiB free: room for about %llu VMs of %u MiB",
                      (unsigned long long)mib, (unsigned long long)(mib / need),
                      d->tool->config.memory_mib);
}

const struct doctor_check doctor_vm_checks[] = {
    { "qemu", check_qemu },
    { "devices", check_devices },
    { "acceleration", check_accel },
    { "image", check_image },
    { "memory", check_memory },
    { "templates", check_templates },
    { NULL },
};
