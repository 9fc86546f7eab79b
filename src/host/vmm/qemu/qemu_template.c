/* qemu_template.c - building a template: a VM of its own boots until its agent waits for a token,
 * is saved, and ends. */
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END_NS (20 * NS_PER_S)

static int await_ready(struct ctx *ctx, struct qemu *q, struct err *err)
{
    while (!q->ready) {
        if (q->proc->gone.set) {
            AUTO(sbuf_release) struct sbuf tail = { 0 };

            console_tail(&q->console, 2000, &tail);
            log_warn(&q->life, "the template's console", F_STR("tail", tail.len ? tail.data : ""));
            return err_set(err, ERR_UNAVAILABLE, "%s", q->proc->exit.why);
        }
        if (waitq_wait(ctx, &q->stage_q, "the template's agent", err) < 0)
            return err_wrap(err, "boot stopped at stage '%s'", vm_stage_name(q->stage));
    }
    return 0;
}

/* Its memory is in the file already; only the devices are left to write. It is not stopped before:
 * a clone of a VM that runs, runs. */
static int save(struct ctx *ctx, struct qemu *q, struct err *err)
{
    AUTO_FREE char *uri = str_format("file:/proc/self/fd/%d", QEMU_FD_STATE);

    if (qemu_migration_prepare(ctx, q, err) < 0 ||
        qmp_client_call(ctx, q->proc->qmp, "migrate", json_pack("{ss}", "uri", uri), NULL, err) < 0)
        return -1;
    return qemu_migration_wait(ctx, q, err);
}

static int end_vm(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct vmm_exit exit;

    if (q->vmm.ops->quit(ctx, &q->vmm, err) < 0)
        return -1;
    return q->vmm.ops->wait(ctx, &q->vmm, &exit, err);
}

static void fill_info(struct qemu *q, char *identity, struct template_info *info)
{
    *info = (struct template_info){ .identity = identity,
                                    .memory_mib = q->tpl_doc.memory_mib,
                                    .max_memory_mib = q->tpl_doc.max_memory_mib,
                                    .max_cpus = q->tpl_doc.max_cpus,
                                    .emulated = q->accel.emulated,
                                    .tsc_khz = qemu_host_of(q).tsc_khz,
                                    .created_ns = loop_wall(q->loop) };
    memcpy(info->key, q->tpl_key, sizeof(info->key));
    snprintf(info->vmm_version, sizeof(info->vmm_version), "%s", q->version);
}

static int check_version(const struct qemu *q, struct err *err)
{
    if (qemu_has_templates(q))
        return 0;
    return err_set(err, ERR_STATE,
                   "QEMU %s would open a template's memory for writing in every clone; templates "
                   "need %d.%d or later: " QEMU_REMEDY,
                   q->version, QEMU_TEMPLATE_MAJOR, QEMU_TEMPLATE_MINOR);
}

static void say_pruned(void *arg, const char *key)
{
    log_info(arg, "old template removed", F_STR("template", key));
}

/* Whoever updates kernel or QEMU leaves a template behind that fits nothing any more. */
static void prune(struct ctx *ctx, struct qemu *q)
{
    struct err err = ERR_INIT;

    if (template_prune(q->doc.template_dir, q->tpl_key, loop_wall(q->loop), say_pruned, ctx, &err) <
        0)
        log_warn(ctx, "old templates stay", F_ERR(&err));
}

static int check_console(const struct qemu *q, struct err *err)
{
    const char *said = q->console.trouble;

    return said[0] ? err_set(err, ERR_DATA_LOSS, "the guest's kernel says: %s", said) : 0;
}

static int build(struct ctx *ctx, struct qemu *q, const struct vmm_template_opts *opts,
                 struct template_draft *draft, struct template_info *info, struct err *err)
{
    AUTO_FREE char *identity = qemu_template_identity(q);

    if (template_draft_begin(q->doc.template_dir, q->tpl_key, (uint64_t)q->tpl_doc.memory_mib << 20,
                             q->ledger, draft, err) < 0)
        return -1;
    template_close(&q->tpl); /* or it would be cloned */
    q->draft = draft;
    q->form = QEMU_TEMPLATE;
    if (q->vmm.ops->start(ctx, &q->vmm, err) < 0 || check_version(q, err) < 0 ||
        await_ready(ctx, q, err) < 0 || save(ctx, q, err) < 0 || end_vm(ctx, q, err) < 0 ||
        check_console(q, err) < 0)
        return -1;
    fill_info(q, TAKE_PTR(identity), info);
    if (template_draft_seal(draft, info, err) < 0)
        return -1;
    if (opts->prove && opts->prove(ctx, opts->arg, draft->path, err) < 0)
        return -1;
    return template_draft_publish(draft, q->doc.template_dir, info->key, err);
}

/* Not if it was interrupted: then it says nothing about the next one. */
static void note_failure(struct qemu *q, const struct err *err)
{
    if (err->code != ERR_CANCELLED && q->tpl_key[0])
        template_note_failure(q->doc.template_dir, q->tpl_key, loop_wall(q->loop), err->msg);
}

/* Whatever the outcome, nothing of it stays. */
static int take_back(struct qemu *q, struct err *err)
{
    struct ctx ctx = ctx_with_timeout(&q->root, END_NS);
    struct vmm_exit exit;
    struct err ignored = ERR_INIT;

    q->vmm.ops->terminate(&q->vmm);
    if (q->state != QEMU_NEW && q->state != QEMU_CREATED)
        (void)q->vmm.ops->wait(&ctx, &q->vmm, &exit, &ignored); /* release tells */
    if (q->vmm.ops->release(&ctx, &q->vmm, err) < 0)
        return -1;
    q->vmm.ops->free(&q->vmm);
    return 0;
}

/* A template is made with what was proven, or its key would name another accelerator than the VMs
 * use that want it. So a host where nothing has booted yet boots a plain VM first, up to the
 * kernel's first line. */
static int prove_accel(struct ctx *ctx, struct loop *loop, const struct vm_doc *doc,
                       struct err *err)
{
    struct vmm *v = qemu_vmm_new(loop);
    struct qemu *q = qemu_of(v);
    struct vm_doc plain = *doc;
    struct err lost = ERR_INIT;

    plain.template_dir = NULL;
    int r = v->ops->create(ctx, v, &plain, err);
    if (r == 0 && q->accel.prove)
        r = v->ops->start(ctx, v, err);
    if (take_back(q, &lost) < 0 && r == 0) {
        *err = lost;
        r = -1;
    }
    return r;
}

int qemu_template_build(struct ctx *ctx, struct loop *loop, const struct vm_doc *doc,
                        const struct vmm_template_opts *opts, struct template_info *ret,
                        bool *ret_made, struct err *err)
{
    struct template_draft draft = { .ram_fd = -1, .state_fd = -1 };
    AUTO_FD int lock = -1;
    struct err lost = ERR_INIT;

    if (template_lock(ctx, doc->template_dir, opts->wait, &lock, err) < 0)
        return -1;
    *ret_made = false;
    if (prove_accel(ctx, loop, doc, err) < 0)
        return err_wrap(err, "build a template");
    struct vmm *v = qemu_vmm_new(loop);
    struct qemu *q = qemu_of(v);
    int r = v->ops->create(ctx, v, doc, err);
    if (r == 0 && q->accel.prove) /* KVM did not fail, and was not proven either */
        r = err_set(err, ERR_STATE, "KVM is not proven to work: lcow doctor --retest tells more");
    if (r == 0 && q->tpl.ram_fd >= 0 && !opts->again) {
        *ret = q->tpl.info;
        q->tpl.info.identity = NULL;
    } else if (r == 0) {
        r = build(ctx, q, opts, &draft, ret, err);
        *ret_made = r == 0;
        if (r == 0)
            prune(ctx, q);
        else
            note_failure(q, err);
    }
    template_draft_abort(&draft);
    if (take_back(q, &lost) < 0)
        log_error(ctx, "not all of the builder is taken back; `lcow gc` takes the rest",
                  F_ERR(&lost));
    return r < 0 ? err_wrap(err, "build a template") : 0;
}
