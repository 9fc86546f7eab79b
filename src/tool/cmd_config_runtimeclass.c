/* `lcow config runtimeclass`: what Kubernetes has to be told. The overhead is what the scheduler
 * and the pod's cgroup must allow beyond the containers' own limits: the guest's kernel and agent,
 * which the VM's memory holds, and QEMU's own memory, measured on the VMs that run here. */
#include "base/fd.h"
#include "base/str.h"
#include "tool/cmd_config.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMAPS_MAX_BYTES (16u << 20)
#define GUEST_MEMORY_MIN (UINT64_C(64) << 20) /* smaller mappings are QEMU's own */
#define VMM_MIB_UNKNOWN 96 /* where no VM runs; 84 MiB were seen under emulation */
#define ROUND_MIB 8
#define KIB_PER_MIB 1024

uint64_t runtimeclass_own_kib(const char *smaps)
{
    uint64_t sum = 0;
    bool guests = false;

    for (const char *line = smaps; line && *line; line = strchr(line, '\n')) {
        unsigned long begin, end, kib;
        char perms[5];

        line += *line == '\n';
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, perms) == 3)
            /* Emulation's translated code is large and writable too, but it is executed. */
            guests = end - begin >= GUEST_MEMORY_MIN && perms[1] == 'w' && perms[2] != 'x';
        else if (sscanf(line, "Pss: %lu kB", &kib) == 1 && !guests)
            sum += kib;
    }
    return sum;
}

static bool is_vm(const char *pid, const struct config *c)
{
    AUTO_FREE char *dir = str_format("/proc/%s", pid), *path = str_format("%s/comm", dir);
    AUTO_FREE char *name = NULL;
    struct stat st;
    size_t len;

    return stat(dir, &st) == 0 && st.st_uid >= c->vm_uid_base &&
           st.st_uid - c->vm_uid_base < c->vm_uid_count &&
           file_read_all(path, 64, &name, &len) == 0 && str_starts(name, "qemu-system");
}

void runtimeclass_measure(const struct config *c, struct runtimeclass *r)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;

    while (proc && (entry = readdir(proc))) {
        AUTO_FREE char *path = str_format("/proc/%s/smaps", entry->d_name), *text = NULL;
        size_t len;

        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !is_vm(entry->d_name, c) ||
            file_read_all(path, SMAPS_MAX_BYTES, &text, &len) < 0 || len == 0)
            continue;

        uint64_t mib = (runtimeclass_own_kib(text) + KIB_PER_MIB - 1) / KIB_PER_MIB;

        r->n_measured++;
        if (mib > r->vmm_mib)
            r->vmm_mib = (uint32_t)mib;
    }
    if (proc)
        closedir(proc);
}

void runtimeclass_print(const struct runtimeclass *r, struct sbuf *out)
{
    uint32_t vmm = r->n_measured ? r->vmm_mib : VMM_MIB_UNKNOWN, sum = r->guest_mib + vmm;

    sum = (sum + ROUND_MIB - 1) / ROUND_MIB * ROUND_MIB;
    sbuf_addf(out,
              "# lcow config runtimeclass | kubectl apply -f -\n"
              "# Overhead of a pod: %u MiB for the guest's kernel and agent (overhead_mib),\n"
              "# %u MiB for QEMU (%s).\n",
              r->guest_mib, vmm,
              r->n_measured ? "the most of the VMs that run here"
                            : "not measured: no VM runs here that we may look at");
    sbuf_addf(out,
              "apiVersion: node.k8s.io/v1\n"
              "kind: RuntimeClass\n"
              "metadata:\n"
              "  name: lcow\n"
              "handler: lcow\n"
              "overhead:\n"
              "  podFixed:\n"
              "    memory: \"%uMi\"\n"
              "    cpu: \"50m\"\n",
              sum);
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct runtimeclass r = { .guest_mib = t->config.overhead_mib };

    runtimeclass_measure(&t->config, &r);
    runtimeclass_print(&r, &t->out);
    return TOOL_OK;
}

const struct args_cmd config_runtimeclass_command = {
    .name = "config runtimeclass",
    .summary = "Print the RuntimeClass for Kubernetes, with the overhead of a pod on this host.",
    .synopsis = "",
    .text = "The overhead is overhead_mib of the configuration, for the guest's kernel and agent, "
            "and QEMU's own memory: the most of any VM that runs now (root sees them), or a "
            "cautious figure if none does.\n"
            "\n"
            "Exit code: 0; 2 if the configuration or this command line is wrong.",
    .examples =
        ARGS_EXAMPLES({ "lcow config runtimeclass | kubectl apply -f -", "make the RuntimeClass" }),
    .run = run,
};
