/* qemu_size.c - what a VM uses, and what it has: memory by virtio-mem and vCPUs by hot-plug, while
 * it runs. */
#include "base/child.h"
#include "host/vmm/qemu/qemu_priv.h"
#include "proto/qmp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GROWN_NS (30 * NS_PER_S) /* the guest adds it block by block */
#define CPU_NS (30 * NS_PER_S)   /* it moves what runs there */

/* --- use --- */

/* Fields 14, 15 and 24 of /proc/PID/stat; the name in field 2 may hold anything. */
int qemu_read_stat(const char *text, uint64_t *ret_ns, uint64_t *ret_pages)
{
    const char *p = strrchr(text, ')');
    uint64_t user, system, hz = (uint64_t)sysconf(_SC_CLK_TCK);

    if (!p || sscanf(p + 1,
                     " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64
                     " %*d %*d %*d %*d %*d %*d %*u %*u %" SCNu64,
                     &user, &system, ret_pages) != 3)
        return -1;
    *ret_ns = (user + system) * (NS_PER_S / hz);
    return 0;
}

int qemu_stats(struct ctx *ctx, struct vmm *v, struct vmm_stats *ret, struct err *err)
{
    struct qemu *q = qemu_of(v);
    uint64_t pages;

    (void)ctx;
    if (!q->proc || child_done(q->proc->child, NULL))
        return err_because(err, REASON_VM_ENDED, ERR_STATE, "the VM is not running");
    AUTO_FREE char *stat = file_text(4096, "/proc/%d/stat", child_pid(q->proc->child));
    if (!stat || qemu_read_stat(stat, &ret->cpu_ns, &pages) < 0)
        return err_set(err, ERR_INTERNAL, "/proc/%d/stat cannot be read",
                       child_pid(q->proc->child));
    ret->rss_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    ret->memory_bytes = ((uint64_t)qemu_base_doc(q)->memory_mib << 20) + q->grown_bytes;
    return 0;
}

/* --- memory --- */

uint64_t qemu_grow_bytes(const struct qemu *q, uint32_t mib)
{
    uint32_t base = qemu_base_doc(q)->memory_mib, more = mib > base ? mib - base : 0;

    return (uint64_t)((more + QEMU_GROW_MIB - 1) / QEMU_GROW_MIB * QEMU_GROW_MIB) << 20;
}

static int request_memory(struct ctx *ctx, struct qemu *q, uint32_t mib, uint64_t *ret_bytes,
                          struct err *err)
{
    const struct vm_doc *d = qemu_base_doc(q);
    uint32_t most = d->max_memory_mib > d->memory_mib ? d->max_memory_mib : d->memory_mib;

    /* A clone that is asked for less keeps what its template has. */
    if (q->form == QEMU_CLONE && mib < d->memory_mib)
        mib = d->memory_mib;
    if (mib < d->memory_mib || mib > most)
        return err_because(err, REASON_VM_MEMORY_LIMIT, ERR_RANGE,
                           "invalid memory size %u MiB: this VM can have %u–%u MiB", mib,
                           d->memory_mib, most);
    *ret_bytes = qemu_grow_bytes(q, mib);
    if (most == d->memory_mib)
        return 0;
    json_t *args = json_pack("{ss,ss,sI}", "path", "grow0", "property", "requested-size", "value",
                             (json_int_t)*ret_bytes);
    return qmp_client_call(ctx, q->proc->qmp, "qom-set", args, NULL, err);
}

int qemu_set_memory(struct ctx *ctx, struct vmm *v, uint32_t mib, struct err *err)
{
    struct qemu *q = qemu_of(v);
    uint64_t bytes;

    if (qemu_check_runs(q, "set the memory", err) < 0)
        return -1;
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    struct ctx limited = ctx_with_timeout(&inner, GROWN_NS);
    int r = request_memory(&limited, q, mib, &bytes, err);
    /* The guest plugs and unplugs by itself; it may keep what it cannot move. */
    while (r == 0 && q->grown_bytes != bytes && !qemu_is_gone(q))
        if (waitq_wait(&limited, &q->stage_q, "the guest to take or give memory", err) < 0)
            r = err_wrap(
                err, "memory of %u MiB: the guest has reached %llu MiB", mib,
                (unsigned long long)(qemu_base_doc(q)->memory_mib + (q->grown_bytes >> 20)));
    return r;
}

/* --- vCPUs --- */

_Static_assert(QEMU_CPUS_MAX <= 64, "a bit for each");

static uint32_t count_cpus(const struct qemu *q)
{
    return qemu_base_doc(q)->cpus + (uint32_t)__builtin_popcountll(q->cpu_ids);
}

static const char *cpu_name(unsigned number, char id[24])
{
    snprintf(id, 24, "cpu-%u", number);
    return id;
}

/* Arguments for the lowest vCPU that QEMU could add; it lists the highest first. NULL: none. */
static json_t *free_cpu(const json_t *list, const char *id)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        json_t *o = json_array_get(list, i), *props = NULL;
        const char *type = NULL;

        if (json_object_get(o, "qom-path") ||
            json_unpack(o, "{ss,so}", "type", &type, "props", &props) < 0)
            continue;
        json_t *args = json_pack("{ss,ss}", "driver", type, "id", id);
        json_object_update(args, props);
        return args;
    }
    return NULL;
}

/* Whether QEMU may still do it: a command whose caller has left is sent all the same. */
static bool is_unanswered(const struct err *err)
{
    return err->code == ERR_DEADLINE || err->code == ERR_CANCELLED;
}

static int add_cpu(struct ctx *ctx, struct qemu *q, struct err *err)
{
    AUTO(qmp_message_release) struct qmp_message list = { 0 };
    unsigned number = qemu_base_doc(q)->cpus;
    char id[24];

    if (qmp_client_call(ctx, q->proc->qmp, "query-hotpluggable-cpus", NULL, &list, err) < 0)
        return -1;
    while (q->cpu_ids >> number & 1)
        number++;
    json_t *args = free_cpu(list.data, cpu_name(number, id));
    if (!args)
        return err_set(err, ERR_RANGE, "qemu has no vCPU left to add");
    q->cpu_ids |= UINT64_C(1) << number; /* before: whatever becomes of the answer */
    int r = qmp_client_call(ctx, q->proc->qmp, "device_add", args, NULL, err);
    if (r < 0 && !is_unanswered(err))
        q->cpu_ids &= ~(UINT64_C(1) << number);
    return r;
}

/* Perhaps long after we have given up to wait for it, when others have been added. */
void qemu_cpu_deleted(struct qemu *q, const char *device)
{
    char id[24];

    for (unsigned i = 0; i < QEMU_CPUS_MAX; i++)
        if (q->cpu_ids >> i & 1 && str_eq(device, cpu_name(i, id))) {
            q->cpu_ids &= ~(UINT64_C(1) << i);
            waitq_wake_all(&q->stage_q);
        }
}

/* A request: the guest releases the vCPU when it has moved its work to others. */
static int remove_cpu(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CPU_NS);
    unsigned number = 63 - (unsigned)__builtin_clzll(q->cpu_ids); /* the highest */
    uint64_t bit = UINT64_C(1) << number;
    char id[24];
    json_t *args = json_pack("{ss}", "id", cpu_name(number, id));

    if (qmp_client_call(&limited, q->proc->qmp, "device_del", args, NULL, err) < 0) {
        if (err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err);
        q->cpu_ids &= ~bit; /* the guest released it after our deadline */
        return 0;
    }
    while (q->cpu_ids & bit && !qemu_is_gone(q))
        if (waitq_wait(&limited, &q->stage_q, "the guest to release a vCPU", err) < 0)
            return err_wrap(err, "the guest keeps %u vCPUs", count_cpus(q));
    return 0;
}

static int change_cpus(struct ctx *ctx, struct qemu *q, uint32_t cpus, struct err *err)
{
    const struct vm_doc *d = qemu_base_doc(q);

    if (cpus < d->cpus || cpus > d->max_cpus)
        return err_because(err, REASON_VM_MEMORY_LIMIT, ERR_RANGE,
                           "invalid number of vCPUs %u: this VM can have %u–%u", cpus, d->cpus,
                           d->max_cpus);
    while (count_cpus(q) < cpus)
        if (add_cpu(ctx, q, err) < 0)
            return -1;
    while (count_cpus(q) > cpus && !qemu_is_gone(q))
        if (remove_cpu(ctx, q, err) < 0)
            return -1;
    return 0;
}

/* QEMU 10 dies of two things under emulation (see tcg_threads): a vCPU more, if each has a thread
 * and the code cache is full; and a vCPU less, if one thread has them all. vCPUs that a clone gets
 * at its start are safe: its cache is empty. 1: it keeps what it has. */
static int check_emulated(struct qemu *q, uint32_t cpus, struct err *err)
{
    bool one_thread = q->doc.cpus == 1;

    if (!q->accel.emulated || cpus < qemu_base_doc(q)->cpus)
        return 0;
    if (!one_thread && cpus > count_cpus(q))
        return err_set(err, ERR_STATE,
                       "an emulated VM that began with %u vCPUs cannot get more: QEMU would abort; "
                       "give them at the start",
                       q->doc.cpus);
    if (!one_thread || cpus >= count_cpus(q))
        return 0;
    log_info(&q->life, "an emulated VM keeps its vCPUs", F_U("cpus", count_cpus(q)),
             F_U("asked", cpus));
    return 1;
}

int qemu_set_cpus(struct ctx *ctx, struct vmm *v, uint32_t cpus, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (qemu_check_runs(q, "set the vCPUs", err) < 0)
        return -1;
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = check_emulated(q, cpus, err);
    if (r == 0)
        r = change_cpus(&inner, q, cpus, err);
    return r < 0 ? err_wrap(err, "set the vCPUs to %u", cpus) : 0;
}

int qemu_resize(struct ctx *ctx, struct qemu *q, struct err *err)
{
    uint64_t bytes;

    /* One that asked for less keeps what its template has. */
    if (qemu_grow_bytes(q, q->doc.memory_mib) > 0 &&
        request_memory(ctx, q, q->doc.memory_mib, &bytes, err) < 0)
        return -1;
    return change_cpus(ctx, q, q->doc.cpus, err);
}
