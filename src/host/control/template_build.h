/* template_build.h - the template that VMs of a configuration are cloned from: which document it
 * is made by, and the proof that a clone of it works. The backend does the rest. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct config;
struct ctx;
struct err;
struct guest;
struct loop;
struct template_info;
struct timeline;
struct vm_doc;
struct vmm;
struct vmm_template_opts;

/* Of the backend. Caller releases *ret. */
typedef int template_builder(struct ctx *ctx, struct loop *loop, const struct vm_doc *doc,
                             const struct vmm_template_opts *opts, struct template_info *ret,
                             bool *ret_made, struct err *err);

struct template_build {
    struct loop *loop;
    const struct config *config;
    template_builder *build; /* NULL: this backend has no templates */
    /* The VM that proves it. */
    struct vmm *(*vmm_new)(struct loop *loop);
    struct guest *(*guest_new)(struct loop *loop, struct vmm *vmm, struct timeline *timeline);
    uint32_t memory_mib; /* for VMs of this size; 0: as configured */
    bool allow_emulation, wait, again;
};
/* Waits for a whole boot, at most twice boot_timeout_s, and for the proof: a clone of it answers,
 * its clock is right, and its kernel has no complaint. A template that fails it is thrown away, and
 * the store keeps the reason. */
int template_build(struct ctx *ctx, const struct template_build *b, struct template_info *ret,
                   bool *ret_made, struct err *err);
