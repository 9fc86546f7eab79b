/* sizing.h - computes the size of a VM from the limits of its containers, the configuration, and
 * the annotations that the administrator allows. Pure. */
#pragma once
#include "host/config/annotations.h"
#include "oci/spec.h"

struct config;
struct err;
struct spec;

struct sizing {
    uint32_t memory_mib, cpus;
};
/* Annotations override limits, limits override defaults; the configured maximum bounds all. */
int sizing_of(const struct config *c, const struct spec *s, const struct annotations *o,
              struct sizing *ret, struct err *err);

/* One pod of a VM; its limits may have changed since the VM started. */
struct sizing_pod {
    struct spec_limits own; /* of its first container: the client's limits for the whole pod */
    /* Sums over its other containers; open: one of them has no limit. */
    uint64_t memory_bytes, cpu_milli;
    bool memory_open, cpu_open;
};
void sizing_add(struct sizing_pod *p, const struct spec_limits *l);

struct sizing_all {
    uint64_t memory_mib; /* what they need; may exceed the maximum */
    uint32_t cpus;       /* at most max_cpus */
    /* On the host, for QEMU: 0 if a pod has no limit, or no shares. */
    uint64_t cpu_quota, cpu_shares; /* in 100 ms */
};
/* A pod without limits counts with the configuration's defaults. least: the size that an
 * annotation requests, or 0. */
void sizing_of_pods(const struct config *c, const struct sizing *least,
                    const struct sizing_pod *pods, size_t n, struct sizing_all *ret);
