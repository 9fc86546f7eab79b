/* cmd_overhead.c - `lcow overhead`: what a pod costs beyond its containers, measured on those that
 * run, ready to be pasted into a RuntimeClass. */
#include "base/ctx.h"
#include "tool/cmd_config.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"

#define MIB (UINT64_C(1) << 20)
#define ROUND_MIB 8u

static uint32_t whole_mib(uint64_t bytes)
{
    return (uint32_t)((bytes + MIB - 1) / MIB);
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    struct runtimeclass r = { .guest_mib = t->config.overhead_mib };
    const struct tool_json *o = t->opts;
    uint64_t shim = 0, anchors = 0;
    size_t n = 0;

    runtimeclass_measure(&t->config, &r);
    if (shims_list(ctx, t->config.run_root, &shims, err) < 0)
        return -1;
    cost_measure(ctx, &shims);
    for (size_t i = 0; i < shims.n; i++) {
        const struct cost *c = &shims.v[i].cost;

        if (c->vmm_pss == 0)
            continue;
        n++;
        shim = c->shim_pss > shim ? c->shim_pss : shim;
        anchors = c->anchors_pss > anchors ? c->anchors_pss : anchors;
    }
    if (n == 0 || r.n_measured == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "no sandbox runs that could be measured; start a typical pod first (as "
                       "root)");

    uint32_t ours = whole_mib(shim + anchors), sum = r.guest_mib + r.vmm_mib + ours;

    sum = (sum + ROUND_MIB - 1) / ROUND_MIB * ROUND_MIB;
    if (!o->json) {
        sbuf_addf(&t->out,
                  "# measured on %zu sandbox%s: QEMU %u MiB, shim and anchors %u MiB,\n"
                  "# guest kernel and agent %u MiB (overhead_mib)\n"
                  "overhead:\n  podFixed:\n    memory: \"%uMi\"\n    cpu: \"50m\"\n",
                  n, n == 1 ? "" : "es", r.vmm_mib, ours, r.guest_mib, sum);
        return TOOL_OK;
    }
    jsw_obj(&t->json, NULL);
    jsw_u64(&t->json, "sandboxes", n);
    jsw_u64(&t->json, "guest_mib", r.guest_mib);
    jsw_u64(&t->json, "vmm_mib", r.vmm_mib);
    jsw_u64(&t->json, "shim_and_anchors_mib", ours);
    jsw_u64(&t->json, "pod_fixed_memory_mib", sum);
    jsw_end_obj(&t->json);
    return TOOL_OK;
}

const struct args_cmd overhead_command = {
    .name = "overhead",
    .summary = "Measure what a pod costs beyond its containers.",
    .synopsis = "[options]",
    .text = "The sum of the most that any sandbox here needs for QEMU itself, its shim and its "
            "anchors, and of overhead_mib of the configuration, which is the part of the VM's "
            "memory that kernel and agent have. Start a typical pod first.\n"
            "\n"
            "Exit code: 0; 1 if no sandbox runs; 2 if this command line is wrong.",
    .opts = TOOL_JSON_OPTS("print one JSON object on stdout instead"),
    .opts_size = sizeof(struct tool_json),
    .examples = ARGS_EXAMPLES({ "lcow overhead", "after a typical pod was started" }),
    .run = run,
};
