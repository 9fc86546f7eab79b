/* cmd_explain.c - `lcow explain`: the state of a sandbox, its last events, its failure with reason
 * and remedy. Read from the shim if it answers, otherwise from its journal and ledger. */
#include "base/clock.h"
#include "base/fd.h"
#include "host/ledger/ledger.h"
#include "tool/lib/diagnosis.h"
#include "tool/lib/reading.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST_EVENTS 6
#define LAST_TROUBLES 5

struct facts {
    const char *ns, *id;
    const struct shim *shim; /* NULL: it is gone */
    struct readings readings;
    struct lines lines;
    const struct line *trouble; /* the line of the failure; NULL: there is none */
    enum reason reason;
    const struct diagnosis *diagnosis; /* NULL: no failure */
    char *now;                         /* a problem that exists now; NULL: none */
    size_t ledger[LEDGER_KIND_COUNT], n_ledger;
};

/* ---- what is known */

/* The message of a line and its causes. Caller frees. */
static char *words_of(const struct line *l)
{
    static const char *const keys[] = { "operation", "error", "why" };
    struct sbuf out = { 0 };

    sbuf_adds(&out, l->text);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const char *s = doc_text(l->doc, keys[i]);

        if (s[0])
            sbuf_addf(&out, "%s%s", out.len ? ": " : "", s);
    }
    return sbuf_take(&out);
}

static enum reason reason_of(const struct line *l)
{
    return reason_parse(doc_text(l->doc, "reason"));
}

/* The diagnosis of a line; NULL: it does not report a failure. */
static const struct diagnosis *diagnosis_of(const struct line *l)
{
    const struct diagnosis *d = diagnose(reason_of(l), doc_text(l->doc, "operation"));

    if (!str_eq(l->level, "error") && !(d->warned && str_eq(l->level, "warn")))
        return NULL;
    /* Kernels call much an error that is not one. */
    if (d->kind == DIAGNOSIS_ASKED || (d->kind == DIAGNOSIS_GENERAL && l->source != LINE_SHIM))
        return NULL;
    return d;
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
        f->reason = reason_of(l);
        f->diagnosis = d;
        if (cause)
            return;
    }
}

/* "T" in /proc/PID/stat: the process got a SIGSTOP. */
static bool is_stopped(int64_t pid)
{
    AUTO_FREE char *text = pid > 0 ? file_text(4096, "/proc/%" PRId64 "/stat", pid) : NULL;
    const char *paren = text ? strrchr(text, ')') : NULL;

    return paren && paren[1] == ' ' && (paren[2] == 'T' || paren[2] == 't');
}

static void find_present(struct facts *f)
{
    const json_t *vm = json_object_get(f->shim->doc, "vm");
    int64_t qemu = (int64_t)doc_number(vm, "pid");
    uint64_t oldest = doc_number(vm, "oldest_call_ns");

    if (!f->shim->doc && is_stopped(f->shim->pid))
        f->now = str_format("the shim is stopped; kill -CONT %d resumes it", (int)f->shim->pid);
    else if (!f->shim->doc)
        f->now = str_format("the shim does not answer: %.150s", f->shim->why.msg);
    else if (is_stopped(qemu))
        f->now = str_format(
            "QEMU is stopped, and so is the guest; kill -CONT %" PRId64 " resumes it", qemu);
    else if (oldest > 10 * NS_PER_S)
        f->now = str_format("the guest has not answered a call for %" PRIu64 " s; see: lcow stacks",
                            oldest / NS_PER_S);
}

/* The journal records an orderly exit. */
static bool has_left(const struct lines *lines)
{
    for (size_t i = lines->n; i-- > 0;)
        if (lines->v[i].source == LINE_SHIM &&
            str_eq(doc_text(lines->v[i].doc, "operation"), "leave"))
            return true;
    return false;
}

/* A killed shim cannot log its end; one that crashed has. */
static void find_killed(struct facts *f, const struct readings *r)
{
    if (f->shim || r->v[0]->alive || has_left(&f->lines) || f->reason == REASON_SHIM_CRASHED)
        return;
    f->trouble = NULL;
    f->reason = REASON_SHIM_KILLED;
    f->diagnosis = diagnose(f->reason, NULL);
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
    struct err ignored = ERR_INIT; /* the ledger is being written, or was removed */

    (void)ledger_read(dir, count_record, f, &ignored);
}

static int gather(struct tool *t, const char *word, const struct shims *shims, struct facts *f,
                  struct err *err)
{
    struct readings *r = &f->readings;
    const char *container;

    readings_init(r, t->config.run_root);
    if (readings_find(r, shims, word, &f->shim, &container, err) < 0 && !f->shim)
        return -1;
    err_clear(err); /* a shim without a journal can still answer */
    f->ns = f->shim ? f->shim->ns : r->v[0]->ns;
    f->id = f->shim ? f->shim->id : r->v[0]->id;
    if (readings_more(r, &f->lines, err) < 0)
        return -1;
    read_ledger(f, t->config.run_root);
    find_trouble(f);
    find_killed(f, r);
    if (f->shim)
        find_present(f);
    return 0;
}

/* ---- output for people */

static void put_state(const struct facts *f, struct sbuf *out)
{
    const json_t *doc = f->shim ? f->shim->doc : NULL, *vm = json_object_get(doc, "vm");
    const json_t *list = json_object_get(doc, "containers");

    sbuf_addf(out, "sandbox %s/%s\n  ", f->ns, f->id);
    if (!f->shim)
        sbuf_adds(out, "its shim is gone\n");
    else if (!doc)
        sbuf_addf(out, "its shim (pid %d) does not answer\n", (int)f->shim->pid);
    else if (!json_is_object(vm))
        sbuf_addf(out, "shim %d has no VM\n", (int)f->shim->pid);
    else
        sbuf_addf(out, "shim %d, VM %s (stage %s), QEMU %" PRIu64 "%s\n", (int)f->shim->pid,
                  doc_text(vm, "state"), doc_text(vm, "stage"), doc_number(vm, "pid"),
                  json_is_true(json_object_get(vm, "emulated")) ? ", emulated" : "");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);

        sbuf_addf(out, "  %.40s: %s", doc_text(c, "id"), doc_text(c, "state"));
        if (json_object_get(c, "exited_ns"))
            sbuf_addf(out, ", status %" PRIu64, doc_number(c, "exit_status"));
        sbuf_addc(out, '\n');
    }
}

static void put_ledger(const struct facts *f, struct sbuf *out)
{
    if (f->n_ledger == 0)
        return;
    sbuf_addf(out, "recorded for clean-up: %zu", f->n_ledger);
    for (unsigned k = 0; k < LEDGER_KIND_COUNT; k++)
        if (f->ledger[k])
            sbuf_addf(out, ", %s %zu", ledger_kind_name(k), f->ledger[k]);
    sbuf_adds(out, f->shim ? "\n" : " (run lcow gc)\n");
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

/* Kernels log many warnings that are not failures. */
static bool is_trouble(const struct line *l)
{
    return str_eq(l->level, "error") || (str_eq(l->level, "warn") && l->source != LINE_KERNEL);
}

static void put_event(const struct line *l, struct sbuf *out)
{
    sbuf_addf(out, "%s %.40s", doc_text(l->doc, "event"), doc_text(l->doc, "cid"));
    if (str_eq(doc_text(l->doc, "event"), "exit"))
        sbuf_addf(out, ", status %" PRIu64, doc_number(l->doc, "status"));
}

static void put_trouble(const struct line *l, struct sbuf *out)
{
    AUTO_FREE char *words = words_of(l), *safe = str_printable(words);

    args_wrap(out, safe, 15, 15);
}

/* Prints the last lines that `take` accepts, each by `put`. */
static void put_last(const struct facts *f, const char *title, bool (*take)(const struct line *),
                     size_t n, void (*put)(const struct line *, struct sbuf *), struct sbuf *out)
{
    for (size_t i = skip_to_last(f, take, n); i < f->lines.n; i++) {
        const struct line *l = &f->lines.v[i];

        if (!take(l))
            continue;
        sbuf_addf(out, "%s  %.12s ", title, strlen(l->time) > 22 ? l->time + 11 : l->time);
        title = "";
        put(l, out);
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
    put_last(f, "last events\n", is_event, LAST_EVENTS, put_event, out);
    put_last(f, "last problems\n", is_trouble, LAST_TROUBLES, put_trouble, out);
    sbuf_addc(out, '\n');
    if (f->now)
        put_pair("now", f->now, out);
    if (f->diagnosis) {
        put_pair("reason", reason_name(f->reason), out);
        put_pair("cause", f->diagnosis->cause, out);
        put_pair("remedy", f->diagnosis->remedy, out);
    } else if (!f->now) {
        sbuf_adds(out, "No error is recorded.\n");
    }
}

/* ---- output for programs */

static json_t *last_docs(const struct facts *f, bool (*take)(const struct line *), size_t n)
{
    json_t *docs = json_array();

    for (size_t i = skip_to_last(f, take, n); i < f->lines.n; i++)
        if (take(&f->lines.v[i]))
            json_array_append(docs, f->lines.v[i].doc);
    return docs;
}

static json_t *facts_as_json(const struct facts *f)
{
    AUTO_FREE char *words = f->trouble ? words_of(f->trouble) : NULL;
    json_t *failure = json_null();

    if (f->diagnosis)
        failure =
            json_pack("{so ss ss ss}", "text", doc_string(words), "reason", reason_name(f->reason),
                      "cause", f->diagnosis->cause, "remedy", f->diagnosis->remedy);
    return json_pack("{so so sb sO? so sI so so so}", "namespace", doc_string(f->ns), "sandbox",
                     doc_string(f->id), "shim_alive", f->shim != NULL, "state",
                     f->shim ? f->shim->doc : NULL, "now", doc_string(f->now), "ledger_records",
                     (json_int_t)f->n_ledger, "failure", failure, "events",
                     last_docs(f, is_event, LAST_EVENTS), "troubles",
                     last_docs(f, is_trouble, LAST_TROUBLES));
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE struct facts *f = mem_new(struct facts);
    int r = tool_list(ctx, t, err);

    if (r == 0)
        r = gather(t, t->rest.argv[0], &t->shims, f, err);
    if (r == 0 && t->opts.json)
        t->json = facts_as_json(f);
    else if (r == 0)
        put_facts(f, &t->out);
    lines_release(&f->lines);
    readings_release(&f->readings);
    free(f->now);
    return r;
}

const struct args_cmd explain_command = {
    .name = "explain",
    .summary = "Explain why a sandbox failed, and what to do.",
    .text = "Works even if the VM or the shim hangs, and for the last 32 sandboxes that failed.",
    .exits = "1 if the sandbox is unknown",
    .opts = TOOL_JSON_OPTS("print one JSON object on stdout instead"),
    .takes_id = true,
    .examples = ARGS_EXAMPLES({ "lcow explain 4f2a9", "explain why this pod does not run" }),
    .run = run,
};
