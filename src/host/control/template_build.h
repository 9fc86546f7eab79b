/* template_build.h - the template that VMs of a configuration are cloned from: which document it
 * is made by. The backend does the work. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct config;
struct ctx;
struct err;
struct loop;
struct template_info;
struct vm_doc;

/* Of the backend. wait: for another builder, else ERR_EXISTS; again: also if there is a good one.
 * Caller releases *ret. */
typedef int template_builder(struct ctx *ctx, struct loop *loop, const struct vm_doc *doc,
                             bool wait, bool again, struct template_info *ret, bool *ret_made,
                             struct err *err);

struct template_build {
    struct loop *loop;
    const struct config *config;
    template_builder *build; /* NULL: this backend has no templates */
    uint32_t memory_mib;     /* for VMs of this size; 0: as configured */
    bool allow_emulation, wait, again;
};
/* Waits for a whole boot, at most twice boot_timeout_s. */
int template_build(struct ctx *ctx, const struct template_build *b, struct template_info *ret,
                   bool *ret_made, struct err *err);
