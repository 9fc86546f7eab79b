#include "host/control/template_build.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/config/config.h"
#include "host/control/vm.h"
#include "host/control/vm_clock.h"
#include "host/vmm/vmm.h"

#define PROOF_NS (16 * NS_PER_S) /* for the clock; a machine that is not busy needs 1 s */
#define END_NS (20 * NS_PER_S)

struct proof {
    const struct template_build *build;
    const struct vm_doc *doc; /* of the template */
};

static int check_clock(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct vm_clock c = { 0 };
    char text[VM_CLOCK_TEXT];

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "compare its clock", err);
    if (!in || vm_clock_measure(ctx, vm, PROOF_NS, &c, err) < 0)
        return -1;
    vm_clock_text(&c, text);
    if (c.verdict == VM_CLOCK_OFF)
        return err_because(err, REASON_CLOCK_WRONG, ERR_DATA_LOSS, "its clock %s", text);
    /* A machine that is very busy shows no more than that; but 1 % would have been seen. */
    if (c.high_ppm - c.low_ppm > VM_CLOCK_CLOSE_PPM)
        return err_set(err, ERR_UNAVAILABLE,
                       "its clock could not be measured within %llu s: it %s; build it when the "
                       "machine is less busy",
                       (unsigned long long)(PROOF_NS / NS_PER_S), text);
    return 0;
}

static int look_at(struct ctx *ctx, struct vm *vm, const struct vm_doc *doc, struct err *err)
{
    struct vmm_info info;

    if (vm_start(ctx, vm, doc, err) < 0 || check_clock(ctx, vm, err) < 0)
        return -1;
    vm_info(vm, &info);
    return info.trouble[0]
               ? err_set(err, ERR_DATA_LOSS, "the guest's kernel says: %s", info.trouble)
               : 0;
}

/* A clone of the draft, as pods will have it. */
static int prove(struct ctx *ctx, void *arg, const char *draft, struct err *err)
{
    const struct proof *p = arg;
    struct loop *loop = p->build->loop;
    AUTO_FREE char *id = str_format("proof-%s", p->doc->id),
                   *dir = str_format("%s-proof", p->doc->run_dir);
    struct vmm *vmm = p->build->vmm_new(loop);
    struct vm *vm = vm_new(loop, vmm, p->build->guest_new(loop, vmm, NULL));
    struct ctx end = ctx_limited(loop, END_NS);
    struct err lost = ERR_INIT;
    struct vm_doc doc = *p->doc;

    doc.id = id;
    doc.run_dir = dir;
    doc.template_draft = draft;
    int r = look_at(ctx, vm, &doc, err);
    vm_kill(vm, VM_END_KILL, "the template's VM is not needed any more");
    if (vm_wait(&end, vm, NULL, &lost) == 0)
        vm_free(vm);
    else
        log_error(ctx, "not all of the proof is cleaned up; run `lcow gc`", F_ERR(&lost));
    return r < 0 ? err_wrap(err, "its proof failed") : 0;
}

int template_build(struct ctx *ctx, const struct template_build *b, struct template_info *ret,
                   bool *ret_made, struct err *err)
{
    const struct config *c = b->config;
    struct ctx limited = ctx_with_timeout(ctx, 2 * c->boot_timeout_s * NS_PER_S + PROOF_NS);
    AUTO_FREE char *kernel = str_format("%s/vmlinux", c->image_dir);
    AUTO_FREE char *initrd = str_format("%s/initrd.cpio", c->image_dir);
    uint32_t number;

    if (!b->build)
        return err_set(err, ERR_UNIMPLEMENTED, "this backend has no templates");
    loop_rand(b->loop, &number, sizeof(number));
    AUTO_FREE char *id = str_format("t-%08x@vm", number);
    AUTO_FREE char *dir = str_format("%s/template/t-%08x", c->run_root, number);
    const struct vm_doc doc = {
        .id = id,
        .run_dir = dir,
        .vmm_path = c->qemu,
        .kernel = kernel,
        .initrd = initrd,
        .memory_mib = b->memory_mib ? b->memory_mib : c->memory_mib,
        .cpus = 1,
        .max_cpus = 1,
        .accel = VM_ACCEL_AUTO,
        .allow_emulation = b->allow_emulation || c->allow_emulation,
        .vsock = c->vsock_link,
        .nested = c->nested_virtualization,
        .uid_base = c->vm_uid_base,
        .uid_count = c->vm_uid_count,
        .pci_ports = config_pci_ports(c),
        .disk_mib = c->scratch_mib,
        .template_dir = c->template_dir,
    };
    struct proof proof = { b, &doc };
    const struct vmm_template_opts opts = {
        .wait = b->wait, .again = b->again, .prove = prove, .arg = &proof
    };
    return b->build(&limited, b->loop, &doc, &opts, ret, ret_made, err);
}
