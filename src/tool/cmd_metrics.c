/* cmd_metrics.c - `lcow metrics`: all sandboxes of this host as Prometheus text, once or served on
 * a unix socket (a node's collector reads it; nothing of ours listens on a network). */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/rpc/rpc_sock.h"
#include "tool/lib/cost.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_LIMIT (5 * NS_PER_S)
#define REQUEST_MAX 8192u

struct metrics_opts {
    const char *listen;
    bool json;
};

#define AT(f) offsetof(struct metrics_opts, f)
static const struct args_opt opts_table[] = {
    { "listen", 0, ARGS_STR, "unix:PATH", AT(listen), "serve it there by HTTP, until ^C" },
    { "json", 0, ARGS_FLAG, NULL, AT(json), "print one JSON array on stdout instead" },
};
static const struct args_example examples[] = {
    { "lcow metrics", "for the text-file collector of node_exporter" },
    { "lcow metrics --listen unix:/run/lcow/metrics.sock", "for a scraper" },
};
static const struct args_cmd cmd = {
    .name = "metrics",
    .summary = "Print figures of all sandboxes for Prometheus.",
    .synopsis = "[options]",
    .text = "What each one means is in docs/metrics.md.\n"
            "\n"
            "Exit code: 0; 1 if they cannot be read; 2 if this command line is wrong.",
    .opts = opts_table,
    .n_opts = ARRAY_LEN(opts_table),
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

/* ---- the figures */

struct sample {
    const struct shim *shim;
    struct cost cost;
};

static const json_t *vm_of(const struct sample *s)
{
    return s->shim->doc ? json_object_get(s->shim->doc, "vm") : NULL;
}

static double vm_number(const struct sample *s, const char *key)
{
    return (double)json_integer_value(json_object_get(vm_of(s), key));
}

static double counter(const struct sample *s, const char *key)
{
    const json_t *c = s->shim->doc ? json_object_get(s->shim->doc, "counters") : NULL;

    return (double)json_integer_value(json_object_get(c, key));
}

static double up(const struct sample *s)
{
    return s->shim->doc ? 1 : 0;
}
static double running(const struct sample *s)
{
    return str_eq(json_string_value(json_object_get(vm_of(s), "state")), "Running");
}
static double emulated(const struct sample *s)
{
    return json_is_true(json_object_get(vm_of(s), "emulated"));
}
static double clone_(const struct sample *s)
{
    return json_is_true(json_object_get(vm_of(s), "clone"));
}
static double memory(const struct sample *s)
{
    return vm_number(s, "memory_mib") * 1024 * 1024;
}
static double cpus(const struct sample *s)
{
    return vm_number(s, "cpus");
}
static double started(const struct sample *s)
{
    return vm_number(s, "started_ns") / 1e9;
}
static double oldest_call(const struct sample *s)
{
    return vm_number(s, "oldest_call_ns") / 1e9;
}
static double containers(const struct sample *s)
{
    const json_t *list = s->shim->doc ? json_object_get(s->shim->doc, "containers") : NULL;

    return (double)json_array_size(list);
}
static double disks(const struct sample *s)
{
    return (double)json_array_size(json_object_get(vm_of(s), "disks"));
}
static double shares(const struct sample *s)
{
    return (double)json_array_size(json_object_get(vm_of(s), "shares"));
}
static double shim_memory(const struct sample *s)
{
    return (double)s->cost.shim_pss;
}
static double vmm_memory(const struct sample *s)
{
    return (double)s->cost.vmm_pss;
}
static double anchors_memory(const struct sample *s)
{
    return (double)s->cost.anchors_pss;
}
static double host_cpu(const struct sample *s)
{
    return (double)s->cost.host_cpu_ns / 1e9;
}
static double guest_answers(const struct sample *s)
{
    return s->cost.guest;
}
static double guest_memory(const struct sample *s)
{
    return (double)s->cost.guest_memory;
}
static double guest_cpu(const struct sample *s)
{
    return (double)s->cost.guest_cpu_ns / 1e9;
}
static double lost_bytes(const struct sample *s)
{
    return counter(s, "stdio_lost_bytes");
}
static double log_lost(const struct sample *s)
{
    return counter(s, "log_lines_dropped");
}
static double events_waiting(const struct sample *s)
{
    return counter(s, "events_pending");
}
static double events_lost(const struct sample *s)
{
    return counter(s, "events_dropped");
}

static const struct metric {
    const char *name, *type, *help;
    double (*of)(const struct sample *s);
} metrics[] = {
    { "lcow_shim_up", "gauge", "1 if the shim answers", up },
    { "lcow_vm_running", "gauge", "1 if the VM runs", running },
    { "lcow_vm_emulated", "gauge", "1 without hardware virtualization: no security boundary",
      emulated },
    { "lcow_vm_clone", "gauge", "1 if it was started from a template", clone_ },
    { "lcow_vm_memory_bytes", "gauge", "what the VM was given", memory },
    { "lcow_vm_cpus", "gauge", "vCPUs of the VM", cpus },
    { "lcow_vm_start_time_seconds", "gauge", "since 1970", started },
    { "lcow_vm_disks", "gauge", "disks attached", disks },
    { "lcow_vm_shares", "gauge", "directories shared", shares },
    { "lcow_containers", "gauge", "containers the shim knows", containers },
    { "lcow_guest_oldest_call_seconds", "gauge", "age of the oldest call without an answer",
      oldest_call },
    { "lcow_host_shim_pss_bytes", "gauge", "memory of the shim", shim_memory },
    { "lcow_host_vmm_pss_bytes", "gauge", "memory of QEMU, the guest's included", vmm_memory },
    { "lcow_host_anchors_pss_bytes", "gauge", "memory of the containers' anchors", anchors_memory },
    { "lcow_host_cpu_seconds_total", "counter", "CPU time of shim and QEMU", host_cpu },
    { "lcow_guest_up", "gauge", "1 if the guest tells its figures", guest_answers },
    { "lcow_guest_memory_bytes", "gauge", "memory of the containers, as the guest counts it",
      guest_memory },
    { "lcow_guest_cpu_seconds_total", "counter", "CPU time of the containers", guest_cpu },
    { "lcow_stdio_lost_bytes_total", "counter", "output that reached nobody", lost_bytes },
    { "lcow_log_lines_dropped_total", "counter", "log lines that containerd did not take",
      log_lost },
    { "lcow_events_pending", "gauge", "events containerd has not taken yet", events_waiting },
    { "lcow_events_dropped_total", "counter", "events given up", events_lost },
};

static int gather(struct ctx *ctx, struct tool *t, struct shims *shims, struct sample **ret,
                  struct err *err)
{
    if (shims_list(t->config.run_root, shims, err) < 0)
        return -1;
    shims_ask(ctx, shims);

    AUTO_FREE struct cost *costs = mem_zalloc((shims->n + 1) * sizeof(*costs));
    struct sample *v = mem_zalloc((shims->n + 1) * sizeof(*v));

    cost_measure_all(ctx, shims, costs);
    for (size_t i = 0; i < shims->n; i++)
        v[i] = (struct sample){ &shims->v[i], costs[i] };
    *ret = v;
    return 0;
}

static void as_text(const struct sample *v, size_t n, struct sbuf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(metrics); i++) {
        sbuf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", metrics[i].name, metrics[i].help,
                  metrics[i].name, metrics[i].type);
        for (size_t k = 0; k < n; k++)
            sbuf_addf(out, "%s{namespace=\"%s\",sandbox=\"%s\"} %.15g\n", metrics[i].name,
                      v[k].shim->ns, v[k].shim->id, metrics[i].of(&v[k]));
    }
}

static void as_json(const struct sample *v, size_t n, struct jsw *w)
{
    jsw_arr(w, NULL);
    for (size_t k = 0; k < n; k++) {
        jsw_obj(w, NULL);
        jsw_str(w, "namespace", v[k].shim->ns);
        jsw_str(w, "sandbox", v[k].shim->id);
        for (size_t i = 0; i < ARRAY_LEN(metrics); i++)
            jsw_f64(w, metrics[i].name, metrics[i].of(&v[k]));
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
    sbuf_addc(&w->out, '\n');
}

static int collect(struct ctx *ctx, struct tool *t, bool json, struct sbuf *out, struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    AUTO_FREE struct sample *v = NULL;
    AUTO(jsw_release) struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    if (gather(ctx, t, &shims, &v, err) < 0)
        return -1;
    if (json)
        as_json(v, shims.n, &w);
    else
        as_text(v, shims.n, &w.out);
    sbuf_adds(out, w.out.data ? w.out.data : "");
    return 0;
}

/* ---- served */

/* To the blank line that ends a request's head. */
static int read_head(struct ctx *ctx, struct stream *s, struct err *err)
{
    AUTO(sbuf_release) struct sbuf head = { 0 };
    char buf[512];
    size_t n;

    while (!head.data || !strstr(head.data, "\r\n\r\n")) {
        if (head.len > REQUEST_MAX)
            return err_set(err, ERR_INVALID, "a request without end");
        if (stream_read(ctx, s, buf, sizeof(buf), &n, err) < 0)
            return -1;
        if (n == 0)
            return err_set(err, ERR_UNAVAILABLE, "the client has gone");
        sbuf_add(&head, buf, n);
    }
    return 0;
}

static int answer(struct ctx *ctx, struct tool *t, int fd, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, REQUEST_LIMIT);
    AUTO(stream_free) struct stream *s = stream_from_fd(ctx->loop, fd);
    AUTO(sbuf_release) struct sbuf body = { 0 }, head = { 0 };

    if (read_head(&limited, s, err) < 0 || collect(&limited, t, false, &body, err) < 0)
        return -1;
    sbuf_addf(&head,
              "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
              "Content-Length: %zu\r\nConnection: close\r\n\r\n",
              body.len);
    if (stream_write_full(&limited, s, head.data, head.len, err) < 0)
        return -1;
    return stream_write_full(&limited, s, body.data ? body.data : "", body.len, err);
}

static void on_stop(void *arg, const struct signalfd_siginfo *info)
{
    (void)info;
    cancel_fire(arg, ERR_CANCELLED, "a signal");
}

static int serve(struct ctx *ctx, struct tool *t, const char *path, struct cancel *stop,
                 struct err *err)
{
    struct ctx until = ctx_with_cancel(ctx, stop);
    AUTO_FREE char *address = str_format("unix://%s", path);
    AUTO_FD int fd = -1;

    if (rpc_sock_listen(address, &fd, err) < 0)
        return -1;
    (void)loop_on_signal(t->loop, SIGINT, on_stop, stop);
    (void)loop_on_signal(t->loop, SIGTERM, on_stop, stop);
    while (loop_wait_fd(&until, fd, POLLIN, "a scraper", err) == 0) {
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        struct err lost = ERR_INIT;

        if (client >= 0 && answer(&until, t, client, &lost) < 0 && lost.code != ERR_CANCELLED)
            (void)tool_fail(0, "a scraper was not answered: %s", lost.msg);
    }
    (void)unlink(path);
    return err->code == ERR_CANCELLED ? 0 : -1;
}

static int metrics_run(struct ctx *ctx, struct tool *t, char **argv)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct metrics_opts o = { 0 };
    struct args_rest rest;
    struct err err = ERR_INIT;
    struct cancel stop;
    int code, r;

    if (!tool_begin(t, &cmd, &o, argv, &rest, &code))
        return code;
    if (o.listen) {
        if (!str_starts(o.listen, "unix:/"))
            return tool_fail(TOOL_USAGE, "--listen %s: unix:/PATH is needed", o.listen);
        cancel_init(&stop, NULL);
        r = serve(ctx, t, o.listen + strlen("unix:"), &stop, &err);
        cancel_release(&stop);
        return r < 0 ? tool_fail(TOOL_FAILED, "%s", err.msg) : TOOL_OK;
    }
    if (collect(ctx, t, o.json, &out, &err) < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    tool_print(STDOUT_FILENO, out.data);
    return TOOL_OK;
}

const struct tool_command metrics_command = { .cmd = &cmd, .run = metrics_run };
