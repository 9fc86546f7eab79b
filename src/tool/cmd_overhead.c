/* cmd_overhead.c - `lcow overhead`: what a pod costs beyond its containers, measured on those that
 * run, ready to be pasted into a RuntimeClass. */
#include "base/ctx.h"
#include "tool/cmd_config.h"
#include "tool/lib/cost.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define ROUND_MIB 8u

struct overhead_opts {
    bool json;
};
static const struct args_opt opts_table[] = {
    { "json", 0, ARGS_FLAG, NULL, offsetof(struct overhead_opts, json),
      "print one JSON object on stdout instead" },
};
static const struct args_example examples[] = {
    { "lcow overhead", "after a typical pod was started" },
};
static const struct args_cmd cmd = {
    .name = "overhead",
    .summary = "Measure what a pod costs beyond its containers.",
    .synopsis = "[options]",
    .text = "The sum of the most that any sandbox here needs for QEMU itself, its shim and its "
            "anchors, and of overhead_mib of the configuration, which is the part of the VM's "
            "memory that kernel and agent have. Start a typical pod first.\n"
            "\n"
            "Exit code: 0; 1 if no sandbox runs; 2 if this command line is wrong.",
    .opts = opts_table,
    .n_opts = ARRAY_LEN(opts_table),
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

struct most {
    uint64_t shim, anchors;
    size_t sandboxes;
};

static int measure(struct ctx *ctx, struct tool *t, struct most *ret, struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };

    *ret = (struct most){ 0 };
    if (shims_list(t->config.run_root, &shims, err) < 0)
        return -1;
    shims_ask(ctx, &shims);
    for (size_t i = 0; i < shims.n; i++) {
        struct cost c;

        cost_measure(ctx, &shims.v[i], &c);
        if (c.vmm_pss == 0)
            continue;
        ret->sandboxes++;
        ret->shim = c.shim_pss > ret->shim ? c.shim_pss : ret->shim;
        ret->anchors = c.anchors_pss > ret->anchors ? c.anchors_pss : ret->anchors;
    }
    return 0;
}

static uint32_t whole_mib(uint64_t bytes)
{
    return (uint32_t)((bytes + MIB - 1) / MIB);
}

static int overhead_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(jsw_release) struct jsw w;
    struct overhead_opts o = { 0 };
    struct runtimeclass r = { 0 };
    struct most most;
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    jsw_init(&w, JSW_PLAIN);
    if (!tool_begin(t, &cmd, &o, argv, &rest, &code))
        return code;
    r.guest_mib = t->config.overhead_mib;
    runtimeclass_measure(&t->config, &r);
    if (measure(ctx, t, &most, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    if (most.sandboxes == 0 || r.n_measured == 0)
        return tool_fail(TOOL_FAILED, "no sandbox runs that could be measured; start a typical pod "
                                      "first (as root)");

    uint32_t ours = whole_mib(most.shim + most.anchors), sum = r.guest_mib + r.vmm_mib + ours;

    sum = (sum + ROUND_MIB - 1) / ROUND_MIB * ROUND_MIB;
    if (o.json) {
        jsw_obj(&w, NULL);
        jsw_u64(&w, "sandboxes", most.sandboxes);
        jsw_u64(&w, "guest_mib", r.guest_mib);
        jsw_u64(&w, "vmm_mib", r.vmm_mib);
        jsw_u64(&w, "shim_and_anchors_mib", ours);
        jsw_u64(&w, "pod_fixed_memory_mib", sum);
        jsw_end_obj(&w);
        sbuf_addc(&w.out, '\n');
    } else {
        sbuf_addf(&w.out,
                  "# measured on %zu sandbox%s: QEMU %u MiB, shim and anchors %u MiB,\n"
                  "# guest kernel and agent %u MiB (overhead_mib)\n"
                  "overhead:\n  podFixed:\n    memory: \"%uMi\"\n    cpu: \"50m\"\n",
                  most.sandboxes, most.sandboxes == 1 ? "" : "es", r.vmm_mib, ours, r.guest_mib,
                  sum);
    }
    tool_print(STDOUT_FILENO, w.out.data);
    return TOOL_OK;
}

const struct tool_command overhead_command = { .cmd = &cmd, .run = overhead_run };
