/* qemu.h - the QEMU backend of vmm.h: a jailed qemu-system-x86_64 per VM, a private link to its
 * guest, its console captured. Everything it creates is in the ledger of the document's run_dir
 * before it exists. <run root>/uids, accel and tsc are shared by all VMs of the host; the run root
 * is two levels above run_dir (<run root>/<namespace>/<id>). */
#pragma once

#include <stdbool.h>

struct ctx;
struct err;
struct fsm;
struct loop;
struct template_info;
struct vm_doc;
struct vmm;
struct vmm_template_opts;

#define QEMU_PROGRAM "qemu-system-x86_64"
#define QEMU_REMEDY "install qemu-system-x86 (Debian 12: from bookworm-backports)"
#define IMAGE_REMEDY "install lcow-guest again, or build it with 'make image'"
#define QEMU_VERSION_MIN_MAJOR 7
#define QEMU_VERSION_MIN_MINOR 2
/* Older ones open a template's memory for writing in each clone. */
#define QEMU_TEMPLATE_MAJOR 8
#define QEMU_TEMPLATE_MINOR 2

extern const struct fsm qemu_fsm;

struct vmm *qemu_vmm_new(struct loop *loop);

/* Builds the template that VMs of this document are cloned from, in doc->template_dir; the
 * document's sizes do not matter. Waits for a whole boot. A good one that is there is left alone:
 * then *ret_made is false. Caller releases *ret. ERR_EXISTS: another builder is at work. */
int qemu_template_build(struct ctx *ctx, struct loop *loop, const struct vm_doc *doc,
                        const struct vmm_template_opts *opts, struct template_info *ret,
                        bool *ret_made, struct err *err);

/* Runs `path -version`, at most 10 s. ERR_STATE if it is too old or says something else. */
int qemu_version(struct ctx *ctx, const char *path, char ret[64], struct err *err);
