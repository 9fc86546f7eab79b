/* cmd_overhead.c - the overhead of a pod, which the scheduler and the pod's cgroup must allow for:
 * `lcow overhead` measures it on running sandboxes, and `lcow config runtimeclass` prints the
 * object for Kubernetes. It is the memory of the guest's kernel and agent, which is part of the
 * VM's memory, and of QEMU itself. */
#include "base/fd.h"
#include "tool/cmd_config.h"
#include <stdio.h>
#include <string.h>

#define SMAPS_MAX_BYTES (16u << 20)
#define GUEST_MEMORY_MIN (UINT64_C(64) << 20) /* smaller mappings are QEMU's own */
/* If no VM runs, from what was measured: 42 MiB with KVM, 84 in emulation (translated code). */
#define VMM_MIB_KVM 48
#define VMM_MIB_EMULATED 96
#define KIB_PER_MIB 1024
#define MIB (UINT64_C(1) << 20)
#define OVERHEAD "overhead:\n  podFixed:\n    memory: \"%uMi\"\n    cpu: \"50m\"\n"

static uint32_t rounded(uint32_t mib)
{
    return (mib + 7) / 8 * 8;
}

uint64_t runtimeclass_own_kib(const char *smaps)
{
    uint64_t sum = 0;
    bool guests = false;

    for (const char *line = smaps; line && *line; line = strchr(line, '\n')) {
        unsigned long begin, end, kib;
        char perms[5];

        line += *line == '\n';
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, perms) == 3)
            /* Translated code of emulation is also large and writable, but executable. */
            guests = end - begin >= GUEST_MEMORY_MIN && perms[1] == 'w' && perms[2] != 'x';
        else if (sscanf(line, "Pss: %lu kB", &kib) == 1 && !guests)
            sum += kib;
    }
    return sum;
}

/* Measures the VMs of all shims that answer and that this user may inspect. */
static int measure(struct ctx *ctx, struct tool *t, struct runtimeclass *r, struct err *err)
{
    if (tool_list(ctx, t, err) < 0)
        return -1;
    for (size_t i = 0; i < t->shims.n; i++) {
        const json_t *vm = json_object_get(t->shims.v[i].doc, "vm");
        AUTO_FREE char *text = file_text(SMAPS_MAX_BYTES, "/proc/%llu/smaps",
                                         (unsigned long long)doc_number(vm, "pid"));

        if (!text || !*text)
            continue;

        uint64_t mib = (runtimeclass_own_kib(text) + KIB_PER_MIB - 1) / KIB_PER_MIB;

        r->n_measured++;
        if (mib > r->vmm_mib)
            r->vmm_mib = (uint32_t)mib;
    }
    return 0;
}

void runtimeclass_print(const struct runtimeclass *r, struct sbuf *out)
{
    uint32_t vmm = r->n_measured ? r->vmm_mib : r->emulated ? VMM_MIB_EMULATED : VMM_MIB_KVM;

    sbuf_addf(out,
              "# lcow config runtimeclass | kubectl apply -f -\n"
              "# Overhead of a pod: %u MiB for the guest's kernel and agent (overhead_mib),\n"
              "# %u MiB for QEMU (%s).\n",
              r->guest_mib, vmm,
              r->n_measured ? "the maximum of the VMs that run here"
              : r->emulated
                  ? "of emulation, not measured: no VM runs here that this user may inspect"
                  : "with KVM, not measured: no VM runs here that this user may inspect");
    sbuf_addf(out,
              "apiVersion: node.k8s.io/v1\n"
              "kind: RuntimeClass\n"
              "metadata:\n"
              "  name: lcow\n"
              "handler: lcow\n" OVERHEAD,
              rounded(r->guest_mib + vmm));
}

static int runtimeclass(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE char *why = NULL;
    struct runtimeclass r = {
        .guest_mib = t->config.overhead_mib,
        .emulated = t->backend->accel(t->config.run_root, &why) < TOOL_ACCEL_UNTRIED,
    };

    if (measure(ctx, t, &r, err) < 0)
        return -1;
    runtimeclass_print(&r, &t->out);
    return TOOL_OK;
}

static int overhead(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct runtimeclass r = { .guest_mib = t->config.overhead_mib };
    uint64_t shim = 0, anchors = 0;
    unsigned n = 0;

    if (tool_measure(ctx, t, err) < 0 || measure(ctx, t, &r, err) < 0)
        return -1;
    for (size_t i = 0; i < t->shims.n; i++) {
        const struct cost *c = &t->shims.v[i].cost;

        if (c->vmm_pss == 0)
            continue;
        n++;
        shim = c->shim_pss > shim ? c->shim_pss : shim;
        anchors = c->anchors_pss > anchors ? c->anchors_pss : anchors;
    }
    if (n == 0 || r.n_measured == 0)
        return err_set(
            err, ERR_NOT_FOUND,
            "no running sandbox can be measured; start a typical pod first, and run lcow as root");

    uint32_t ours = (uint32_t)((shim + anchors + MIB - 1) / MIB);
    uint32_t sum = rounded(r.guest_mib + r.vmm_mib + ours);

    if (t->opts.json)
        t->json = json_pack("{si si si si si}", "sandboxes", n, "guest_mib", r.guest_mib, "vmm_mib",
                            r.vmm_mib, "shim_and_anchors_mib", ours, "pod_fixed_memory_mib", sum);
    else
        sbuf_addf(&t->out,
                  "# measured on %u sandbox%s: QEMU %u MiB, shim and anchors %u MiB,\n"
                  "# guest kernel and agent %u MiB (overhead_mib)\n" OVERHEAD,
                  n, n == 1 ? "" : "es", r.vmm_mib, ours, r.guest_mib, sum);
    return TOOL_OK;
}

const struct args_cmd overhead_command = {
    .name = "overhead",
    .summary = "Measure the overhead of a pod.",
    .text =
        "The overhead is the memory of QEMU itself, the shim and the anchors, plus overhead_mib "
        "for the guest's kernel and agent. The measured part is the maximum of all sandboxes "
        "on this host. Start a typical pod first.",
    .exits = "1 if no sandbox runs",
    .opts = TOOL_JSON_OPTS("print one JSON object on stdout instead"),
    .examples = ARGS_EXAMPLES({ "lcow overhead", "measure, after a typical pod was started" }),
    .run = overhead,
};

const struct args_cmd runtimeclass_command = {
    .name = "config runtimeclass",
    .summary = "Print the RuntimeClass for Kubernetes, with the overhead of a pod on this host.",
    .synopsis = "",
    .text =
        "The overhead is overhead_mib, for the guest's kernel and agent, plus QEMU's own memory. "
        "The latter is the maximum of the running VMs (as root). If none runs, it is an estimate: "
        "that of KVM, or on a host without KVM that of emulation.\n"
        "\n"
        "Exit code: 0; 2 if the configuration or the command line is invalid.",
    .examples = ARGS_EXAMPLES(
        { "lcow config runtimeclass | kubectl apply -f -", "create the RuntimeClass" }),
    .run = runtimeclass,
};
