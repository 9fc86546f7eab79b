/* cmd_doctor_vm.c - checks of what a VM needs: QEMU, acceleration, the guest image, memory. */
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

#define QEMU_FIX "apt install qemu-system-x86 (Debian 12: from bookworm-backports)"
#define EMULATION_FIX                                                                              \
    "set allow_emulation = true in section [vm] of " CONFIG_PATH ", or use --allow-emulation"
#define PROGRAM_LIMIT (20 * NS_PER_S)

/* Memory of QEMU itself, without the guest's. */
#define QEMU_OWN_MIB 128

/* The output of a program that must succeed; NULL after the failure was reported. */
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
        return doctor_say(d, DOCTOR_FAILED, QEMU_FIX, "%s prints no version: %.60s", d->qemu, text);
    if (v.major < 7 || (v.major == 7 && v.minor < 2))
        return doctor_say(d, DOCTOR_FAILED, QEMU_FIX,
                          "%s is version %u.%u, which is unsupported: must be 7.2 or later",
                          d->qemu, v.major, v.minor);
    if (v.major < 8 || (v.major == 8 && v.minor < 2))
        return doctor_say(
            d, DOCTOR_WARNING, QEMU_FIX,
            "%s is version %u.%u; templates need 8.2 or later, so every VM starts cold", d->qemu,
            v.major, v.minor);
    return doctor_say(d, DOCTOR_OK, NULL, "version %u.%u, %s", v.major, v.minor, d->qemu);
}

static enum doctor_status check_devices(struct ctx *ctx, struct doctor *d)
{
    static const char *const needed[] = { "virtio-net-pci", "virtio-scsi-pci", "scsi-hd",
                                          "virtio-9p-pci",  "pcie-pci-bridge", "pcie-root-port",
                                          "virtio-mem-pci" };
    AUTO(sbuf_release) struct sbuf missing = { 0 };

    if (!d->qemu)
        return doctor_say(d, DOCTOR_FAILED, "see the line above", "not checked: QEMU is missing");
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
    return doctor_say(d, DOCTOR_OK, NULL, "all %zu required devices are available",
                      ARRAY_LEN(needed));
}

/* Lets QEMU set up a machine with KVM and exit at once. */
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
    return doctor_say(d, DOCTOR_OK, NULL, "QEMU accepts KVM; not yet proven by a boot");
}

/* Boots a VM by running this program again. True if that did not prove KVM; *ret_why is the cause.
 */
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
                                  : "see dmesg for messages of kvm, then run lcow doctor --retest; "
                                    "to continue without KVM, " EMULATION_FIX,
                          "%s; %s", why,
                          allowed ? "VMs run in emulation, which the configuration allows: slow, "
                                    "and not a security boundary"
                                  : "VMs cannot start");
    if (found == TOOL_ACCEL_NONE && allowed)
        return doctor_say(
            d, DOCTOR_WARNING, NULL,
            "VMs run in emulation, which the configuration allows: slow, and not a security "
            "boundary; %s",
            why);
    if (found == TOOL_ACCEL_NONE)
        return doctor_say(
            d, DOCTOR_WARNING, EMULATION_FIX,
            "VMs cannot start: KVM is not available, and emulation is not allowed; %s", why);
    if (!d->qemu)
        return doctor_say(d, DOCTOR_FAILED, "see qemu above", "not checked: QEMU is missing");
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
        return doctor_say(d, DOCTOR_FAILED, "run lcow boot -- true for details",
                          "KVM works, but the VM did not boot: %.300s", failed);
    return doctor_say(d, DOCTOR_FAILED, "run lcow boot --kvm -- true for details",
                      "could not test KVM: %.300s", failed);
}

static enum doctor_status check_image(struct ctx *ctx, struct doctor *d)
{
    AUTO(image_free) struct image *img = NULL;
    struct err err = ERR_INIT;

    if (image_open(d->tool->config.image_dir, &img, &err) < 0 || image_verify(img, &err) < 0)
        return doctor_say(
            d, DOCTOR_FAILED,
            "install lcow-guest (or make image), or set image_dir in section [vm] of " CONFIG_PATH,
            "%s", err.msg);
    return doctor_say(d, DOCTOR_OK, NULL, "kernel %s, hashes match, %s", img->release, img->dir);
}

static enum doctor_status check_templates(struct ctx *ctx, struct doctor *d)
{
    const struct config *c = &d->tool->config;
    char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    struct err err = ERR_INIT;
    size_t n = 0, bad = 0;

    if (!c->use_template)
        return doctor_say(d, DOCTOR_OK, NULL, "off: every VM starts cold");
    if (template_list(c->template_dir, &keys, &n, &err) < 0)
        return doctor_say(d, DOCTOR_WARNING, "set template_dir in section [host] of " CONFIG_PATH,
                          "%s", err.msg);
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
                          "%zu of %zu in %s are unusable: %s", bad, n, c->template_dir, err.msg);
    if (n == 0)
        return doctor_say(d, DOCTOR_OK, NULL, "none yet in %s; the first cold start builds one",
                          c->template_dir);
    return doctor_say(d, DOCTOR_OK, NULL, "%zu in %s", n, c->template_dir);
}

static enum doctor_status check_memory(struct ctx *ctx, struct doctor *d)
{
    AUTO_FREE char *text = file_text(65536, "/proc/meminfo");
    uint64_t mib, need = d->tool->config.memory_mib + QEMU_OWN_MIB;

    if (!text || !doctor_parse_available(text, &mib))
        return doctor_say(d, DOCTOR_WARNING, "mount /proc", "/proc/meminfo has no MemAvailable");
    if (mib < need)
        return doctor_say(d, DOCTOR_FAILED, "stop other programs, or set a smaller memory_mib",
                          "%llu MiB free, but a VM of %u MiB needs about %llu MiB",
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
