#include "host/control/sizing.h"
#include "base/err.h"
#include "host/control/config.h"
#include "host/control/options.h"
#include "oci/spec.h"

#define MIB (UINT64_C(1) << 20)
#define DEFAULT_PERIOD_US 100000 /* the kernel's */

static uint64_t at_most(uint64_t value, uint64_t max)
{
    return value < max ? value : max;
}

int sizing_of(const struct config *c, const struct spec *s, const struct options *o,
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
