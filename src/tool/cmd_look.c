/* cmd_look.c - `lcow stacks`, `tasks`, `console` and `share`: one question each to one shim. */
#include "tool/cmd_look.h"
#include "api/lcow.pb-c.h"
#include "api/shimdiag.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVICE "containerd.runhcs.v1.diag.ShimDiag"
#define OWN_SERVICE "lcow.v1.Shim"
#define LOOK_LIMIT (5 * NS_PER_S)
#define STACKS_LIMIT (10 * NS_PER_S)
#define SHARE_LIMIT (30 * NS_PER_S)

/* ---- stacks */

struct stacks_opts {
    bool json;
};
static const struct args_opt stacks_table[] = {
    { "json", 0, ARGS_FLAG, NULL, offsetof(struct stacks_opts, json),
      "print one JSON object on stdout instead" },
};
static const struct args_example stacks_examples[] = {
    { "lcow stacks 4f2a9", "what does everybody in this shim and its VM wait for?" },
};
static const struct args_cmd stacks_cmd = {
    .name = "stacks",
    .summary = "Print what every fiber of a shim and its guest waits for.",
    .synopsis = "[options] ID",
    .text = "A guest that does not answer within five seconds does not keep the shim's own part "
            "back.\n"
            "\n"
            "Exit code: 0; 1 if the shim is not there or does not answer; 2 if this command line "
            "is wrong.",
    .opts = stacks_table,
    .n_opts = ARRAY_LEN(stacks_table),
    .takes_words = true,
    .examples = stacks_examples,
    .n_examples = ARRAY_LEN(stacks_examples),
};

/* The guest's own words, line by line. */
static void put_safely(struct sbuf *out, const char *text)
{
    AUTO_FREE char *copy = str_dup(text);

    for (char *rest = copy, *line; (line = strsep(&rest, "\n"));) {
        AUTO_FREE char *safe = str_printable(line);

        sbuf_addf(out, "%s\n", safe);
    }
}

static void put_stacks(const Diag__StacksResponse *resp, bool json, struct sbuf *out)
{
    AUTO(jsw_release) struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    if (!json) {
        sbuf_addf(out, "shim\n%s\nguest\n", resp->stacks);
        put_safely(out, resp->guest_stacks);
        return;
    }
    jsw_obj(&w, NULL);
    jsw_str(&w, "shim", resp->stacks);
    jsw_str(&w, "guest", resp->guest_stacks);
    jsw_end_obj(&w);
    sbuf_addf(out, "%s\n", w.out.data);
}

int tool_stacks(struct ctx *ctx, struct rpc_client *client, bool json, struct sbuf *out,
                struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, STACKS_LIMIT);
    AUTO(pb_free) Diag__StacksResponse *resp = NULL;
    Diag__StacksRequest req = DIAG__STACKS_REQUEST__INIT;

    if (rpc_client_call(&limited, client, SERVICE, "DiagStacks", &req,
                        &diag__stacks_response__descriptor, (void **)&resp, err) < 0)
        return -1;
    put_stacks(resp, json, out);
    return 0;
}

static int stacks_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct stacks_opts o = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &stacks_cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n != 1)
        return tool_fail(TOOL_USAGE, "stacks needs one ID; see: lcow ps");
    if (shim_of(ctx, t->config.run_root, rest.argv[0], &client, &err) < 0 ||
        tool_stacks(ctx, client, o.json, &out, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

const struct tool_command stacks_command = { .cmd = &stacks_cmd, .run = stacks_run };

/* ---- tasks */

static const struct args_opt tasks_table[] = {
    { "json", 0, ARGS_FLAG, NULL, offsetof(struct stacks_opts, json),
      "print one JSON array on stdout instead" },
};
static const struct args_example tasks_examples[] = {
    { "lcow tasks 4f2a9", "tasks and execs, as the shim knows them" },
};
static const struct args_cmd tasks_cmd = {
    .name = "tasks",
    .summary = "Print the tasks of one shim, with their execs.",
    .synopsis = "[options] ID",
    .text =
        "What ShimDiag's DiagTasks answers, for those who know hcsshim's shimdiag. `lcow ps -e` "
        "shows more.\n"
        "\n"
        "Exit code: 0; 1 if the shim is not there or does not answer; 2 if this command line "
        "is wrong.",
    .opts = tasks_table,
    .n_opts = ARRAY_LEN(tasks_table),
    .takes_words = true,
    .examples = tasks_examples,
    .n_examples = ARRAY_LEN(tasks_examples),
};

static void tasks_as_json(const Diag__TasksResponse *resp, struct jsw *w)
{
    jsw_arr(w, NULL);
    for (size_t i = 0; i < resp->n_tasks; i++) {
        const Diag__Task *task = resp->tasks[i];

        jsw_obj(w, NULL);
        jsw_str(w, "id", task->id);
        jsw_arr(w, "execs");
        for (size_t k = 0; k < task->n_execs; k++) {
            jsw_obj(w, NULL);
            jsw_str(w, "id", task->execs[k]->id);
            jsw_str(w, "state", task->execs[k]->state);
            jsw_end_obj(w);
        }
        jsw_end_arr(w);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
    sbuf_addc(&w->out, '\n');
}

static void print_tasks(const Diag__TasksResponse *resp, bool json)
{
    AUTO(jsw_release) struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    if (json)
        tasks_as_json(resp, &w);
    for (size_t i = 0; !json && i < resp->n_tasks; i++) {
        sbuf_addf(&w.out, "%s\n", resp->tasks[i]->id);
        for (size_t k = 0; k < resp->tasks[i]->n_execs; k++)
            sbuf_addf(&w.out, "  +%s  %s\n", resp->tasks[i]->execs[k]->id,
                      resp->tasks[i]->execs[k]->state);
    }
    if (w.out.len > 0)
        tool_print(STDOUT_FILENO, w.out.data);
}

static int tasks_run(struct ctx *ctx, struct tool *t, char **argv)
{
    struct ctx limited = ctx_with_timeout(ctx, LOOK_LIMIT);
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO(pb_free) Diag__TasksResponse *resp = NULL;
    Diag__TasksRequest req = DIAG__TASKS_REQUEST__INIT;
    struct stacks_opts o = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &tasks_cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n != 1)
        return tool_fail(TOOL_USAGE, "tasks needs one ID; see: lcow ps");
    req.execs = true;
    if (shim_of(&limited, t->config.run_root, rest.argv[0], &client, &err) < 0 ||
        rpc_client_call(&limited, client, SERVICE, "DiagTasks", &req,
                        &diag__tasks_response__descriptor, (void **)&resp, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    print_tasks(resp, o.json);
    return TOOL_OK;
}

const struct tool_command tasks_command = { .cmd = &tasks_cmd, .run = tasks_run };

/* ---- console */

static const struct args_example console_examples[] = {
    { "lcow console 4f2a9", "the last that firmware, kernel and agent printed" },
};
static const struct args_cmd console_cmd = {
    .name = "console",
    .summary = "Print the last lines of a VM's console.",
    .synopsis = "ID",
    .text =
        "The shim keeps them: this works while the VM is stopped or hangs. The console takes no "
        "input; for a shell in the VM see: lcow exec --vm -t ID -- sh\n"
        "\n"
        "Exit code: 0; 1 if the shim is not there or does not answer; 2 if this command line "
        "is wrong.",
    .takes_words = true,
    .examples = console_examples,
    .n_examples = ARRAY_LEN(console_examples),
};

int tool_console(struct ctx *ctx, struct rpc_client *client, struct sbuf *out, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, LOOK_LIMIT);
    AUTO(pb_free) Lcow__ConsoleResponse *resp = NULL;
    Lcow__ConsoleRequest req = LCOW__CONSOLE_REQUEST__INIT;

    if (rpc_client_call(&limited, client, OWN_SERVICE, "Console", &req,
                        &lcow__console_response__descriptor, (void **)&resp, err) < 0)
        return -1;
    sbuf_adds(out, resp->text);
    return 0;
}

static int console_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &console_cmd, NULL, argv, &rest, &code))
        return code;
    if (rest.n != 1)
        return tool_fail(TOOL_USAGE, "console needs one ID; see: lcow ps");
    if (shim_of(ctx, t->config.run_root, rest.argv[0], &client, &err) < 0 ||
        tool_console(ctx, client, &out, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    tool_print(STDOUT_FILENO, out.data ? out.data : "");
    return TOOL_OK;
}

const struct tool_command console_command = { .cmd = &console_cmd, .run = console_run };

/* ---- share */

struct share_opts {
    bool writable;
};
static const struct args_opt share_table[] = {
    { "writable", 'w', ARGS_FLAG, NULL, offsetof(struct share_opts, writable),
      "the VM may change it" },
};
static const struct args_example share_examples[] = {
    { "lcow share 4f2a9 /opt/tools /mnt/tools", "tools of the host, in the VM" },
    { "lcow share -w 4f2a9 /tmp/dumps", "somewhere; prints where" },
};
static const struct args_cmd share_cmd = {
    .name = "share",
    .summary = "Show a directory or file of the host in a VM.",
    .synopsis = "[options] ID HOST_PATH [VM_PATH]",
    .text = "It is seen in the VM itself, not in its containers, until the VM ends. Prints the "
            "path in the VM.\n"
            "\n"
            "Exit code: 0; 1 if it failed; 2 if this command line is wrong.",
    .opts = share_table,
    .n_opts = ARRAY_LEN(share_table),
    .takes_words = true,
    .examples = share_examples,
    .n_examples = ARRAY_LEN(share_examples),
};

static int share_run(struct ctx *ctx, struct tool *t, char **argv)
{
    struct ctx limited = ctx_with_timeout(ctx, SHARE_LIMIT);
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO(pb_free) Diag__ShareResponse *resp = NULL;
    Diag__ShareRequest req = DIAG__SHARE_REQUEST__INIT;
    struct share_opts o = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &share_cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n < 2 || rest.n > 3)
        return tool_fail(TOOL_USAGE, "share needs ID, HOST_PATH and perhaps VM_PATH");

    AUTO_FREE char *path = realpath(rest.argv[1], NULL); /* the shim is in another directory */

    if (!path)
        return tool_fail(TOOL_FAILED, "%s is not there", rest.argv[1]);
    req.host_path = path;
    req.uvm_path = rest.n == 3 ? rest.argv[2] : "";
    req.read_only = !o.writable;
    if (shim_of(&limited, t->config.run_root, rest.argv[0], &client, &err) < 0 ||
        rpc_client_call(&limited, client, SERVICE, "DiagShare", &req,
                        &diag__share_response__descriptor, (void **)&resp, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    tool_print(STDOUT_FILENO, resp->uvm_path);
    tool_print(STDOUT_FILENO, "\n");
    return TOOL_OK;
}

const struct tool_command share_command = { .cmd = &share_cmd, .run = share_run };
