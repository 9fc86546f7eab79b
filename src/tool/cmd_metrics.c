/* cmd_metrics.c - `lcow metrics`: metrics of all sandboxes of this host as Prometheus text, printed
 * once or served on a unix socket for a collector. lcow does not listen on a network. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/rpc/rpc_sock.h"
#include "tool/lib/term.h"
#include "tool/tool.h"
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_LIMIT (5 * NS_PER_S)
#define REQUEST_MAX 8192u
#define FAILURES "lcow_failures_total"

/* ---- the metrics */

/* The source of a metric: the shim's document (a number, a flag, the length of a list, or a text),
 * or struct cost. A missing value is 0. */
static const struct metric {
    const char *name, *help; /* a name that ends with _total is a counter, others are gauges */
    const char *part, *key;  /* of the document; part NULL: of all of it */
    size_t cost;             /* offset in struct cost, if there is no key */
    double per;              /* divisor; 0: none */
    const char *is;          /* the metric is 1 if the text equals this; NULL: for any text */
} metrics[] = {
#define DOC(part, key) part, key, 0
#define COST(field) NULL, NULL, offsetof(struct cost, field)
    { "lcow_shim_up", "1 if the shim answers", DOC(NULL, "sandbox") },
    { "lcow_vm_running", "1 if the VM runs", DOC("vm", "state"), .is = "Running" },
    { "lcow_vm_emulated", "1 without hardware virtualization: not a security boundary",
      DOC("vm", "emulated") },
    { "lcow_vm_clone", "1 if the VM was started from a template", DOC("vm", "clone") },
    { "lcow_vm_memory_bytes", "memory of the VM", DOC("vm", "memory_mib"), 1.0 / (1024 * 1024) },
    { "lcow_vm_cpus", "vCPUs of the VM", DOC("vm", "cpus") },
    { "lcow_vm_start_time_seconds", "start time of the VM, seconds since 1970",
      DOC("vm", "started_ns"), 1e9 },
    { "lcow_vm_disks", "disks attached to the VM", DOC("vm", "disks") },
    { "lcow_vm_shares", "directories shared with the VM", DOC("vm", "shares") },
    { "lcow_containers", "containers of the shim", DOC(NULL, "containers") },
    { "lcow_guest_oldest_call_seconds", "age of the oldest unanswered call to the guest",
      DOC("vm", "oldest_call_ns"), 1e9 },
    { "lcow_host_shim_pss_bytes", "memory of the shim", COST(shim_pss) },
    { "lcow_host_vmm_pss_bytes", "memory of QEMU, including the guest's", COST(vmm_pss) },
    { "lcow_host_anchors_pss_bytes", "memory of the containers' anchors", COST(anchors_pss) },
    { "lcow_host_cpu_seconds_total", "CPU time of shim and QEMU", COST(host_cpu_ns), 1e9 },
    { "lcow_guest_up", "1 if the guest reports its metrics", COST(guest) },
    { "lcow_guest_memory_bytes", "memory of the containers, as the guest reports it",
      COST(guest_memory) },
    { "lcow_guest_cpu_seconds_total", "CPU time of the containers", COST(guest_cpu_ns), 1e9 },
    { "lcow_stdio_lost_bytes_total", "container output that was lost",
      DOC("counters", "stdio_lost_bytes") },
    { "lcow_log_lines_dropped_total", "log lines that containerd did not accept",
      DOC("counters", "log_lines_dropped") },
    { "lcow_events_pending", "events that containerd has not accepted yet",
      DOC("counters", "events_pending") },
    { "lcow_events_dropped_total", "events that were dropped", DOC("counters", "events_dropped") },
    { "lcow_spans_sent_total", "spans that the trace collector accepted",
      DOC("counters", "spans_sent") },
    { "lcow_spans_lost_total", "spans that the trace collector did not accept",
      DOC("counters", "spans_lost") },
#undef DOC
#undef COST
};

static double value_of(const struct metric *m, const struct shim *s)
{
    const json_t *doc = m->part ? json_object_get(s->doc, m->part) : s->doc;
    const json_t *value = m->key ? json_object_get(doc, m->key) : NULL;

    if (!m->key)
        return (double)*(const uint64_t *)((const char *)&s->cost + m->cost) /
               (m->per ? m->per : 1);
    if (json_is_string(value))
        return !m->is || str_eq(json_string_value(value), m->is);
    if (json_is_array(value))
        return (double)json_array_size(value);
    return json_is_true(value) ? 1 : (double)json_integer_value(value) / (m->per ? m->per : 1);
}

/* One line for each reason that has occurred. */
static void put_failures(const struct shims *s, struct sbuf *out)
{
    const char *reason;
    json_t *n;

    sbuf_adds(out, "# HELP " FAILURES " failures that the shim logged, by reason\n"
                   "# TYPE " FAILURES " counter\n");
    for (size_t k = 0; k < s->n; k++)
        json_object_foreach(json_object_get(s->v[k].doc, "failures"), reason, n) sbuf_addf(
            out, FAILURES "{namespace=\"%s\",sandbox=\"%s\",reason=\"%s\"} %lld\n", s->v[k].ns,
            s->v[k].id, reason_name(reason_parse(reason)), (long long)json_integer_value(n));
}

static void as_text(const struct shims *s, struct sbuf *out)
{
    for (const struct metric *m = metrics; m < metrics + ARRAY_LEN(metrics); m++) {
        sbuf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name,
                  str_ends(m->name, "_total") ? "counter" : "gauge");
        for (size_t k = 0; k < s->n; k++)
            sbuf_addf(out, "%s{namespace=\"%s\",sandbox=\"%s\"} %.15g\n", m->name, s->v[k].ns,
                      s->v[k].id, value_of(m, &s->v[k]));
    }
    put_failures(s, out);
}

static json_t *as_json(const struct shims *s)
{
    json_t *all = json_array();

    for (size_t k = 0; k < s->n; k++) {
        json_t *one = json_pack("{so so}", "namespace", doc_string(s->v[k].ns), "sandbox",
                                doc_string(s->v[k].id));

        for (const struct metric *m = metrics; m < metrics + ARRAY_LEN(metrics); m++)
            json_object_set_new(one, m->name, json_real(value_of(m, &s->v[k])));
        if (json_object_get(s->v[k].doc, "failures"))
            json_object_set(one, FAILURES, json_object_get(s->v[k].doc, "failures"));
        json_array_append_new(all, one);
    }
    return all;
}

/* ---- serving */

/* Reads up to the blank line that ends a request's header. */
static int read_head(struct ctx *ctx, struct stream *s, struct err *err)
{
    AUTO(sbuf_release) struct sbuf head = { 0 };
    char buf[512];
    size_t n;

    while (!head.data || !strstr(head.data, "\r\n\r\n")) {
        if (head.len > REQUEST_MAX)
            return err_set(err, ERR_INVALID, "the request's header is too long");
        if (stream_read(ctx, s, buf, sizeof(buf), &n, err) < 0)
            return -1;
        if (n == 0)
            return err_set(err, ERR_UNAVAILABLE, "the client closed the connection");
        sbuf_add(&head, buf, n);
    }
    return 0;
}

static int answer(struct ctx *ctx, struct tool *t, int fd, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, REQUEST_LIMIT);
    AUTO(stream_free) struct stream *s = stream_from_fd(ctx->loop, fd);
    AUTO(sbuf_release) struct sbuf body = { 0 }, head = { 0 };

    if (read_head(&limited, s, err) < 0 || tool_measure(&limited, t, err) < 0)
        return -1;
    as_text(&t->shims, &body);
    sbuf_addf(&head,
              "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
              "Content-Length: %zu\r\nConnection: close\r\n\r\n",
              body.len);
    if (stream_write_full(&limited, s, head.data, head.len, err) < 0)
        return -1;
    return stream_write_full(&limited, s, body.data, body.len, err);
}

static int serve(struct ctx *ctx, struct tool *t, const char *path, struct cancel *stop,
                 struct err *err)
{
    struct ctx until = ctx_with_cancel(ctx, stop);
    AUTO_FREE char *address = str_format("unix://%s", path);
    AUTO_FD int fd = -1;

    if (rpc_sock_listen(address, &fd, err) < 0)
        return -1;
    term_cancel_by_signals(t->loop, stop);
    while (loop_wait_fd(&until, fd, POLLIN, "a scraper", err) == 0) {
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        struct err lost = ERR_INIT;

        if (client >= 0 && answer(&until, t, client, &lost) < 0 && lost.code != ERR_CANCELLED)
            (void)tool_fail(0, "could not answer a scraper: %s", lost.msg);
    }
    (void)unlink(path);
    return err->code == ERR_CANCELLED ? 0 : -1;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    const char *where = t->opts.listen;
    struct cancel stop;
    int r;

    if (where && !str_starts(where, "unix:/"))
        return tool_fail(TOOL_USAGE, "--listen %s: must be unix:/PATH", where);
    if (where) {
        cancel_init(&stop, NULL);
        r = serve(ctx, t, where + strlen("unix:"), &stop, err);
        cancel_release(&stop);
        return r;
    }
    if (tool_measure(ctx, t, err) < 0)
        return -1;
    if (t->opts.json)
        t->json = as_json(&t->shims);
    else
        as_text(&t->shims, &t->out);
    return TOOL_OK;
}

const struct args_cmd metrics_command = {
    .name = "metrics",
    .summary = "Print metrics of all sandboxes for Prometheus.",
    .text = "docs/metrics.md explains each metric.",
    .exits = "1 if the metrics cannot be read",
    .opts = ARGS_OPTIONS({ "listen", 0, ARGS_STR, "unix:PATH", OPT(listen),
                           "serve them on this socket by HTTP, until ^C" },
                         OPT_JSON("print one JSON array on stdout instead")),
    .examples =
        ARGS_EXAMPLES({ "lcow metrics", "for the text-file collector of node_exporter" },
                      { "lcow metrics --listen unix:/run/lcow/metrics.sock", "for a scraper" }),
    .run = run,
};
