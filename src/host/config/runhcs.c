#include "host/config/runhcs.h"
#include "base/str.h"

#define SNAPSHOTTER "the Windows snapshotter reads it, not the runtime"

static const struct runhcs_option options[] = {
    { "debug", RUNHCS_WORKS, "true: `log_level` debug, unless that is given" },
    { "debug_type", RUNHCS_MEANINGLESS, "the shim writes its log to where containerd expects it" },
    { "registry_root", RUNHCS_MEANINGLESS, "Linux has no Windows registry" },
    { "sandbox_image", RUNHCS_MEANINGLESS,
      "the CRI plugin's configuration names the sandbox image" },
    { "sandbox_platform", RUNHCS_WORKS, "linux/amd64 or empty; other values are refused" },
    { "sandbox_isolation", RUNHCS_MEANINGLESS, "every container runs in a VM" },
    { "boot_files_root_path", RUNHCS_WORKS, "as the key `image_dir`" },
    { "vm_processor_count", RUNHCS_WORKS, "as the key `cpus`" },
    { "vm_memory_size_in_mb", RUNHCS_WORKS, "as the key `memory_mib`" },
    { "GPUVHDPath", RUNHCS_MEANINGLESS, "hcsshim ignores it as well" },
    { "scale_cpu_limits_to_sandbox", RUNHCS_MEANINGLESS, "for Windows containers only" },
    { "default_container_scratch_size_in_gb", RUNHCS_MEANINGLESS, SNAPSHOTTER },
    { "default_vm_scratch_size_in_gb", RUNHCS_MEANINGLESS, SNAPSHOTTER "; see `scratch_mib`" },
    { "share_scratch", RUNHCS_MEANINGLESS, SNAPSHOTTER },
    { "NCProxyAddr", RUNHCS_REFUSED, "the network proxy of Windows (ncproxy)" },
    { "log_level", RUNHCS_WORKS,
      "as the key of that name, or a level of logrus; the more verbose of the two applies" },
    { "io_retry_timeout_in_sec", RUNHCS_MEANINGLESS,
      "for named pipes that break when containerd exits; FIFOs stay open" },
    { "default_container_annotations", RUNHCS_WORKS,
      "annotations for containers that lack them; `allow_annotations` need not name them" },
    { "no_inherit_host_timezone", RUNHCS_MEANINGLESS, "for Windows containers only" },
    { "scrub_logs", RUNHCS_WORKS, "as the key of that name" },
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
    static const char *const verdicts[] = { "works", "refused", "ignored" };

    sbuf_adds(out, "\n## hcsshim's runtime options\n\n"
                   "Fields of `containerd.runhcs.v1.Options`, which containerd passes to the "
                   "shim's start, to Create and to\nCreateSandbox. If the options of a Create or "
                   "CreateSandbox differ from the shim's, the shim applies\nthem while it has no "
                   "VM. Once it has a VM, it refuses them.\n\n"
                   "| option | verdict | what it does, or why it is refused or ignored |\n"
                   "|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        sbuf_addf(out, "| `%s` | %s | %s |\n", options[i].name, verdicts[options[i].verdict],
                  options[i].doc);
}
