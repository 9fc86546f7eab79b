/* sizing.h - how large a VM is to be: from the limits of the container that it is made for, the
 * configuration, and the annotations that the administrator allows. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct config;
struct err;
struct spec;

/* What a container's spec may choose, after the allow-list. */
struct options {
    uint32_t memory_mib, cpus; /* 0: not said */
    bool shared_rootfs;
};
/* An allowed annotation with a value that makes no sense: ERR_INVALID. */
int options_read(const struct config *c, const struct spec *s, struct options *ret,
                 struct err *err);

struct sizing {
    uint32_t memory_mib, cpus;
};
/* An annotation wins over limits, limits over the defaults; all end at the configured maximum. */
int sizing_of(const struct config *c, const struct spec *s, const struct options *o,
              struct sizing *ret, struct err *err);
