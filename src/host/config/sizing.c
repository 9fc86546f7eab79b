#include "host/config/sizing.h"
#include "base/err.h"
#include "host/config/annotations.h"
#include "host/config/config.h"
#include "oci/spec.h"

#define MIB (UINT64_C(1) << 20)
#define DEFAULT_PERIOD_US 100000 /* the kernel's default */
#define QUOTA_MIN_US 1000        /* the kernel refuses less */

static uint64_t at_most(uint64_t value, uint64_t max)
{
    return value < max ? value : max;
}

int sizing_of(const struct config *c, const struct spec *s, const struct annotations *o,
              struct sizing *ret, struct err *err)
{
    struct spec_limits l;
    uint64_t memory = c->memory_mib, cpus = c->cpus;

    if (spec_limits(s, &l, err) < 0)
        return -1;
    if (l.memory_bytes) {
        uint64_t mib = l.memory_bytes / MIB + (l.memory_bytes % MIB != 0);

        memory = mib + c->overhead_mib;
        if (memory < CONFIG_MEMORY_MIB_MIN)
            memory = CONFIG_MEMORY_MIB_MIN;
    }
    if (l.cpu_quota > 0) {
        uint64_t period = l.cpu_period ? l.cpu_period : DEFAULT_PERIOD_US;

        cpus = (uint64_t)l.cpu_quota / period + ((uint64_t)l.cpu_quota % period != 0);
    }
    if (o->memory_mib)
        memory = o->memory_mib;
    if (o->cpus)
        cpus = o->cpus;
    ret->memory_mib = (uint32_t)at_most(memory, c->max_memory_mib);
    ret->cpus = (uint32_t)at_most(cpus, c->max_cpus);
    return 0;
}

/* --- while it runs --- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* In thousandths of a CPU; 0: no limit. */
static uint64_t milli(const struct spec_limits *l)
{
    uint64_t period = l->cpu_period ? l->cpu_period : DEFAULT_PERIOD_US, quota;

    if (l->cpu_quota <= 0)
        return 0;
    quota = at_most((uint64_t)l->cpu_quota, UINT64_MAX / 2000);
    return larger(quota * 1000 / period, 1);
}

void sizing_add(struct sizing_pod *p, const struct spec_limits *l)
{
    p->memory_bytes += at_most(l->memory_bytes, UINT64_MAX / 4096);
    p->memory_open = p->memory_open || !l->memory_bytes;
    p->cpu_milli += milli(l);
    p->cpu_open = p->cpu_open || !milli(l);
}

/* A pod without limits, or with a container without limits, counts with the VM's default size. */
static uint64_t pods_need(uint64_t own, uint64_t sum, bool open, uint64_t by_default)
{
    return own ? larger(own, sum) : open || !sum ? larger(by_default, sum) : sum;
}

void sizing_of_pods(const struct config *c, const struct sizing *least,
                    const struct sizing_pod *pods, size_t n, struct sizing_all *ret)
{
    uint64_t spare = c->memory_mib > c->overhead_mib ? c->memory_mib - c->overhead_mib : 0;
    uint64_t bytes = 0, cpu = 0, quota = 0, shares = 0;
    bool open = n == 0;

    for (size_t i = 0; i < n; i++) {
        const struct sizing_pod *p = &pods[i];
        uint64_t own = milli(&p->own);

        bytes += pods_need(at_most(p->own.memory_bytes, UINT64_MAX / 4096), p->memory_bytes,
                           p->memory_open, spare * MIB);
        cpu += pods_need(own, p->cpu_milli, p->cpu_open, c->cpus * UINT64_C(1000));
        quota += own;
        open = open || !own;
        shares += at_most(p->own.cpu_shares, UINT32_MAX);
    }
    *ret = (struct sizing_all){
        .memory_mib = larger(bytes / MIB + (bytes % MIB != 0) + c->overhead_mib,
                             larger(CONFIG_MEMORY_MIB_MIN, least->memory_mib)),
        .cpus = (uint32_t)at_most(larger((cpu + 999) / 1000, least->cpus), c->max_cpus),
        .cpu_quota = open ? 0 : larger(quota * (DEFAULT_PERIOD_US / 1000), QUOTA_MIN_US),
        .cpu_shares = shares,
    };
    if (ret->cpus == 0)
        ret->cpus = 1;
}
