/* Any bytes as a configuration file, and as containerd's options table. What is refused says why,
 * with its place; what is accepted is within its bounds, and printed it reads back the same. */
#include "base/err.h"
#include "base/str.h"
#include "fuzz/on_fiber.h"
#include "host/config/annotations.h"
#include "host/config/shape.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The same bytes as TOML: refused with the place, or within the same bounds. */
static void fuzz_toml(const struct fuzz_input *in)
{
    AUTO(config_release) struct config c;
    AUTO_FREE char *text = str_ndup((const char *)in->data, in->size);
    struct err err = ERR_INIT;

    config_init(&c);
    if (config_parse_toml(&c, "in", text, &err) < 0) {
        if (!str_starts(err.msg, "in:") || err.code == ERR_NONE)
            abort();
    } else if (c.cpus < 1 || c.cpus > CONFIG_CPUS_MAX || c.run_root[0] != '/' || !c.qemu[0] ||
               strchr(c.qemu, '\n')) {
        abort();
    }
}

/* The same bytes as a pod's wishes: what reaches QEMU's command line is of the lists. */
static void fuzz_shape(const struct fuzz_input *in)
{
    AUTO_FREE char *text = str_ndup((const char *)in->data, in->size);
    struct annotations o = { .backed = true };
    struct vm_shape shape;
    struct err err = ERR_INIT;
    uint32_t cpus = 0;

    snprintf(o.kernel_args, sizeof(o.kernel_args), "%s", text);
    if (shape_of(&o, &(struct sizing){ 256, 2 }, &shape, &err) == 0 &&
        strspn(o.kernel_args, "abcdefghijklmnopqrstuvwxyzMG0123456789_=,.- ") !=
            strlen(o.kernel_args))
        abort();
    o.kernel_args[0] = '\0';
    snprintf(o.numa_host, sizeof(o.numa_host), "%s", text);
    snprintf(o.numa_cpus, sizeof(o.numa_cpus), "%s", text);
    snprintf(o.numa_mib, sizeof(o.numa_mib), "%s", text);
    snprintf(o.numa_prefer, sizeof(o.numa_prefer), "%s", text);
    if (shape_of(&o, &(struct sizing){ 2, 2 }, &shape, &err) < 0)
        return;
    for (unsigned i = 0; i < shape.n_numa; i++)
        cpus += shape.numa[i].cpus;
    if (shape.n_numa > VM_NUMA_MAX || (shape.n_numa && cpus != 2))
        abort();
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    AUTO(config_release) struct config a, b;
    AUTO(sbuf_release) struct sbuf one = { 0 }, two = { 0 };
    struct err err = ERR_INIT;

    fuzz_toml(in);
    fuzz_shape(in);
    config_init(&a);
    config_init(&b);
    if (config_parse(&a, "in", (const char *)in->data, in->size, NULL, &err) < 0) {
        if (!str_starts(err.msg, "in:") || err.code == ERR_NONE)
            abort();
        return;
    }
    if (a.memory_mib < CONFIG_MEMORY_MIB_MIN || a.cpus < 1 || a.cpus > CONFIG_CPUS_MAX ||
        a.run_root[0] != '/' || a.image_dir[0] != '/' || !a.qemu[0])
        abort();
    config_print(&a, NULL, true, &one);
    if (config_parse(&b, "printed", one.data, one.len, NULL, &err) < 0)
        abort();
    config_print(&b, NULL, true, &two);
    if (!str_eq(one.data, two.data))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
