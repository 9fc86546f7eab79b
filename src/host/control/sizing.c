#include "host/control/sizing.h"
#include "base/err.h"
#include "base/str.h"
#include "host/control/config.h"
#include "oci/spec.h"
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define DEFAULT_PERIOD_US 100000 /* the kernel's */

#define ANNOTATION_MEMORY "io.lcow.memory_mib"
#define ANNOTATION_CPUS "io.lcow.cpus"
#define ANNOTATION_ROOTFS "io.lcow.rootfs"

static bool allowed(const struct config *c, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = c->allow_annotations; at && *at;) {
        size_t n = strcspn(at, " \t,");

        if (n == len && strncmp(at, name, n) == 0)
            return true;
        at += n;
        at += strspn(at, " \t,");
    }
    return false;
}

/* NULL unless it is there and allowed. */
static const char *annotation(const struct config *c, const struct spec *s, const char *name)
{
    const char *value = spec_annotation(s, name);

    return value && allowed(c, name) ? value : NULL;
}

static int number(const struct config *c, const struct spec *s, const char *name, uint32_t min,
                  uint32_t max, uint32_t *ret, struct err *err)
{
    const char *text = annotation(c, s, name);
    uint64_t value;

    if (!text)
        return 0;
    if (str_to_u64(text, max, &value) < 0 || value < min)
        return err_set(err, ERR_INVALID, "annotation %s is \"%.32s\": it must be from %u to %u",
                       name, text, min, max);
    *ret = (uint32_t)value;
    return 0;
}

int options_read(const struct config *c, const struct spec *s, struct options *ret, struct err *err)
{
    const char *rootfs = annotation(c, s, ANNOTATION_ROOTFS);
    struct options o = { .shared_rootfs = c->shared_rootfs };

    if (number(c, s, ANNOTATION_MEMORY, CONFIG_MEMORY_MIB_MIN, c->max_memory_mib, &o.memory_mib,
               err) < 0 ||
        number(c, s, ANNOTATION_CPUS, 1, c->max_cpus, &o.cpus, err) < 0)
        return -1;
    if (rootfs && !str_eq(rootfs, "scratch") && !str_eq(rootfs, "shared"))
        return err_set(err, ERR_INVALID,
                       "annotation " ANNOTATION_ROOTFS " is \"%.32s\": it must be scratch or "
                       "shared",
                       rootfs);
    if (rootfs)
        o.shared_rootfs = str_eq(rootfs, "shared");
    *ret = o;
    return 0;
}

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
