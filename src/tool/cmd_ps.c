/* cmd_ps.c - `lcow ps`: every pod with its VM, containers and execs; `lcow inspect`: all of one. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/loop.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#define SHORT_ID 13 /* as crictl shows them */

struct ps_opts {
    bool json, execs, whole;
};

#define AT(f) offsetof(struct ps_opts, f)
static const struct args_opt ps_table[] = {
    { "execs", 'e', ARGS_FLAG, NULL, AT(execs), "with the processes that were added by exec" },
    { "no-trunc", 0, ARGS_FLAG, NULL, AT(whole), "whole ids, whatever the width" },
    { "json", 0, ARGS_FLAG, NULL, AT(json), "print one JSON array on stdout instead" },
};
static const struct args_example ps_examples[] = {
    { "lcow ps", "what runs on this host" },
    { "lcow ps -e", "with execs" },
    { "lcow ps --json | jq -r '.[].sandbox'", "for a program" },
};
static const struct args_cmd ps_cmd = {
    .name = "ps",
    .summary = "List sandboxes, their VMs and containers.",
    .synopsis = "[options]",
    .text = "Asks each shim itself, not containerd. A shim that does not answer within two "
            "seconds is listed with the reason.\n"
            "\n"
            "Exit code: 0; 1 if a shim did not answer; 2 if this command line is wrong.",
    .opts = ps_table,
    .n_opts = ARRAY_LEN(ps_table),
    .examples = ps_examples,
    .n_examples = ARRAY_LEN(ps_examples),
};

/* ---- one line each */

struct table {
    struct sbuf out;
    int width; /* of an id; 0: whole */
    bool execs;
    uint64_t now;
};

static const char *text_of(const json_t *obj, const char *key)
{
    const char *text = json_string_value(json_object_get(obj, key));

    return text ? text : "-";
}

static uint64_t number_of(const json_t *obj, const char *key)
{
    uint64_t n = 0;
    struct err ignored = ERR_INIT;

    (void)js_u64(obj, key, &n, &ignored);
    return n;
}

static void put_id(struct table *t, const char *id)
{
    if (t->width)
        sbuf_addf(&t->out, "%-*.*s  ", t->width, t->width, id);
    else
        sbuf_addf(&t->out, "%s  ", id);
}

static void put_age(struct table *t, uint64_t since)
{
    uint64_t s = since && since < t->now ? (t->now - since) / NS_PER_S : 0;

    if (!since)
        sbuf_adds(&t->out, "-");
    else if (s < 120)
        sbuf_addf(&t->out, "%" PRIu64 "s", s);
    else if (s < 7200)
        sbuf_addf(&t->out, "%" PRIu64 "m", s / 60);
    else if (s < 172800)
        sbuf_addf(&t->out, "%" PRIu64 "h", s / 3600);
    else
        sbuf_addf(&t->out, "%" PRIu64 "d", s / 86400);
}

static void put_state(struct table *t, const json_t *process)
{
    const char *state = text_of(process, "state");

    if (json_object_get(process, "exited_ns")) {
        AUTO_FREE char *text = str_format("exit %" PRIu64, number_of(process, "exit_status"));

        sbuf_addf(&t->out, "%-9s  ", text);
    } else {
        sbuf_addf(&t->out, "%-9s  ", state);
    }
}

static void put_container(struct table *t, const struct shim *s, const json_t *c)
{
    const json_t *execs = json_object_get(c, "execs");

    put_id(t, s->id);
    put_id(t, text_of(c, "id"));
    put_state(t, c);
    sbuf_addf(&t->out, "%8" PRIu64 "\n", number_of(c, "pid"));
    for (size_t i = 0; t->execs && i < json_array_size(execs); i++) {
        const json_t *e = json_array_get(execs, i);

        put_id(t, "");
        AUTO_FREE char *id = str_format(" +%s", text_of(e, "id"));
        put_id(t, id);
        put_state(t, e);
        sbuf_addc(&t->out, '\n');
    }
}

static void put_shim(struct table *t, const struct shim *s)
{
    const json_t *vm = s->doc ? json_object_get(s->doc, "vm") : NULL;
    const json_t *list = s->doc ? json_object_get(s->doc, "containers") : NULL;

    put_id(t, s->id);
    put_id(t, "(VM)");
    if (!s->doc) {
        sbuf_addf(&t->out, "no answer: %s\n", s->why.msg);
        return;
    }
    AUTO_FREE char *state = str_format("%s%s", json_is_object(vm) ? text_of(vm, "state") : "none",
                                       json_is_true(json_object_get(vm, "emulated")) ? "*" : "");
    sbuf_addf(&t->out, "%-9.9s  %8" PRIu64 "  ", state, number_of(vm, "pid"));
    sbuf_addf(&t->out, "%5" PRIu64 " MiB  %2" PRIu64 "  ", number_of(vm, "memory_mib"),
              number_of(vm, "cpus"));
    put_age(t, number_of(vm, "started_ns"));
    sbuf_addc(&t->out, '\n');
    for (size_t i = 0; i < json_array_size(list); i++)
        put_container(t, s, json_array_get(list, i));
}

static void print_table(struct tool *tool, const struct ps_opts *o, const struct shims *s)
{
    struct table t = { .width = o->whole ? 0 : SHORT_ID,
                       .execs = o->execs,
                       .now = loop_wall(tool->loop) };

    put_id(&t, "SANDBOX");
    put_id(&t, "CONTAINER");
    sbuf_addf(&t.out, "%-9s  %8s  %9s  %2s  AGE\n", "STATE", "PID", "MEMORY", "C");
    for (size_t i = 0; i < s->n; i++)
        put_shim(&t, &s->v[i]);
    tool_print(STDOUT_FILENO, t.out.data);
    sbuf_release(&t.out);
}

static void print_json(const struct shims *s)
{
    AUTO(jsw_release) struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].doc) {
            jsw_value(&w, NULL, s->v[i].doc);
            continue;
        }
        jsw_obj(&w, NULL);
        jsw_str(&w, "namespace", s->v[i].ns);
        jsw_str(&w, "sandbox", s->v[i].id);
        jsw_i64(&w, "pid", s->v[i].pid);
        jsw_str(&w, "error", s->v[i].why.msg);
        jsw_end_obj(&w);
    }
    jsw_end_arr(&w);
    sbuf_addc(&w.out, '\n');
    tool_print(STDOUT_FILENO, w.out.data);
}

static int ps_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(shims_release) struct shims shims = { 0 };
    struct ps_opts o = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &ps_cmd, &o, argv, &rest, &code))
        return code;
    if (shims_list(t->config.run_root, &shims, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    shims_ask(ctx, &shims);
    if (o.json)
        print_json(&shims);
    else
        print_table(t, &o, &shims);
    for (size_t i = 0; i < shims.n; i++)
        if (!shims.v[i].doc)
            return TOOL_FAILED;
    return TOOL_OK;
}

const struct tool_command ps_command = { .cmd = &ps_cmd, .run = ps_run };

/* ---- inspect */

static const struct args_example inspect_examples[] = {
    { "lcow inspect 4f2a9", "all that the shim of this sandbox or container knows" },
    { "lcow inspect k8s.io/4f2a9", "in that namespace of containerd" },
};
static const struct args_cmd inspect_cmd = {
    .name = "inspect",
    .summary = "Print all that a shim knows, as JSON.",
    .synopsis = "ID",
    .text = "ID is the beginning of a sandbox's or container's id, with or without "
            "NAMESPACE/ before it. The document has the VM with the stages of its boot, its disks, "
            "shares and PCI devices with their holders, containers and execs.\n"
            "\n"
            "Exit code: 0; 1 if it is not there or does not answer; 2 if this command line is "
            "wrong.",
    .takes_words = true,
    .examples = inspect_examples,
    .n_examples = ARRAY_LEN(inspect_examples),
};

static int inspect_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(shims_release) struct shims shims = { 0 };
    const struct shim *s;
    const char *container;
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &inspect_cmd, NULL, argv, &rest, &code))
        return code;
    if (rest.n != 1)
        return tool_fail(TOOL_USAGE, "inspect needs one ID; see: lcow ps");
    if (shims_list(t->config.run_root, &shims, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    shims_ask(ctx, &shims);
    if (shims_find(&shims, rest.argv[0], &s, &container, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    if (!s->doc)
        return tool_fail(TOOL_FAILED, "%s/%s: %s", s->ns, s->id, s->why.msg);
    shims_measure(ctx, &shims, s);

    AUTO_FREE char *text = js_text(s->doc, 2);

    tool_print(STDOUT_FILENO, text);
    tool_print(STDOUT_FILENO, "\n");
    return TOOL_OK;
}

const struct tool_command inspect_command = { .cmd = &inspect_cmd, .run = inspect_run };
