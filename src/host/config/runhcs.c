#include "host/config/runhcs.h"
#include "base/str.h"

#define SNAPSHOTTER "Windows' snapshotter reads it, not the runtime"

static const struct runhcs_option options[] = {
    { "debug", RUNHCS_WORKS, "true: `log_level` debug, unless that is given" },
    { "debug_type", RUNHCS_MEANINGLESS, "the log goes where containerd wants it" },
    { "registry_root", RUNHCS_MEANINGLESS, "there is no registry" },
    { "sandbox_image", RUNHCS_MEANINGLESS, "the CRI's" },
    { "sandbox_platform", RUNHCS_WORKS, "linux/amd64, or nothing; others are refused" },
    { "sandbox_isolation", RUNHCS_MEANINGLESS, "every container is in a VM" },
    { "boot_files_root_path", RUNHCS_WORKS, "as the key `image_dir`" },
    { "vm_processor_count", RUNHCS_WORKS, "as the key `cpus`" },
    { "vm_memory_size_in_mb", RUNHCS_WORKS, "as the key `memory_mib`" },
    { "GPUVHDPath", RUNHCS_MEANINGLESS, "hcsshim does nothing with it, too" },
    { "scale_cpu_limits_to_sandbox", RUNHCS_MEANINGLESS, "for Windows containers only" },
    { "default_container_scratch_size_in_gb", RUNHCS_MEANINGLESS, SNAPSHOTTER },
    { "default_vm_scratch_size_in_gb", RUNHCS_MEANINGLESS, SNAPSHOTTER "; see `scratch_mib`" },
    { "share_scratch", RUNHCS_MEANINGLESS, SNAPSHOTTER },
    { "NCProxyAddr", RUNHCS_REFUSED, "a network proxy of Windows" },
    { "log_level", RUNHCS_WORKS,
      "as the key of that name, or logrus' names; the more talkative wins" },
    { "io_retry_timeout_in_sec", RUNHCS_MEANINGLESS,
      "for named pipes that break with containerd; FIFOs stay open" },
    { "default_container_annotations", RUNHCS_WORKS,
      "annotations for containers that lack them; `allow_annotations` need not name them" },
    { "no_inherit_host_timezone", RUNHCS_MEANINGLESS, "for Windows containers only" },
    { "scrub_logs", RUNHCS_MEANINGLESS, "environment and command lines are never logged" },
};

const struct runhcs_option *runhcs_option(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        if (str_eq(options[i].name, name))
            return &options[i];
    return NULL;
}

void runhcs_print_markdown(struct sbuf *out)
{
    static const char *const verdicts[] = { "works", "refused", "meaningless here" };

    sbuf_adds(out, "\n## hcsshim's runtime options\n\n"
                   "Fields of `containerd.runhcs.v1.Options`, to the shim's start, Create and "
                   "CreateSandbox. Those of a Create\nor CreateSandbox that differ from the "
                   "shim's are applied while it has no VM, and refused once it has one.\n\n"
                   "| option | verdict | what it does, or why not |\n|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        sbuf_addf(out, "| `%s` | %s | %s |\n", options[i].name, verdicts[options[i].verdict],
                  options[i].doc);
}
