/* qemu_save.c - a VM that runs, in saved state: the object, its QEMU process, and what was plugged.
 * QEMU notices nothing: it keeps its monitor, its console and its parent.
 *
 * Not saved: what only a start needs (kernel, initrd, the template's files, the boot block, the
 * proof of KVM, most of the document), the rates of warnings and of console reads, and what follows
 * from the run directory. A VM that does not run, or on which a call works, is refused. */
#include "base/child.h"
#include "base/saved.h"
#include "base/stream.h"
#include "host/ledger/ledger.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <stdlib.h>
#include <string.h>

/* --- the document --- */

/* A text of q->texts. */
static void kept_saved(struct saved *s, uint32_t field, struct qemu *q, const char **text)
{
    AUTO_FREE char *copy = *text ? str_dup(*text) : NULL;

    saved_str(s, field, &copy);
    if (saved_reads(s))
        *text = qemu_keep(q, copy);
}

static void doc_saved(struct saved *s, uint32_t field, struct qemu *q)
{
    struct vm_doc *d = &q->doc;

    if (!saved_open(s, field))
        return;
    kept_saved(s, 1, q, &d->id);
    kept_saved(s, 2, q, &d->run_dir);
    kept_saved(s, 3, q, &d->template_dir);
    kept_saved(s, 4, q, &d->template_draft);
    saved_u32(s, 5, &d->memory_mib);
    saved_u32(s, 6, &d->max_memory_mib);
    saved_u32(s, 7, &d->cpus);
    saved_u32(s, 8, &d->max_cpus);
    saved_u32(s, 9, &d->scsi_controllers);
    saved_u32(s, 10, &d->pci_ports);
    saved_u32(s, 11, &d->disk_mib);
    saved_u32(s, 12, &d->shape.disk_iops);
    saved_u32(s, 13, &d->shape.disk_bytes_per_s);
    saved_bool(s, 14, &d->vsock);
    saved_close(s);
}

/* What QEMU was started with, if it is a clone: another program may make other templates. */
static void tpl_doc_saved(struct saved *s, uint32_t field, struct vm_doc *d)
{
    if (!saved_open(s, field))
        return;
    saved_u32(s, 1, &d->memory_mib);
    saved_u32(s, 2, &d->max_memory_mib);
    saved_u32(s, 3, &d->cpus);
    saved_u32(s, 4, &d->max_cpus);
    saved_u32(s, 5, &d->scsi_controllers);
    saved_close(s);
}

/* --- devices --- */

static void kind_saved(struct saved *s, uint32_t field, struct plug *p)
{
    unsigned kind = 0;

    while (p->kind && plug_kinds[kind] != p->kind)
        kind++;
    p->kind = plug_kinds[saved_enum(s, field, kind, PLUG_KINDS)];
}

static void plug_saved(struct saved *s, struct plug *p)
{
    char *id = (char *)p->id, *label = (char *)p->label;

    if (p->inside)
        saved_fail(s, "%s %s is being changed", p->kind->what, label);
    kind_saved(s, 1, p);
    saved_str(s, 2, &id);
    saved_str(s, 3, &label);
    saved_u32(s, 4, &p->number);
    saved_u32(s, 5, &p->parts);
    saved_bool(s, 6, &p->attached);
    saved_bool(s, 7, &p->deserted);
    saved_bool(s, 8, &p->deleted);
    p->id = id;
    p->label = label;
    if (saved_reads(s) && (!id || !label))
        saved_fail(s, "a %s without a name", p->kind->what);
}

static void plugs_saved(struct saved *s, uint32_t field, struct qemu *q)
{
    if (saved_reads(s)) {
        while (saved_open(s, field)) {
            struct plug *p = mem_new(struct plug);

            waitq_init(&p->deleted_q);
            list_append(&q->plugs, &p->node);
            plug_saved(s, p);
            saved_close(s);
        }
        return;
    }
    LIST_FOR (struct plug, p, &q->plugs, node) {
        saved_open(s, field);
        plug_saved(s, p);
        saved_close(s);
    }
}

/* --- what it says --- */

static void console_saved(struct saved *s, uint32_t field, struct console *c)
{
    if (!saved_open(s, field))
        return;
    saved_u64(s, 1, &c->total);
    saved_bytes(s, 2, c->line, sizeof(c->line));
    saved_size(s, 3, &c->line_len);
    saved_text(s, 4, c->trouble, sizeof(c->trouble));
    saved_bool(s, 5, &c->panicked);
    saved_bytes(s, 6, c->ring, sizeof(c->ring));
    saved_close(s);
    if (c->line_len > CONSOLE_LINE_MAX)
        saved_fail(s, "a console line of %zu bytes", c->line_len);
}

static void words_saved(struct saved *s, uint32_t field, struct qemu_words *w)
{
    if (!saved_open(s, field))
        return;
    saved_text(s, 1, w->tail, sizeof(w->tail));
    saved_bytes(s, 2, w->line, sizeof(w->line));
    saved_size(s, 3, &w->line_len);
    saved_text(s, 4, w->kvm_error, sizeof(w->kvm_error));
    saved_close(s);
    if (w->line_len > QEMU_WORDS_LINE)
        saved_fail(s, "a line of QEMU's of %zu bytes", w->line_len);
}

/* --- the process --- */

static void check_proc(const struct qemu_proc *p, struct saved *s)
{
    if (p->gone.set || child_done(p->child, NULL))
        saved_fail(s, "QEMU has exited");
    else if (p->given_up[0] || p->stopped[0])
        saved_fail(s, "QEMU was killed: %s", p->given_up[0] ? p->given_up : p->stopped);
    else if (p->looking)
        saved_fail(s, "QEMU stopped the VM, and why is not known yet");
}

static void proc_saved(struct saved *s, struct qemu_proc *p)
{
    const struct qmp_client_opts qmp = qemu_qmp_opts(p);

    child_saved(s, 1, p->vm->loop, &p->child);
    qmp_client_saved(s, 2, &qmp, &p->qmp);
    saved_stream(s, 3, "the console", p->vm->loop, &p->console);
    saved_stream(s, 4, "QEMU's stderr", p->vm->loop, &p->errors);
    words_saved(s, 5, &p->words);
    qemu_followers_saved(s, 6, p);
    oom_watch_saved(s, 7, &p->oom);
    saved_text(s, 8, p->shutdown_why, sizeof(p->shutdown_why));
    saved_bool(s, 9, &p->panicked);
    saved_u32(s, 10, &p->stops);
    saved_u32(s, 11, &p->resumed);
    saved_text(s, 12, p->migration, sizeof(p->migration));
}

/* --- the VM --- */

static void check_vm(const struct qemu *q, struct saved *s)
{
    if (q->state != QEMU_RUNNING || !q->proc || q->ended.set || q->dying || q->quitting)
        saved_fail(s, "the VM is not running, or is being ended");
    else if (q->form == QEMU_TEMPLATE)
        saved_fail(s, "a template is being built");
    else if (!list_empty(&q->ops))
        saved_fail(s, "the VM is being changed");
    else
        check_proc(q->proc, s);
}

static void resume(struct saved *s, struct qemu *q)
{
    struct qemu_proc *p = q->proc;
    struct err err = ERR_INIT;

    if (saved_check(s, &err) < 0)
        return;
    if (q->state != QEMU_RUNNING || !p->child || !p->qmp || !p->console || !p->errors || !q->link ||
        !q->ledger)
        saved_fail(s, "parts of the VM are missing");
    else
        qemu_proc_watch(p);
}

static void fields_saved(struct saved *s, struct qemu *q)
{
    SAVED_ENUM(s, 3, q->stage, VM_STAGE_COUNT);
    plugs_saved(s, 4, q);
    saved_u32(s, 5, &q->n_controllers);
    saved_bool(s, 6, &q->has_spare);
    saved_bool(s, 7, &q->has_iommu);
    saved_bool(s, 8, &q->has_throttle);
    kept_saved(s, 9, q, &q->program);
    saved_bool(s, 10, &q->accel.emulated);
    saved_u64(s, 11, &q->jail_record);
    saved_u64(s, 12, &q->proc_record);
    saved_fd(s, 13, "the VM's user id", &q->uid.fd);
    saved_u32(s, 14, &q->uid.uid);
    saved_text(s, 15, q->tpl_key, sizeof(q->tpl_key));
    saved_bool(s, 16, &q->want_template);
    saved_u64(s, 17, &q->restored_at);
    saved_text(s, 18, q->cold_why, sizeof(q->cold_why));
    SAVED_ENUM(s, 19, q->form, QEMU_CLONE + 1);
    saved_bool(s, 20, &q->dialled);
    saved_u64(s, 21, &q->grown_bytes);
    saved_bool(s, 22, &q->ready);
    saved_u64(s, 23, &q->cpu_ids);
    console_saved(s, 24, &q->console);
    saved_text(s, 25, q->version, sizeof(q->version));
    saved_u64(s, 26, &q->greeted_at);
    SAVED_ENUM(s, 30, q->state, QEMU_STATE_COUNT);
}

void qemu_saved(struct vmm *v, struct saved *s, struct ledger *ledger)
{
    struct qemu *q = qemu_of(v);
    bool reads = saved_reads(s);
    struct err err = ERR_INIT;

    if (!reads) {
        check_vm(q, s);
        if (saved_check(s, &err) < 0)
            return;
    }
    doc_saved(s, 1, q);
    if (reads) {
        q->doc.ledger = ledger;
        if (saved_check(s, &err) < 0 || !q->doc.id || !q->doc.run_dir || qemu_places(q, &err) < 0) {
            saved_fail(s, "the VM's document: %s", err.msg);
            return;
        }
        q->tpl_doc = q->doc;
        q->proc = qemu_proc_new(q);
    }
    tpl_doc_saved(s, 2, &q->tpl_doc);
    fields_saved(s, q);
    q->ledger = reads ? ledger : q->ledger;
    if (!ledger) /* its own, in its run_dir */
        ledger_saved(s, 27, &q->ledger);
    const struct qlink_opts link = qemu_link_opts(q);
    qlink_saved(s, 28, &link, &q->link);
    if (saved_open(s, 29)) {
        proc_saved(s, q->proc);
        saved_close(s);
    }
    if (reads)
        resume(s, q);
}
