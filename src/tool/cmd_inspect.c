/* cmd_inspect.c - commands that make one call to one shim: `lcow inspect`, `console`, `stacks`,
 * `tasks`, and `share`, which shares a path of the host with the VM. */
#include "api/lcow.pb-c.h"
#include "api/shimdiag.pb-c.h"
#include "base/clock.h"
#include "host/rpc/rpc_client.h"
#include "tool/tool.h"
#include <stdlib.h>
#include <string.h>

#define CONSOLE_LIMIT (5 * NS_PER_S)
#define STACKS_LIMIT (10 * NS_PER_S)
#define TASKS_LIMIT (5 * NS_PER_S)
#define SHARE_LIMIT (30 * NS_PER_S)

#define DIAG &diag__shim_diag__descriptor

/* The shim that the first word names. */
static int ask(struct ctx *ctx, struct tool *t, uint64_t limit_ns,
               const ProtobufCServiceDescriptor *service, const char *method, const void *req,
               void *ret_resp, struct err *err)
{
    if (tool_connect(ctx, t, t->rest.argv[0], err) < 0)
        return -1;
    return shim_call(ctx, t->client, limit_ns, service, method, req, ret_resp, err);
}

static int inspect(struct ctx *ctx, struct tool *t, struct err *err)
{
    if (tool_find(ctx, t, t->rest.argv[0], err) < 0)
        return -1;
    if (!t->shim->doc)
        return err_set(err, t->shim->why.code, "%s/%s: %s", t->shim->ns, t->shim->id,
                       t->shim->why.msg);
    shims_measure(ctx, &t->shims, t->shim);

    AUTO_FREE char *text = js_text(t->shim->doc, 2);

    sbuf_addf(&t->out, "%s\n", text);
    return TOOL_OK;
}

static int console(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(pb_free) Lcow__ConsoleResponse *resp = NULL;
    Lcow__ConsoleRequest req = LCOW__CONSOLE_REQUEST__INIT;

    if (ask(ctx, t, CONSOLE_LIMIT, &lcow__shim__descriptor, "Console", &req, &resp, err) < 0)
        return -1;
    sbuf_adds(&t->out, resp->text);
    return TOOL_OK;
}

static int stacks(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(pb_free) Diag__StacksResponse *resp = NULL;
    Diag__StacksRequest req = DIAG__STACKS_REQUEST__INIT;

    if (ask(ctx, t, STACKS_LIMIT, DIAG, "DiagStacks", &req, &resp, err) < 0)
        return -1;
    if (t->opts.json) {
        t->json = json_pack("{so so}", "shim", doc_string(resp->stacks), "guest",
                            doc_string(resp->guest_stacks));
        return TOOL_OK;
    }
    AUTO_FREE char *guest = str_dup(resp->guest_stacks); /* the guest's text, line by line */

    sbuf_addf(&t->out, "shim\n%s\nguest\n", resp->stacks);
    for (char *rest = guest, *line; (line = strsep(&rest, "\n"));) {
        AUTO_FREE char *safe = str_printable(line);

        sbuf_addf(&t->out, "%s\n", safe);
    }
    return TOOL_OK;
}

static int tasks(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(pb_free) Diag__TasksResponse *resp = NULL;
    Diag__TasksRequest req = DIAG__TASKS_REQUEST__INIT;

    req.execs = true;
    if (ask(ctx, t, TASKS_LIMIT, DIAG, "DiagTasks", &req, &resp, err) < 0)
        return -1;
    t->json = t->opts.json ? json_array() : NULL;
    for (size_t i = 0; i < resp->n_tasks; i++) {
        const Diag__Task *task = resp->tasks[i];
        json_t *execs = json_array();

        if (!t->json)
            sbuf_addf(&t->out, "%s\n", task->id);
        for (size_t k = 0; k < task->n_execs; k++) {
            const Diag__Exec *e = task->execs[k];

            if (!t->json)
                sbuf_addf(&t->out, "  +%s  %s\n", e->id, e->state);
            json_array_append_new(execs, json_pack("{so so}", "id", doc_string(e->id), "state",
                                                   doc_string(e->state)));
        }
        json_array_append_new(t->json,
                              json_pack("{so so}", "id", doc_string(task->id), "execs", execs));
    }
    return TOOL_OK;
}

static int share(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(pb_free) Diag__ShareResponse *resp = NULL;
    Diag__ShareRequest req = DIAG__SHARE_REQUEST__INIT;
    char **words = t->rest.argv;

    if (t->rest.n < 2 || t->rest.n > 3)
        return tool_fail(TOOL_USAGE, "share needs ID and HOST_PATH; VM_PATH is optional");

    AUTO_FREE char *path =
        realpath(words[1], NULL); /* absolute, since the shim has another working directory */

    if (!path)
        return err_set(err, ERR_NOT_FOUND, "%s does not exist", words[1]);
    req.host_path = path;
    req.uvm_path = t->rest.n == 3 ? words[2] : "";
    req.read_only = !t->opts.writable;
    if (ask(ctx, t, SHARE_LIMIT, DIAG, "DiagShare", &req, &resp, err) < 0)
        return -1;
    sbuf_addf(&t->out, "%s\n", resp->uvm_path);
    return TOOL_OK;
}

const struct args_cmd inspect_command = {
    .name = "inspect",
    .summary = "Print the state of a shim as JSON.",
    .text = "ID is the beginning of a sandbox's or container's id, optionally after NAMESPACE/. "
            "The document contains the VM with the stages of its boot, its disks, shares and PCI "
            "devices with their users, containers and execs.",
    .exits = "1 if the shim does not exist or does not answer",
    .takes_id = true,
    .examples = ARGS_EXAMPLES(
        { "lcow inspect 4f2a9", "print the state of this sandbox's or container's shim" },
        { "lcow inspect k8s.io/4f2a9", "look in this containerd namespace only" }),
    .run = inspect,
};

#define NO_ANSWER "1 if the shim does not exist or does not answer"

const struct args_cmd console_command = {
    .name = "console",
    .summary = "Print the last lines of a VM's console.",
    .text = "The shim keeps these lines, so this works even if the VM hangs. The console has no "
            "input; for a shell in the VM use: lcow exec --vm -t ID -- sh",
    .exits = NO_ANSWER,
    .takes_id = true,
    .examples = ARGS_EXAMPLES(
        { "lcow console 4f2a9", "print the last output of firmware, kernel and agent" }),
    .run = console,
};

const struct args_cmd stacks_command = {
    .name = "stacks",
    .summary = "Print what every fiber of a shim and its guest waits for.",
    .text = "If the guest does not answer within 5 s, only the shim's part is printed.",
    .exits = NO_ANSWER,
    .opts = TOOL_JSON_OPTS("print one JSON object on stdout instead"),
    .takes_id = true,
    .examples =
        ARGS_EXAMPLES({ "lcow stacks 4f2a9", "print what this shim and its guest wait for" }),
    .run = stacks,
};

const struct args_cmd tasks_command = {
    .name = "tasks",
    .summary = "Print the tasks of one shim, with their execs.",
    .text = "Prints the answer of ShimDiag's DiagTasks, like hcsshim's shimdiag. `lcow ps -e` "
            "prints more.",
    .exits = NO_ANSWER,
    .opts = TOOL_JSON_OPTS("print one JSON array on stdout instead"),
    .takes_id = true,
    .examples = ARGS_EXAMPLES({ "lcow tasks 4f2a9", "print this shim's tasks and execs" }),
    .run = tasks,
};

const struct args_cmd share_command = {
    .name = "share",
    .summary = "Share a directory or file of the host with a VM.",
    .synopsis = "[options] ID HOST_PATH [VM_PATH]",
    .text = "The share is visible in the VM, not in its containers, until the VM stops. Prints "
            "its path in the VM.",
    .exits = "1 if it failed",
    .opts =
        ARGS_OPTIONS({ "writable", 'w', ARGS_FLAG, NULL, OPT(writable), "let the VM write to it" }),
    .takes_words = true,
    .examples = ARGS_EXAMPLES(
        { "lcow share 4f2a9 /opt/tools /mnt/tools", "share tools of the host" },
        { "lcow share -w 4f2a9 /tmp/dumps", "share it at a path that lcow chooses and prints" }),
    .run = share,
};
