#include "host/config/shape.h"
#include "base/err.h"
#include "base/str.h"
#include "host/config/annotations.h"
#include "host/config/cpugroup.h"
#include <stdarg.h>
#include <string.h>

#define VM "io.microsoft.virtualmachine."
#define NUMA_HOST "computetopology.numa.mapped-physical-nodes"
#define NUMA_CPUS "computetopology.numa.count-of-processors"
#define NUMA_MIB "computetopology.numa.count-of-memory-blocks"
#define NUMA_PREFER "computetopology.numa.preferred-physical-nodes"
#define NODE_CPUS "computetopology.processor.numa.max-processors-per-node"
#define HOST_NODE_MAX 63

/* name: the annotation's name without the prefix VM. */
__attribute__((format(printf, 4, 5))) static int bad(struct err *err, const char *name,
                                                     const char *value, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *why = str_vformat(fmt, ap);
    va_end(ap);
    return err_because(err, REASON_INVALID_ANNOTATION, ERR_INVALID,
                       "annotation " VM "%s is \"%.64s\": %s", name, value, why);
}

/* --- kernel parameters --- */

/* Parameters for tuning and hardening. They must not affect what the host relies on: console, init,
 * agent, modules, and the parameters that the shim sets. "": the name alone. "#": 0–65536. */
static const struct parameter {
    const char *name, *values;
} parameters[] = {
    { "transparent_hugepage", "always|madvise|never" },
    { "default_hugepagesz", "2M|1G" },
    { "hugepagesz", "2M|1G" },
    { "hugepages", "#" },
    { "numa_balancing", "enable|disable" },
    { "preempt", "none|voluntary|full" },
    { "nohz", "on|off" },
    { "skew_tick", "0|1" },
    { "threadirqs", "" },
    { "swapaccount", "0|1" },
    { "psi", "0|1" },
    { "audit", "0|1" },
    { "init_on_alloc", "0|1" },
    { "init_on_free", "0|1" },
    { "page_alloc.shuffle", "0|1" },
    { "slab_nomerge", "" },
    { "randomize_kstack_offset", "on|off" },
    { "vsyscall", "none|xonly" },
    { "debugfs", "off|no-mount" },
    { "mitigations", "auto|auto,nosmt" },
    { "nosmt", "" },
    { "oops", "panic" },
    { "softlockup_panic", "0|1" },
};

static bool is_value(const char *values, const char *text, size_t n)
{
    if (*values == '#') {
        AUTO_FREE char *copy = str_ndup(text, n);
        uint64_t number;

        return str_to_u64(copy, 65536, &number) == 0;
    }
    for (size_t len; *values; values += len + (values[len] == '|')) {
        len = strcspn(values, "|");
        if (len == n && strncmp(values, text, n) == 0)
            return true;
    }
    return false;
}

static bool is_parameter(const char *word, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(parameters); i++) {
        const struct parameter *p = &parameters[i];
        size_t len = strlen(p->name);

        if (n < len || strncmp(word, p->name, len) != 0)
            continue;
        if (!*p->values
                ? n == len
                : n > len && word[len] == '=' && is_value(p->values, word + len + 1, n - len - 1))
            return true;
    }
    return false;
}

static int check_kernel(const char *text, struct err *err)
{
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");

        if (!is_parameter(at, n))
            return bad(err, "lcow.kernelbootoptions", text,
                       "kernel parameter \"%.*s\" is not allowed; see docs/configuration.md for "
                       "the allowed parameters and values",
                       (int)(n > 64 ? 64 : n), at);
        at += n;
    }
    return 0;
}

void shape_print_kernel(struct sbuf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(parameters); i++) {
        const struct parameter *p = &parameters[i];

        sbuf_addf(out, "\n- `%s%s%s`", p->name, *p->values ? "=" : "",
                  *p->values == '#' ? "0–65536" : p->values);
    }
    sbuf_addc(out, '\n');
}

/* --- NUMA --- */

/* Parses "0,2,255"; *ret_n is 0 if the text is empty. */
static int numbers(const char *name, const char *text, uint32_t min, uint32_t max, uint32_t *ret,
                   unsigned *ret_n, struct err *err)
{
    unsigned n = 0;

    for (const char *at = text; *at || (n > 0 && at[-1] == ',');) {
        AUTO_FREE char *word = str_ndup(at, strcspn(at, ","));
        uint64_t number;

        if (n == VM_NUMA_MAX || str_to_u64(word, max, &number) < 0 || number < min)
            return bad(err, name, text, "must be 1–%d numbers of %u–%u, separated by commas",
                       VM_NUMA_MAX, min, max);
        ret[n++] = (uint32_t)number;
        at += strlen(word);
        at += *at == ',';
    }
    *ret_n = n;
    return 0;
}

static int explicit_nodes(const struct annotations *o, const struct sizing *size,
                          struct vm_shape *s, struct err *err)
{
    uint32_t host[VM_NUMA_MAX], cpus[VM_NUMA_MAX], mib[VM_NUMA_MAX];
    unsigned n_cpus, n_mib, any = 0;
    uint64_t all_cpus = 0, all_mib = 0;

    if (numbers(NUMA_HOST, o->numa_host, 0, VM_NUMA_ANY, host, &s->n_numa, err) < 0 ||
        numbers(NUMA_CPUS, o->numa_cpus, 1, CONFIG_CPUS_MAX, cpus, &n_cpus, err) < 0 ||
        numbers(NUMA_MIB, o->numa_mib, 1, CONFIG_MEMORY_MIB_MAX, mib, &n_mib, err) < 0)
        return -1;
    if (s->n_numa != n_cpus || s->n_numa != n_mib)
        return bad(
            err, NUMA_HOST, o->numa_host,
            "count-of-processors and count-of-memory-blocks have %u and %u numbers, but must "
            "have %u each",
            n_cpus, n_mib, s->n_numa);
    for (unsigned i = 0; i < s->n_numa; i++) {
        any += host[i] == VM_NUMA_ANY;
        all_cpus += cpus[i];
        all_mib += mib[i];
        s->numa[i] = (struct vm_numa){ cpus[i], mib[i], host[i] };
        if ((host[i] > HOST_NODE_MAX && host[i] != VM_NUMA_ANY) || (any && any != i + 1))
            return bad(err, NUMA_HOST, o->numa_host,
                       "must be host nodes, 0–%d, or 255 for each node", HOST_NODE_MAX);
    }
    if (s->n_numa && (all_cpus != size->cpus || all_mib != size->memory_mib))
        return bad(err, NUMA_CPUS, o->numa_cpus,
                   "with count-of-memory-blocks \"%s\": their sums must be the VM's %u CPUs and %u "
                   "MiB",
                   o->numa_mib, size->cpus, size->memory_mib);
    return 0;
}

static int implicit_nodes(const struct annotations *o, const struct sizing *size,
                          struct vm_shape *s, struct err *err)
{
    AUTO_FREE char *most = str_format("%u", o->node_cpus);
    uint32_t n, by_memory;

    if (!o->node_cpus && !o->node_mib)
        return 0;
    if (!o->node_cpus || !o->node_mib || s->n_numa)
        return bad(err, NODE_CPUS, most,
                   "with max-size-per-node %u: set both or neither, and neither with " VM NUMA_HOST,
                   o->node_mib);
    n = (size->cpus + o->node_cpus - 1) / o->node_cpus;
    by_memory = (size->memory_mib + o->node_mib - 1) / o->node_mib;
    n = by_memory > n ? by_memory : n;
    if (n > VM_NUMA_MAX || n > size->cpus)
        return bad(
            err, NODE_CPUS, most,
            "with max-size-per-node %u: the result is %u nodes of %u CPUs and %u MiB, but must be "
            "1–%d nodes with at least 1 CPU each",
            o->node_mib, n, size->cpus, size->memory_mib, VM_NUMA_MAX);
    for (uint64_t i = 0; i < n; i++)
        s->numa[i] =
            (struct vm_numa){ (uint32_t)((i + 1) * size->cpus / n - i * size->cpus / n),
                              (uint32_t)((i + 1) * size->memory_mib / n - i * size->memory_mib / n),
                              VM_NUMA_ANY };
    s->n_numa = n;
    return 0;
}

static int preferred_nodes(const struct annotations *o, struct vm_shape *s, struct err *err)
{
    uint32_t nodes[VM_NUMA_MAX];
    unsigned n;

    if (numbers(NUMA_PREFER, o->numa_prefer, 0, HOST_NODE_MAX, nodes, &n, err) < 0)
        return -1;
    for (unsigned i = 0; i < n; i++)
        s->host_nodes |= UINT64_C(1) << nodes[i];
    return 0;
}

int shape_of(const struct annotations *o, const struct sizing *size, struct vm_shape *ret,
             struct err *err)
{
    struct vm_shape s = { .backed = o->backed || o->committed,
                          .low_mmio_mib = o->low_mmio_mib,
                          .high_mmio_mib = o->high_mmio_mib,
                          .kernel_args = *o->kernel_args ? o->kernel_args : NULL,
                          .disk_iops = o->disk_iops,
                          .disk_bytes_per_s = o->disk_bytes_per_s };

    if (*o->cpu_group && cpugroup_check_name(o->cpu_group, err) < 0)
        return err_wrap_because(err, REASON_INVALID_ANNOTATION,
                                "annotation " VM "cpugroup.id is \"%s\"", o->cpu_group);
    if (check_kernel(o->kernel_args, err) < 0 || explicit_nodes(o, size, &s, err) < 0 ||
        implicit_nodes(o, size, &s, err) < 0 || preferred_nodes(o, &s, err) < 0)
        return -1;
    if (s.n_numa && !s.backed)
        return bad(err, "computetopology.memory.allowovercommit", "true",
                   "must be false with NUMA nodes");
    if (o->deferred && s.backed)
        return bad(err, "computetopology.memory.enabledeferredcommit", "true",
                   "must be false if memory is allocated at the start (fullyphysicallybacked, "
                   "allowovercommit)");
    *ret = s;
    return 0;
}
