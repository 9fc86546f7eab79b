/* sizing.h - how large a VM is to be: from the limits of the containers in it, the configuration,
 * and the annotations that the administrator allows. Pure. */
#pragma once
#include "host/config/annotations.h"
#include "oci/spec.h"

struct config;
struct err;
struct spec;

struct sizing {
    uint32_t memory_mib, cpus;
};
/* An annotation wins over limits, limits over the defaults; all end at the configured maximum. */
int sizing_of(const struct config *c, const struct spec *s, const struct annotations *o,
              struct sizing *ret, struct err *err);

/* All pods of a VM, whose limits may have changed since it was made. */
struct sizing_pod {
    struct spec_limits own; /* of its first container: what the client says of the whole pod */
    /* Of its other containers together; open: one of them has no limit. */
    uint64_t memory_bytes, cpu_milli;
    bool memory_open, cpu_open;
};
void sizing_add(struct sizing_pod *p, const struct spec_limits *l);

struct sizing_all {
    uint64_t memory_mib; /* what they need; may be more than there can be */
    uint32_t cpus;       /* at most max_cpus */
    /* On the host, for QEMU: 0 if a pod has no limit, or no shares. */
    uint64_t cpu_quota, cpu_shares; /* in 100 ms */
};
/* A pod without limits counts with the configuration's defaults. least: what was asked for by
 * annotation, 0 if nothing was. */
void sizing_of_pods(const struct config *c, const struct sizing *least,
                    const struct sizing_pod *pods, size_t n, struct sizing_all *ret);
