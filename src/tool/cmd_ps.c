/* cmd_ps.c - `lcow ps`: every pod with its VM, containers and execs. */
#include "tool/cmd_ps.h"
#include "base/clock.h"
#include "base/loop.h"
#include "tool/tool.h"
#include <inttypes.h>

#define SHORT_ID 13 /* as crictl shows them */

/* ---- one line each */

struct table {
    struct sbuf *out;
    int width; /* of an id; 0: not truncated */
    bool execs;
    uint64_t now;
};

static const char *text_of(const json_t *obj, const char *key)
{
    const char *text = doc_text(obj, key);

    return text[0] ? text : "-";
}

static void put_id(struct table *t, const char *id)
{
    if (t->width)
        sbuf_addf(t->out, "%-*.*s  ", t->width, t->width, id);
    else
        sbuf_addf(t->out, "%s  ", id);
}

static void put_age(struct table *t, uint64_t since)
{
    uint64_t s = since && since < t->now ? (t->now - since) / NS_PER_S : 0;

    unsigned unit = s < 120 ? 1 : s < 7200 ? 60 : s < 172800 ? 3600 : 86400;

    if (since)
        sbuf_addf(t->out, "%" PRIu64 "%s", s / unit,
                  unit == 1      ? "s"
                  : unit == 60   ? "m"
                  : unit == 3600 ? "h"
                                 : "d");
    else
        sbuf_adds(t->out, "-");
}

static void put_state(struct table *t, const json_t *process)
{
    AUTO_FREE char *exited = str_format("exit %" PRIu64, doc_number(process, "exit_status"));

    sbuf_addf(t->out, "%-9s  ",
              json_object_get(process, "exited_ns") ? exited : text_of(process, "state"));
}

static void put_container(struct table *t, const struct shim *s, const json_t *c)
{
    const json_t *execs = json_object_get(c, "execs");

    put_id(t, s->id);
    put_id(t, text_of(c, "id"));
    put_state(t, c);
    sbuf_addf(t->out, "%8" PRIu64 "\n", doc_number(c, "pid"));
    for (size_t i = 0; t->execs && i < json_array_size(execs); i++) {
        const json_t *e = json_array_get(execs, i);

        put_id(t, "");
        AUTO_FREE char *id = str_format(" +%s", text_of(e, "id"));
        put_id(t, id);
        put_state(t, e);
        sbuf_addc(t->out, '\n');
    }
}

static void put_shim(struct table *t, const struct shim *s)
{
    const json_t *vm = json_object_get(s->doc, "vm");
    const json_t *list = json_object_get(s->doc, "containers");

    put_id(t, s->id);
    put_id(t, "(VM)");
    if (!s->doc) {
        sbuf_addf(t->out, "no answer: %s\n", s->why.msg);
        return;
    }
    AUTO_FREE char *state = str_format("%s%s", json_is_object(vm) ? text_of(vm, "state") : "none",
                                       json_is_true(json_object_get(vm, "emulated")) ? "*" : "");
    sbuf_addf(t->out, "%-9.9s  %8" PRIu64 "  ", state, doc_number(vm, "pid"));
    sbuf_addf(t->out, "%5" PRIu64 " MiB  %2" PRIu64 "  ", doc_number(vm, "memory_mib"),
              doc_number(vm, "cpus"));
    put_age(t, doc_number(vm, "started_ns"));
    if (json_is_true(json_object_get(vm, "log_lost")))
        sbuf_adds(t->out, "  no guest log");
    if (s->version)
        sbuf_addf(t->out, "  shim %s", s->version);
    if (shim_is_behind(s))
        sbuf_adds(t->out, " (installed: " LCOW_VERSION ")");
    sbuf_addc(t->out, '\n');
    for (size_t i = 0; i < json_array_size(list); i++)
        put_container(t, s, json_array_get(list, i));
}

void ps_table(struct tool *tool, const struct shims *s)
{
    struct table t = { .out = &tool->out,
                       .width = tool->opts.whole ? 0 : SHORT_ID,
                       .execs = tool->opts.execs,
                       .now = loop_wall(tool->loop) };

    put_id(&t, "SANDBOX");
    put_id(&t, "CONTAINER");
    sbuf_addf(t.out, "%-9s  %8s  %9s  %2s  AGE\n", "STATE", "PID", "MEMORY", "C");
    for (size_t i = 0; i < s->n; i++)
        put_shim(&t, &s->v[i]);
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    int code = TOOL_OK;

    if (tool_list(ctx, t, err) < 0)
        return -1;
    t->json = t->opts.json ? json_array() : NULL;
    if (!t->json)
        ps_table(t, &t->shims);
    for (size_t i = 0; i < t->shims.n; i++) {
        const struct shim *s = &t->shims.v[i];

        if (s->doc) {
            json_array_append(t->json, s->doc);
            continue;
        }
        code = TOOL_FAILED;
        json_array_append_new(t->json, json_pack("{so so si so}", "namespace", doc_string(s->ns),
                                                 "sandbox", doc_string(s->id), "pid", (int)s->pid,
                                                 "error", doc_string(s->why.msg)));
    }
    return code;
}

const struct args_cmd ps_command = {
    .name = "ps",
    .summary = "List sandboxes, their VMs and containers.",
    .text =
        "Queries each shim and each `lcow boot --keep`, not containerd. A shim that does not "
        "answer within 5 s is listed with the reason. \"no guest log\": the shim could not "
        "receive the VM's log, and the VM runs without it. \"installed: VERSION\": its shim is of "
        "another version; lcow upgrade changes that.",
    .exits = "1 if a shim did not answer",
    .opts = ARGS_OPTIONS(
        { "execs", 'e', ARGS_FLAG, NULL, OPT(execs), "also list the processes of execs" },
        { "no-trunc", 0, ARGS_FLAG, NULL, OPT(whole), "do not truncate ids" },
        OPT_JSON("print one JSON array on stdout instead")),
    .examples = ARGS_EXAMPLES({ "lcow ps", "list what runs on this host" },
                              { "lcow ps -e", "also list execs" },
                              { "lcow ps --json | jq -r '.[].sandbox'", "list ids for a program" }),
    .run = run,
};
