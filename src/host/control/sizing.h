/* sizing.h - how large a VM is to be: from the limits of the container that it is made for, the
 * configuration, and the annotations that the administrator allows. Pure. */
#pragma once
#include "host/control/options.h"

struct config;
struct err;
struct spec;

struct sizing {
    uint32_t memory_mib, cpus;
};
/* An annotation wins over limits, limits over the defaults; all end at the configured maximum. */
int sizing_of(const struct config *c, const struct spec *s, const struct options *o,
              struct sizing *ret, struct err *err);
