/* qemu_template.c - saved VMs: which template fits, its restore, and its building: a VM of its own
 * boots until its agent waits for a token, is saved, and ends. */
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define END_NS (20 * NS_PER_S)
#define CPUINFO_MAX (8u << 20)

/* A clone that does not run by then is killed. It takes a tenth of a second, but fifty at once on
 * two processors take turns, and a cold start would not be sooner there. */
#define RESTORE_NS (30 * NS_PER_S)

/* If QEMU crashes before that, its template is a suspect. */
#define SUSPECT_NS (10 * NS_PER_S)

#define MEMORY_FIRST (UINT64_C(512) << 20)

/* What the smallest clone has: what a VM has by default, so that most need not grow. The rest comes
 * by hot-plug, so one template serves all sizes. */
#define BASE_MIB 256
/* Room for growth costs QEMU 96 KiB a GiB, used or not, and each possible vCPU the guest 200 KiB.
 * So almost all VMs are clones of one template with room enough for them, and those that need more
 * are clones of another that has room for all that this host can give. */
#define GROW_GIB 8
#define CPUS_MIN 4
#define CPUS_MAX 16

/* The frequency of the TSC that an emulated guest gets. A clone has that of its template's boot. */
static uint32_t frequency(const struct qemu *q)
{
    if (!q->accel.emulated)
        return 0;
    return q->form == QEMU_CLONE ? q->tpl.info.tsc_khz : tsc_khz(&q->tsc_env);
}

struct qemu_host qemu_host_of(const struct qemu *q)
{
    return (struct qemu_host){ .emulated = q->accel.emulated,
                               .tsc_khz = frequency(q),
                               .form = q->form,
                               .cid = q->link ? qlink_cid(q->link) : 0,
                               .vcpus = q->doc.cpus,
                               .code_cache_mib = q->doc.code_cache_mib };
}

/* --- which one --- */

static uint32_t grow_mib(const struct vm_doc *doc)
{
    uint32_t most = doc->max_memory_mib > doc->memory_mib ? doc->max_memory_mib : doc->memory_mib;
    struct sysinfo si = { 0 };
    uint64_t gib;

    if (most <= BASE_MIB + GROW_GIB * 1024)
        return GROW_GIB * 1024;
    (void)sysinfo(&si); /* cannot fail */
    gib = (((uint64_t)si.totalram * si.mem_unit) >> 30) + 1;
    if (gib < GROW_GIB)
        gib = GROW_GIB;
    if (gib >= QEMU_MEMORY_MAX_MIB / 1024)
        gib = QEMU_MEMORY_MAX_MIB / 1024 - 1;
    return (uint32_t)gib * 1024;
}

static uint32_t cpus_max(void)
{
    int n = get_nprocs();

    return n < CPUS_MIN ? CPUS_MIN : n > CPUS_MAX ? CPUS_MAX : (uint32_t)n;
}

/* Room for growth is what the template has that fits its first size. */
void qemu_cap_doc(struct vm_doc *doc)
{
    const struct vm_doc now = { .memory_mib = doc->memory_mib };
    uint32_t mib = BASE_MIB + grow_mib(&now), cpus = cpus_max();

    if (doc->max_memory_mib > mib)
        doc->max_memory_mib = mib > doc->memory_mib ? mib : 0;
    if (doc->max_cpus > cpus)
        doc->max_cpus = cpus > doc->cpus ? cpus : doc->cpus;
}

/* The document of the template that could become this VM. */
static void fill_tpl_doc(struct qemu *q)
{
    q->tpl_doc = q->doc;
    q->tpl_doc.agent_log_level = NULL; /* in the boot block */
    q->tpl_doc.shape = (struct vm_shape){ 0 };
    q->tpl_doc.memory_mib = BASE_MIB;
    q->tpl_doc.max_memory_mib = BASE_MIB + grow_mib(&q->doc);
    q->tpl_doc.cpus = 1;
    q->tpl_doc.max_cpus = cpus_max();
    q->tpl_doc.scsi_controllers = 1; /* one too many does no harm */
}

/* All that the saved state depends on. The command line has the machine, the processor model and
 * the agent's settings in it. The TSC's frequency is not in the key, since two measurements of it
 * differ: the header has it, and check_frequency() compares. */
char *qemu_template_identity(struct qemu *q)
{
    AUTO_FD int program = open(q->program, O_RDONLY | O_CLOEXEC);
    AUTO_FREE char *kernel = template_file_identity(q->kernel_fd),
                   *initrd = template_file_identity(q->initrd_fd),
                   *qemu = template_program_identity(program),
                   *cpuinfo = file_text(CPUINFO_MAX, "%s", q->accel_env.cpuinfo), *cpu = NULL;
    AUTO(strv_release) struct strv args = { 0 };
    struct qemu_host host = qemu_host_of(q);
    struct sbuf b = { 0 };
    struct utsname u;

    fill_tpl_doc(q);
    struct vm_doc doc = q->tpl_doc;
    doc.id = "template";
    doc.uuid = NULL;
    host.form = QEMU_TEMPLATE;
    host.cid = 0;                    /* each clone has its own */
    host.tsc_khz = host.tsc_khz > 0; /* whether it is known decides how the kernel keeps time */
    qemu_cmdline(&doc, q->program, &host, &args);
    if (cpuinfo)
        cpu = template_cpu_identity(cpuinfo);
    sbuf_addf(&b, "kernel %s\ninitrd %s\nqemu %s\n", kernel, initrd, qemu);
    if (!q->accel.emulated && uname(&u) == 0)
        sbuf_addf(&b, "host %s %s\n", u.release, u.version); /* KVM is a part of it */
    sbuf_adds(&b, cpu ? cpu : "");
    for (size_t i = 0; i < args.n; i++)
        sbuf_addf(&b, "%s\n", args.v[i]);
    return sbuf_take(&b);
}

/* Why it is not a clone. */
__attribute__((format(printf, 2, 3))) static void stay_cold(struct qemu *q, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(q->cold_why, sizeof(q->cold_why), fmt, ap);
    va_end(ap);
}

static bool fits(struct qemu *q)
{
    const struct vm_doc *d = &q->doc, *t = &q->tpl_doc;

    if (d->memory_mib > t->max_memory_mib || d->max_memory_mib > t->max_memory_mib)
        stay_cold(q, "templates are for VMs of up to %u MiB", t->max_memory_mib);
    else if (d->max_cpus > t->max_cpus)
        stay_cold(q, "templates are for VMs of up to %u vCPUs", t->max_cpus);
    else if (d->scsi_controllers > t->scsi_controllers)
        stay_cold(q, "more SCSI controllers than a template has");
    else if (d->shape.backed || d->shape.low_mmio_mib || d->shape.high_mmio_mib ||
             d->shape.kernel_args || d->shape.host_nodes || d->shape.n_numa)
        stay_cold(q, "annotations ask for a VM that no template is like");
    else
        return true;
    return false;
}

/* There is none under our key. One that was good until kernel, QEMU or processor changed is named:
 * it stays unused, and the next pods start from what is built now. */
static void say_missing(struct qemu *q, const char *identity)
{
    char key[TEMPLATE_KEY_SIZE];
    AUTO_FREE char *why = template_outdated(q->doc.template_dir, identity, key);

    if (!why) {
        stay_cold(q, "there is no template yet");
        return;
    }
    stay_cold(q, "there is no template yet: %.32s is of %.80s", key, why);
    log_warn(&q->life, "template outdated; building another", F_STR("template", key),
             F_STR("why", why));
}

/* Guests that were calibrated for another frequency have a wrong clock here. */
static int check_frequency(const struct qemu *q, struct err *err)
{
    uint32_t theirs = q->tpl.info.tsc_khz, ours = frequency(q);

    if (tsc_same(theirs, ours))
        return 0;
    return err_because(err, REASON_TEMPLATE_UNUSABLE, ERR_STATE,
                       "template %s is for a TSC of %u kHz, this host's has %u kHz", q->tpl_key,
                       theirs, ours);
}

/* A build that failed just now would fail again: for a while none is requested. */
static bool recently_failed(struct qemu *q)
{
    struct template_failure f;

    if (!template_failure(q->doc.template_dir, q->tpl_key, &f) ||
        loop_wall(q->loop) >= template_retry_at(&f))
        return false;
    stay_cold(q, "the last build of its template failed: %.100s", f.why);
    return true;
}

int qemu_draft_open(struct qemu *q, struct err *err)
{
    AUTO_FREE char *identity = qemu_template_identity(q);

    template_key_of(identity, q->tpl_key);
    return template_open_draft(q->doc.template_draft, q->tpl_key, &q->tpl, err);
}

void qemu_template_look(struct qemu *q)
{
    struct err err = ERR_INIT;

    if (q->accel.prove) {
        stay_cold(q, "this is the first boot with KVM");
        return;
    }
    AUTO_FREE char *identity = qemu_template_identity(q);
    template_key_of(identity, q->tpl_key);
    if (!fits(q))
        return;
    if (template_open(q->doc.template_dir, q->tpl_key, &q->tpl, &err) == 0) {
        if (check_frequency(q, &err) == 0) {
            template_touch(q->doc.template_dir, q->tpl_key);
            return;
        }
        template_close(&q->tpl);
    }
    if (recently_failed(q))
        return;
    q->want_template = true;
    if (err.code == ERR_NOT_FOUND) {
        say_missing(q, identity);
        return;
    }
    stay_cold(q, "%.159s", err.msg);
    log_warn(&q->life, "template ignored; it will be rebuilt", F_ERR(&err));
}

bool qemu_has_templates(const struct qemu *q)
{
    return qemu_version_is(q->version, QEMU_TEMPLATE_MAJOR, QEMU_TEMPLATE_MINOR);
}

/* --- its restore --- */

/* Until something has changed, or QEMU is gone. */
static int wait_change(struct ctx *ctx, struct qemu *q, const char *why, struct err *err)
{
    if (q->proc->gone.set)
        return err_because(err, q->proc->exit.reason, ERR_UNAVAILABLE, "%s", q->proc->exit.why);
    return waitq_wait(ctx, &q->stage_q, why, err);
}

static int migration_prepare(struct ctx *ctx, struct qemu *q, struct err *err)
{
    json_t *args = json_pack("{s[{ss,sb},{ss,sb}]}", "capabilities", "capability",
                             "x-ignore-shared", "state", 1, "capability", "events", "state", 1);

    return qmp_client_call(ctx, q->proc->qmp, "migrate-set-capabilities", args, NULL, err);
}

static int migration_wait(struct ctx *ctx, struct qemu *q, struct err *err)
{
    while (!str_eq(q->proc->migration, "completed")) {
        if (str_eq(q->proc->migration, "failed") || str_eq(q->proc->migration, "cancelled"))
            return err_set(err, ERR_INTERNAL, "qemu's migration has %s", q->proc->migration);
        if (wait_change(ctx, q, "qemu's migration", err) < 0)
            return -1;
    }
    return 0;
}

/* The guest says its own token: from then on it is a VM like any other. */
static int await_life(struct ctx *ctx, struct qemu *q, struct err *err)
{
    while (!q->dialled)
        if (wait_change(ctx, q, "the clone to run", err) < 0)
            return -1;
    return 0;
}

/* Waits for the first part of a clone's memory, before a container can need it. The guest adds it
 * while it connects, so this costs next to nothing. The rest of a large VM comes faster than a
 * program can use it up (measured under emulation: 2 GB/s). A guest that does not add its memory
 * has less of it, which is not a reason to end its VM. */
static void await_memory(struct ctx *ctx, struct qemu *q)
{
    uint64_t all = qemu_grow_bytes(q, q->doc.memory_mib);
    uint64_t want = all < MEMORY_FIRST ? all : MEMORY_FIRST;
    struct err err = ERR_INIT;
    SPAN(step, ctx, q->vmm.timeline, TRACK_VMM, "memory", &err);

    while (q->grown_bytes < want && !q->proc->gone.set)
        if (waitq_wait(step.ctx, &q->stage_q, "the clone's memory", &err) < 0) {
            log_warn(&q->life, "the clone did not plug all of its memory; continuing",
                     F_U("have-mib", q->grown_bytes >> 20), F_U("want-mib", want >> 20));
            break;
        }
}

/* The key has QEMU's file in it, but a file's identity cannot be had everywhere. A saved state is
 * for the QEMU that saved it: newer ones put in what this one does not know, and may not say so. */
static int check_maker(struct qemu *q, struct err *err)
{
    struct err ignored = ERR_INIT;

    if (str_eq(q->tpl.info.vmm_version, q->version))
        return 0;
    q->want_template = true;
    if (template_remove(q->doc.template_dir, q->tpl_key, &ignored) == 0)
        log_warn(&q->life, "template of another QEMU removed; it will be rebuilt",
                 F_STR("theirs", q->tpl.info.vmm_version), F_STR("ours", q->version));
    return err_because(err, REASON_TEMPLATE_UNUSABLE, ERR_STATE,
                       "it was saved by QEMU %s, this one is %s", q->tpl.info.vmm_version,
                       q->version);
}

/* Whether QEMU crashed, or stopped the VM with a status that means the same. */
static bool is_fault(const struct qemu_proc *p)
{
    static const int faults[] = { SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS };

    for (size_t i = 0; WIFSIGNALED(p->exit.status) && i < ARRAY_LEN(faults); i++)
        if (WTERMSIG(p->exit.status) == faults[i])
            return true;
    return str_eq(p->stopped, "internal-error");
}

void qemu_clone_ended(struct qemu *q, struct qemu_proc *p)
{
    if (q->form != QEMU_CLONE || q->restored_at == 0 || q->doc.template_draft ||
        loop_now(q->loop) - q->restored_at > SUSPECT_NS || !is_fault(p))
        return;
    q->restored_at = 0; /* counted once */
    if (template_strike(q->doc.template_dir, q->tpl_key, p->exit.why)) {
        q->want_template = true;
        log_warn(&q->life, "template marked bad; it will be rebuilt", F_STR("template", q->tpl_key),
                 F_STR("why", p->exit.why));
    }
}

void qemu_judge(struct vmm *v, const char *why)
{
    struct qemu *q = qemu_of(v);
    bool clone = q->form == QEMU_CLONE && !q->doc.template_draft;
    struct err err = ERR_INIT;

    if (why)
        tsc_forget(&q->tsc_env); /* the frequency that the guest got may have been wrong */
    if (!clone)
        return;
    if (!why)
        template_absolve(q->doc.template_dir, q->tpl_key);
    else if (template_mark_bad(q->doc.template_dir, q->tpl_key, why, &err) < 0)
        log_error(&q->life, "a bad template stays in use; remove it: lcow template rm",
                  F_STR("template", q->tpl_key), F_ERR(&err));
    else
        log_warn(&q->life, "template marked bad; it will be rebuilt", F_STR("template", q->tpl_key),
                 F_STR("why", why));
}

/* QEMU itself refused what the store believes to be good: the next one shall not try it again. */
static void drop_unusable(struct ctx *ctx, struct qemu *q)
{
    struct ctx limited = ctx_with_timeout(ctx, NS_PER_S);
    struct qemu_proc *p = q->proc;
    struct err ignored = ERR_INIT;

    if (latch_wait(&limited, &p->gone, "qemu's end", &ignored) < 0 || !WIFEXITED(p->exit.status) ||
        q->doc.template_draft)
        return;
    q->want_template = true;
    if (template_remove(q->doc.template_dir, q->tpl_key, &ignored) == 0)
        log_warn(&q->life, "template removed; it will be rebuilt", F_STR(LK_ERROR, p->exit.why));
}

static int restore(struct ctx *ctx, struct qemu *q, struct err *err)
{
    SPAN(step, ctx, q->vmm.timeline, TRACK_VMM, "restore", err);

    int r = migration_prepare(step.ctx, q, err);

    q->restored_at = loop_now(q->loop);
    if (r < 0 || qmp_client_call(step.ctx, q->proc->qmp, "migrate-incoming",
                                 json_pack("{ss}", "uri", "file:" QEMU_JAIL_STATE), NULL, err) < 0)
        return -1;
    return migration_wait(step.ctx, q, err);
}

int qemu_clone_restore(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, RESTORE_NS);

    if (check_maker(q, err) < 0)
        return err_wrap_because(err, REASON_TEMPLATE_UNUSABLE, "restore template %s", q->tpl_key);
    int r = restore(&limited, q, err);

    if (r < 0)
        drop_unusable(ctx, q);
    else
        r = qemu_resize(&limited, q, err);
    if (r < 0)
        return err_wrap_because(err, REASON_TEMPLATE_UNUSABLE, "restore template %s", q->tpl_key);

    SPAN(step, &limited, q->vmm.timeline, TRACK_VMM, "first sign of life", err);
    if (await_life(step.ctx, q, err) < 0)
        return err_wrap_because(err, REASON_TEMPLATE_UNUSABLE, "clone of template %s", q->tpl_key);
    span_end(&step);
    await_memory(&limited, q);
    return 0;
}

/* --- its building --- */

static int await_ready(struct ctx *ctx, struct qemu *q, struct err *err)
{
    while (!q->ready) {
        if (wait_change(ctx, q, "the template's agent", err) == 0)
            continue;
        AUTO(sbuf_release) struct sbuf tail = { 0 };

        console_tail(&q->console, 2000, &tail);
        log_warn(&q->life, "the template's console", F_STR("tail", tail.len ? tail.data : ""));
        return err_wrap(err, "boot stopped at stage '%s'", vm_stage_name(q->stage));
    }
    return 0;
}

/* Its memory is in the file already; only the devices are left to write. It is not stopped before:
 * a clone of a VM that runs, runs. */
static int save(struct ctx *ctx, struct qemu *q, struct err *err)
{
    AUTO_FREE char *uri = str_format("file:/proc/self/fd/%d", QEMU_FD_STATE);

    if (migration_prepare(ctx, q, err) < 0 ||
        qmp_client_call(ctx, q->proc->qmp, "migrate", json_pack("{ss}", "uri", uri), NULL, err) < 0)
        return -1;
    return migration_wait(ctx, q, err);
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

/* After an update of kernel or QEMU, the template before it fits no VM any more. */
static void prune(struct ctx *ctx, struct qemu *q)
{
    struct err err = ERR_INIT;

    if (template_prune(q->doc.template_dir, q->tpl_key, loop_wall(q->loop), say_pruned, ctx, &err) <
        0)
        log_warn(ctx, "could not remove old templates", F_ERR(&err));
}

static int build(struct ctx *ctx, struct qemu *q, const struct vmm_template_opts *opts,
                 struct template_draft *draft, struct template_info *info, struct err *err)
{
    AUTO_FREE char *identity = qemu_template_identity(q);
    struct vmm_exit exit;

    if (template_draft_begin(q->doc.template_dir, q->tpl_key, (uint64_t)q->tpl_doc.memory_mib << 20,
                             q->ledger, draft, err) < 0)
        return -1;
    template_close(&q->tpl); /* or it would be cloned */
    q->draft = draft;
    q->form = QEMU_TEMPLATE;
    if (q->vmm.ops->start(ctx, &q->vmm, err) < 0 || check_version(q, err) < 0 ||
        await_ready(ctx, q, err) < 0 || save(ctx, q, err) < 0 ||
        q->vmm.ops->quit(ctx, &q->vmm, err) < 0 || q->vmm.ops->wait(ctx, &q->vmm, &exit, err) < 0)
        return -1;
    if (q->console.trouble[0])
        return err_set(err, ERR_DATA_LOSS, "the guest's kernel says: %s", q->console.trouble);
    fill_info(q, TAKE_PTR(identity), info);
    if (template_draft_seal(draft, info, err) < 0)
        return -1;
    if (opts->prove && opts->prove(ctx, opts->arg, draft->path, err) < 0)
        return -1;
    return template_draft_publish(draft, q->doc.template_dir, info->key, err);
}

/* Whatever the outcome, nothing of it stays. */
static int take_back(struct qemu *q, struct err *err)
{
    struct ctx ctx = ctx_with_timeout(&q->root, END_NS);
    struct vmm_exit exit;
    struct err ignored = ERR_INIT;

    q->vmm.ops->terminate(&q->vmm);
    if (q->state != QEMU_NEW && q->state != QEMU_CREATED)
        (void)q->vmm.ops->wait(&ctx, &q->vmm, &exit, &ignored); /* release returns the error */
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
        return err_wrap_because(err, REASON_TEMPLATE_BUILD_FAILED, "build a template");
    struct vmm *v = qemu_vmm_new(loop);
    struct qemu *q = qemu_of(v);
    int r = v->ops->create(ctx, v, doc, err);
    if (r == 0 && q->accel.prove) /* KVM did not fail, and was not proven either */
        r = err_because(err, REASON_NO_KVM, ERR_STATE,
                        "KVM is not proven to work on this host; run lcow doctor --retest");
    if (r == 0 && q->tpl.ram_fd >= 0 && !opts->again) {
        *ret = q->tpl.info;
        q->tpl.info.identity = NULL;
    } else if (r == 0) {
        r = build(ctx, q, opts, &draft, ret, err);
        *ret_made = r == 0;
        if (r == 0)
            prune(ctx, q);
        else if (err->code != ERR_CANCELLED && q->tpl_key[0])
            /* One that was interrupted says nothing about the next one. */
            template_remember_failure(q->doc.template_dir, q->tpl_key, loop_wall(q->loop),
                                      err->msg);
    }
    template_draft_abort(&draft);
    if (take_back(q, &lost) < 0)
        log_error(ctx, "the template builder was not cleaned up completely; run `lcow gc`",
                  F_ERR(&lost));
    return r < 0 ? err_wrap_because(err, REASON_TEMPLATE_BUILD_FAILED, "build a template") : 0;
}
