/* cmd_explain.c - `lcow explain`: how a sandbox is, what happened to it last, what went wrong, at
 * which stage, and what to do. From the shim if it answers, from its journal and ledger if not. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "host/ledger/ledger.h"
#include "tool/cmd_look.h"
#include "tool/lib/diagnosis.h"
#include "tool/lib/reading.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAST_EVENTS 6
#define LAST_TROUBLES 5

struct explain_opts {
    bool json;
};
static const struct args_opt opts_table[] = {
    { "json", 0, ARGS_FLAG, NULL, offsetof(struct explain_opts, json),
      "print one JSON object on stdout instead" },
};
static const struct args_example examples[] = {
    { "lcow explain 4f2a9", "why does this pod not run?" },
};
static const struct args_cmd cmd = {
    .name = "explain",
    .summary = "Tell what went wrong with a sandbox, and what to do.",
    .synopsis = "[options] ID",
    .text =
        "Works while the VM or the shim hangs, and for the last 32 sandboxes that ended with an "
        "error.\n"
        "\n"
        "Exit code: 0; 1 if nothing is known of it; 2 if this command line is wrong.",
    .opts = opts_table,
    .n_opts = ARRAY_LEN(opts_table),
    .takes_words = true,
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

struct facts {
    char *ns, *id;
    const struct shim *shim; /* NULL: it is gone */
    struct lines lines;
    const struct line *trouble; /* the one that was diagnosed; NULL: no line tells of it */
    struct diagnosis diagnosis; /* .stage NULL: nothing went wrong */
    char now[200];              /* what is wrong at this moment; "" */
    size_t ledger[LEDGER_KIND_COUNT], n_ledger;
};

/* ---- what is known */

static void put_text(struct sbuf *out, const json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));

    if (s && s[0])
        sbuf_addf(out, "%s%s", out->len ? ": " : "", s);
}

/* All words of a line that tell a cause. Caller frees. */
static char *words_of(const struct line *l)
{
    struct sbuf out = { 0 };

    sbuf_adds(&out, l->text);
    put_text(&out, l->doc, "operation");
    put_text(&out, l->doc, "error");
    put_text(&out, l->doc, "why");
    put_text(&out, l->doc, "reason");
    return sbuf_take(&out);
}

/* What a line tells of a failure; NULL: nothing. */
static const struct diagnosis *diagnosis_of(const struct line *l)
{
    AUTO_FREE char *words = words_of(l);
    const struct diagnosis *d = diagnose(words);

    if (!str_eq(l->level, "error") && !(d && d->warned && str_eq(l->level, "warn")))
        return NULL;
    if (d)
        return d->kind == DIAGNOSIS_ASKED ? NULL : d;
    /* Kernels call much an error that is none. */
    return l->source == LINE_SHIM
               ? diagnose_operation(json_string_value(json_object_get(l->doc, "operation")))
               : NULL;
}

/* The newest cause; if none is known, the newest of what followed from it. */
static void find_trouble(struct facts *f)
{
    for (size_t i = f->lines.n; i-- > 0;) {
        const struct line *l = &f->lines.v[i];
        const struct diagnosis *d = diagnosis_of(l);
        bool cause = d && d->kind == DIAGNOSIS_CAUSE;

        if (!d || (f->trouble && !cause))
            continue;
        f->trouble = l;
        f->diagnosis = *d;
        if (cause)
            return;
    }
}

/* "T" in /proc/PID/stat: somebody has sent it a SIGSTOP. */
static bool is_stopped(int64_t pid)
{
    AUTO_FREE char *path = str_format("/proc/%" PRId64 "/stat", pid), *text = NULL;
    size_t len;
    const char *paren;

    if (pid <= 0 || file_read_all(path, 4096, &text, &len) < 0)
        return false;
    paren = strrchr(text, ')');
    return paren && paren[1] == ' ' && (paren[2] == 'T' || paren[2] == 't');
}

static void find_present(struct facts *f)
{
    const json_t *vm = f->shim->doc ? json_object_get(f->shim->doc, "vm") : NULL;
    int64_t qemu = json_integer_value(json_object_get(vm, "pid"));
    uint64_t oldest = (uint64_t)json_integer_value(json_object_get(vm, "oldest_call_ns"));

    if (!f->shim->doc && is_stopped(f->shim->pid))
        snprintf(f->now, sizeof(f->now), "the shim is stopped; kill -CONT %d lets it go on",
                 (int)f->shim->pid);
    else if (!f->shim->doc)
        snprintf(f->now, sizeof(f->now), "the shim does not answer: %.150s", f->shim->why.msg);
    else if (is_stopped(qemu))
        snprintf(f->now, sizeof(f->now),
                 "QEMU is stopped, so the guest is; kill -CONT %" PRId64 " lets it go on", qemu);
    else if (oldest > 10 * NS_PER_S)
        snprintf(f->now, sizeof(f->now),
                 "the guest owes an answer for %" PRIu64 " s; lcow stacks tells to what",
                 oldest / NS_PER_S);
}

static bool is_said(const struct lines *lines, const char *text)
{
    for (size_t i = lines->n; i-- > 0;)
        if (lines->v[i].source == LINE_SHIM && str_eq(lines->v[i].text, text))
            return true;
    return false;
}

/* A shim that is killed cannot say so. */
static void find_killed(struct facts *f, const struct readings *r)
{
    if (f->shim || readings_alive(r) || is_said(&f->lines, "leaving"))
        return;
    f->trouble = NULL;
    f->diagnosis = (struct diagnosis){
        .stage = "shim",
        .meaning = "the shim ended without a word: somebody killed it, or it crashed",
        .remedy = "see the host's kernel log (OOM killer, segfault) and containerd's log; the "
                  "pod's controller starts it again, lcow gc takes back what is left",
    };
}

static int count_record(void *arg, const struct ledger_record *r)
{
    struct facts *f = arg;

    f->ledger[r->kind]++;
    f->n_ledger++;
    return 0;
}

static void read_ledger(struct facts *f, const char *run_root)
{
    AUTO_FREE char *dir = str_format("%s/%s/%s", run_root, f->ns, f->id);
    struct err ignored = ERR_INIT; /* it is written to at this moment, or gone */

    (void)ledger_read(dir, count_record, f, &ignored);
}

static int gather(struct tool *t, const char *word, const struct shims *shims, struct facts *f,
                  struct err *err)
{
    AUTO(readings_release) struct readings r = { 0 };
    const char *container;
    struct err unknown = ERR_INIT;

    readings_init(&r, t->config.run_root);
    if (shims_find(shims, word, &f->shim, &container, &unknown) == 0) {
        AUTO_FREE char *whole = str_format("%s/%s", f->shim->ns, f->shim->id);
        struct err ignored = ERR_INIT; /* one without a journal can still be asked */

        f->ns = str_dup(f->shim->ns);
        f->id = str_dup(f->shim->id);
        (void)readings_add(&r, whole, &ignored);
    } else {
        f->shim = NULL;
        if (unknown.code == ERR_INVALID) {
            *err = unknown;
            return -1;
        }
        if (readings_add(&r, word, err) < 0)
            return -1;
        f->ns = str_dup(readings_ns(&r));
        f->id = str_dup(readings_id(&r));
    }
    if (readings_more(&r, &f->lines, err) < 0)
        return -1;
    for (size_t i = 0; i < f->lines.n; i++) { /* they outlive the reading */
        f->lines.v[i].ns = f->ns;
        f->lines.v[i].id = f->id;
    }
    read_ledger(f, t->config.run_root);
    find_trouble(f);
    find_killed(f, &r);
    if (f->shim)
        find_present(f);
    return 0;
}

/* ---- told to people */

static void put_state(const struct facts *f, struct sbuf *out)
{
    const json_t *vm = f->shim && f->shim->doc ? json_object_get(f->shim->doc, "vm") : NULL;
    const json_t *list =
        f->shim && f->shim->doc ? json_object_get(f->shim->doc, "containers") : NULL;

    sbuf_addf(out, "sandbox %s/%s\n  ", f->ns, f->id);
    if (!f->shim)
        sbuf_adds(out, "its shim is gone\n");
    else if (!f->shim->doc)
        sbuf_addf(out, "its shim (pid %d) does not answer\n", (int)f->shim->pid);
    else if (!json_is_object(vm))
        sbuf_addf(out, "shim %d has no VM\n", (int)f->shim->pid);
    else
        sbuf_addf(out, "shim %d, VM %s (stage %s), QEMU %" PRId64 "%s\n", (int)f->shim->pid,
                  json_string_value(json_object_get(vm, "state")),
                  json_string_value(json_object_get(vm, "stage")),
                  (int64_t)json_integer_value(json_object_get(vm, "pid")),
                  json_is_true(json_object_get(vm, "emulated")) ? ", emulated" : "");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);

        sbuf_addf(out, "  %.40s: %s", json_string_value(json_object_get(c, "id")),
                  json_string_value(json_object_get(c, "state")));
        if (json_object_get(c, "exited_ns"))
            sbuf_addf(out, ", status %" PRId64,
                      (int64_t)json_integer_value(json_object_get(c, "exit_status")));
        sbuf_addc(out, '\n');
    }
}

static void put_ledger(const struct facts *f, struct sbuf *out)
{
    if (f->n_ledger == 0)
        return;
    sbuf_addf(out, "on record to be taken back: %zu", f->n_ledger);
    for (unsigned k = 0; k < LEDGER_KIND_COUNT; k++)
        if (f->ledger[k])
            sbuf_addf(out, ", %s %zu", ledger_kind_name(k), f->ledger[k]);
    sbuf_adds(out, f->shim ? "\n" : " (lcow gc does it)\n");
}

static void put_when(const struct line *l, struct sbuf *out)
{
    sbuf_addf(out, "  %.12s ", strlen(l->time) > 22 ? l->time + 11 : l->time);
}

static size_t skip_to_last(const struct facts *f, bool (*take)(const struct line *), size_t n)
{
    size_t i = f->lines.n;

    while (i > 0 && n > 0)
        n -= take(&f->lines.v[--i]);
    return i;
}

static bool is_event(const struct line *l)
{
    return l->source == LINE_EVENT;
}

/* Kernels warn of much that is none. */
static bool is_trouble(const struct line *l)
{
    return str_eq(l->level, "error") || (str_eq(l->level, "warn") && l->source != LINE_KERNEL);
}

static void put_events(const struct facts *f, struct sbuf *out)
{
    bool first = true;

    for (size_t i = skip_to_last(f, is_event, LAST_EVENTS); i < f->lines.n; i++) {
        const struct line *l = &f->lines.v[i];

        if (!is_event(l))
            continue;
        sbuf_adds(out, first ? "last events\n" : "");
        first = false;
        put_when(l, out);
        sbuf_addf(out, "%s %.40s", json_string_value(json_object_get(l->doc, "event")),
                  json_string_value(json_object_get(l->doc, "cid")));
        if (str_eq(json_string_value(json_object_get(l->doc, "event")), "exit"))
            sbuf_addf(out, ", status %" PRId64,
                      (int64_t)json_integer_value(json_object_get(l->doc, "status")));
        sbuf_addc(out, '\n');
    }
}

static void put_troubles(const struct facts *f, struct sbuf *out)
{
    bool first = true;

    for (size_t i = skip_to_last(f, is_trouble, LAST_TROUBLES); i < f->lines.n; i++) {
        const struct line *l = &f->lines.v[i];

        if (!is_trouble(l))
            continue;

        AUTO_FREE char *words = words_of(l), *safe = str_printable(words);

        sbuf_adds(out, first ? "last troubles\n" : "");
        first = false;
        put_when(l, out);
        args_wrap(out, safe, 15, 15);
        sbuf_addc(out, '\n');
    }
}

static void put_pair(const char *name, const char *text, struct sbuf *out)
{
    sbuf_addf(out, "%-9s", name);
    args_wrap(out, text, 9, 9);
    sbuf_addc(out, '\n');
}

static void put_facts(const struct facts *f, struct sbuf *out)
{
    put_state(f, out);
    put_ledger(f, out);
    put_events(f, out);
    put_troubles(f, out);
    sbuf_addc(out, '\n');
    if (f->now[0])
        put_pair("now", f->now, out);
    if (f->diagnosis.stage) {
        put_pair("stage", f->diagnosis.stage, out);
        put_pair("meaning", f->diagnosis.meaning, out);
        put_pair("remedy", f->diagnosis.remedy, out);
    } else if (!f->now[0]) {
        sbuf_adds(out, "No error is on record.\n");
    }
}

/* ---- told to programs */

static void put_lines(const struct facts *f, const char *key, bool (*take)(const struct line *),
                      size_t n, struct jsw *w)
{
    jsw_arr(w, key);
    for (size_t i = skip_to_last(f, take, n); i < f->lines.n; i++)
        if (take(&f->lines.v[i]))
            jsw_value(w, NULL, f->lines.v[i].doc);
    jsw_end_arr(w);
}

static void facts_as_json(const struct facts *f, struct jsw *w)
{
    jsw_obj(w, NULL);
    jsw_str(w, "namespace", f->ns);
    jsw_str(w, "sandbox", f->id);
    jsw_bool(w, "shim_alive", f->shim);
    if (f->shim && f->shim->doc)
        jsw_value(w, "state", f->shim->doc);
    else
        jsw_null(w, "state");
    jsw_str(w, "now", f->now[0] ? f->now : NULL);
    jsw_u64(w, "ledger_records", f->n_ledger);
    if (f->diagnosis.stage) {
        AUTO_FREE char *words = f->trouble ? words_of(f->trouble) : NULL;

        jsw_obj(w, "failure");
        jsw_str(w, "text", words);
        jsw_str(w, "stage", f->diagnosis.stage);
        jsw_str(w, "meaning", f->diagnosis.meaning);
        jsw_str(w, "remedy", f->diagnosis.remedy);
        jsw_end_obj(w);
    } else {
        jsw_null(w, "failure");
    }
    put_lines(f, "events", is_event, LAST_EVENTS, w);
    put_lines(f, "troubles", is_trouble, LAST_TROUBLES, w);
    jsw_end_obj(w);
    sbuf_addc(&w->out, '\n');
}

int tool_explain(struct ctx *ctx, struct tool *t, const char *word, bool json, struct sbuf *out,
                 struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    AUTO_FREE struct facts *f = mem_new(struct facts);
    AUTO(jsw_release) struct jsw w;
    int r;

    jsw_init(&w, JSW_PLAIN);
    if (shims_list(t->config.run_root, &shims, err) < 0)
        return -1;
    shims_ask(ctx, &shims);
    r = gather(t, word, &shims, f, err);
    if (r == 0 && json)
        facts_as_json(f, &w);
    else if (r == 0)
        put_facts(f, &w.out);
    if (r == 0)
        sbuf_adds(out, w.out.data);
    lines_release(&f->lines);
    free(f->ns);
    free(f->id);
    return r;
}

static int explain_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct explain_opts o = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &cmd, &o, argv, &rest, &code))
        return code;
    if (rest.n != 1)
        return tool_fail(TOOL_USAGE, "explain needs one ID; see: lcow ps");
    if (tool_explain(ctx, t, rest.argv[0], o.json, &out, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

const struct tool_command explain_command = { .cmd = &cmd, .run = explain_run };
