/* cmd_cpugroup.c - `lcow cpugroup`: groups of host CPUs, and which VMs are in them. */
#include "api/lcow.pb-c.h"
#include "base/clock.h"
#include "host/config/cpugroup.h"
#include "host/rpc/rpc_client.h"
#include "tool/tool.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MOVE_LIMIT (10 * NS_PER_S)

static const char *group_of(const struct shim *s)
{
    const char *name = s->doc ? json_string_value(js_get(js_get(s->doc, "vm"), "cpu_group")) : NULL;

    return name ? name : "";
}

static int ls(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(strv_release) struct strv names = { 0 };

    if (cpugroup_list(t->config.cpu_group_dir, &names, err) < 0 || tool_list(ctx, t, err) < 0)
        return -1;
    t->json = t->opts.json ? json_array() : NULL;
    for (size_t i = 0; i < names.n; i++) {
        AUTO_FREE char *cpus = NULL;
        json_t *vms = json_array();

        if (cpugroup_read(t->config.cpu_group_dir, names.v[i], &cpus, err) < 0)
            return -1;
        if (!t->json)
            sbuf_addf(&t->out, "%s  %s\n", names.v[i], cpus);
        for (size_t k = 0; k < t->shims.n; k++) {
            const struct shim *s = &t->shims.v[k];
            AUTO_FREE char *id = str_format("%s/%s", s->ns, s->id);

            if (!str_eq(group_of(s), names.v[i]))
                continue;
            json_array_append_new(vms, doc_string(id));
            if (!t->json)
                sbuf_addf(&t->out, "  %s\n", id);
        }
        json_array_append_new(t->json, json_pack("{so so so}", "name", doc_string(names.v[i]),
                                                 "cpus", doc_string(cpus), "vms", vms));
    }
    return TOOL_OK;
}

static int create(struct ctx *ctx, struct tool *t, struct err *err)
{
    if (t->rest.n != 2)
        return tool_fail(TOOL_USAGE, "cpugroup create needs NAME and CPUS (0-3,8)");
    return cpugroup_write(t->config.cpu_group_dir, t->rest.argv[0], t->rest.argv[1], err);
}

static int rm(struct ctx *ctx, struct tool *t, struct err *err)
{
    if (t->rest.n != 1)
        return tool_fail(TOOL_USAGE, "cpugroup rm needs NAME");
    AUTO_FREE char *path = str_format("%s/%s", t->config.cpu_group_dir, t->rest.argv[0]);

    if (cpugroup_check_name(t->rest.argv[0], err) < 0)
        return -1;
    return unlink(path) < 0 ? err_sys(err, errno, "remove %s", path) : TOOL_OK;
}

static int move(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(pb_free) Lcow__SetCpuGroupResponse *resp = NULL;
    Lcow__SetCpuGroupRequest req = LCOW__SET_CPU_GROUP_REQUEST__INIT;

    if (t->rest.n != 2)
        return tool_fail(TOOL_USAGE, "cpugroup move needs ID and NAME");
    req.name = t->rest.argv[1];
    if (tool_connect(ctx, t, t->rest.argv[0], err) < 0)
        return -1;
    return shim_call(ctx, t->client, MOVE_LIMIT, &lcow__shim__descriptor, "SetCpuGroup", &req,
                     (void **)&resp, err);
}

#define EXITS "1 if it failed"

static const struct args_cmd ls_command = {
    .name = "cpugroup ls",
    .summary = "List the groups with their CPUs and the VMs in them.",
    .exits = EXITS,
    .opts = TOOL_JSON_OPTS("print one JSON value on stdout instead"),
    .run = ls,
};
static const struct args_cmd create_command = {
    .name = "cpugroup create",
    .summary = "Create a group, or change its CPUs.",
    .synopsis = "NAME CPUS",
    .text = "VMs in the group keep their CPUs until they are moved again.",
    .exits = EXITS,
    .takes_words = true,
    .run = create,
};
static const struct args_cmd move_command = {
    .name = "cpugroup move",
    .summary = "Move a running VM to a group.",
    .synopsis = "ID NAME",
    .exits = EXITS,
    .takes_words = true,
    .run = move,
};
static const struct args_cmd rm_command = {
    .name = "cpugroup rm",
    .summary = "Remove a group; VMs in it keep its CPUs.",
    .synopsis = "NAME",
    .exits = EXITS,
    .takes_words = true,
    .run = rm,
};

const struct args_cmd cpugroup_command = {
    .name = "cpugroup",
    .summary = "Manage groups of host CPUs that VMs run on.",
    .synopsis = "ls | create NAME CPUS | move ID NAME | rm NAME [options]",
    .text = "A pod selects a group by the annotation io.microsoft.virtualmachine.cpugroup.id, if "
            "allow_annotations allows it. lcow sets the cpuset of QEMU's cgroup to the group.",
    .examples = ARGS_EXAMPLES({ "lcow cpugroup create batch 8-15", "create a group of eight CPUs" },
                              { "lcow cpugroup move 4f2a9 batch", "move a VM to it" }),
    .subs = (const struct args_cmd *const[]){ &ls_command, &create_command, &move_command,
                                              &rm_command, NULL },
};
