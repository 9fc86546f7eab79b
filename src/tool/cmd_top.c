/* cmd_top.c - `lcow top`: what each sandbox costs the host beside what its guest uses, live. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "tool/lib/cost.h"
#include "tool/lib/shims.h"
#include "tool/lib/term.h"
#include "tool/tool.h"
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define PAUSE_S 2
#define ONCE_PAUSE (500 * NS_PER_MS) /* between two looks at the CPU time */
#define MIB (UINT64_C(1) << 20)

struct top_opts {
    bool once, json;
    uint32_t seconds;
};

#define AT(f) offsetof(struct top_opts, f)
static const struct args_opt opts_table[] = {
    { "once", '1', ARGS_FLAG, NULL, AT(once), "print it once, without taking the screen" },
    { "delay", 'd', ARGS_NUMBER, "S", AT(seconds), "seconds between two looks (default: 2)",
      .min = 1, .max = 3600, .unit = "seconds" },
    { "json", 0, ARGS_FLAG, NULL, AT(json), "print one JSON array and end" },
};
static const struct args_example examples[] = {
    { "lcow top", "live; q ends it" },
    { "lcow top --once", "for a script or a report" },
};
static const struct args_cmd cmd = {
    .name = "top",
    .summary = "Show what each sandbox costs the host, live.",
    .synopsis = "[options]",
    .text = "HOST is the memory (PSS) of shim, QEMU and anchors, GUEST that of the containers as "
            "their guest counts it, MORE the difference: what the VM itself costs. CPU is the "
            "share of one processor. CALL is the age of the oldest call that the guest has not "
            "answered.\n"
            "\n"
            "Exit code: 0; 1 if a shim did not answer; 2 if this command line is wrong.",
    .opts = opts_table,
    .n_opts = ARRAY_LEN(opts_table),
    .examples = examples,
    .n_examples = ARRAY_LEN(examples),
};

/* ---- one look */

struct row {
    char *name, *state;
    struct cost cost;
    uint64_t oldest_call;
    double cpu; /* of one processor, since the look before; < 0: not known yet */
    bool answers;
    const struct shim *shim;
};
struct look {
    struct shims shims;
    struct row *v;
    size_t n;
};

static void look_release(struct look *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->v[i].name);
        free(l->v[i].state);
    }
    free(l->v);
    shims_release(&l->shims);
    *l = (struct look){ 0 };
}

static const struct row *same_row(const struct look *l, const struct row *r)
{
    for (size_t i = 0; i < l->n; i++)
        if (str_eq(l->v[i].name, r->name))
            return &l->v[i];
    return NULL;
}

static void describe(struct row *r, const struct shim *s)
{
    const json_t *vm = s->doc ? json_object_get(s->doc, "vm") : NULL;
    const char *state = json_string_value(json_object_get(vm, "state"));

    r->shim = s;
    r->name = str_format("%s/%s", s->ns, s->id);
    r->answers = s->doc;
    r->state = str_dup(!s->doc ? "no answer" : state ? state : "no VM");
    r->oldest_call = (uint64_t)json_integer_value(json_object_get(vm, "oldest_call_ns"));
}

/* Of one processor, between two looks at the same sandbox. */
static double cpu_between(const struct cost *old, const struct cost *now)
{
    if (now->at <= old->at || now->host_cpu_ns < old->host_cpu_ns)
        return -1;
    return (double)(now->host_cpu_ns - old->host_cpu_ns) / (double)(now->at - old->at);
}

static int look(struct ctx *ctx, struct tool *t, const struct look *before, struct look *ret,
                struct err *err)
{
    struct look l = { 0 };

    if (shims_list(t->config.run_root, &l.shims, err) < 0)
        return -1;
    shims_ask(ctx, &l.shims);
    l.n = l.shims.n;
    l.v = mem_zalloc((l.n + 1) * sizeof(*l.v));

    AUTO_FREE struct cost *costs = mem_zalloc((l.n + 1) * sizeof(*costs));
    struct ctx root = ctx_root(ctx->loop); /* each has its limit */

    cost_measure_all(&root, &l.shims, costs);
    for (size_t i = 0; i < l.n; i++) {
        struct row *r = &l.v[i];

        describe(r, &l.shims.v[i]);
        r->cost = costs[i];

        const struct row *old = before ? same_row(before, r) : NULL;

        r->cpu = old ? cpu_between(&old->cost, &r->cost) : -1;
    }
    *ret = l;
    return 0;
}

/* ---- as a table */

static void put_mib(struct sbuf *out, uint64_t bytes, bool known)
{
    if (known)
        sbuf_addf(out, " %7.1f", (double)bytes / (double)MIB);
    else
        sbuf_addf(out, " %7s", "-");
}

static void put_row(const struct row *r, struct sbuf *out)
{
    const struct cost *c = &r->cost;
    uint64_t host = cost_host_memory(c);

    sbuf_addf(out, "%-27.27s %-10.10s", r->name, r->state);
    put_mib(out, host, true);
    put_mib(out, c->guest_memory, c->guest);
    put_mib(out, host > c->guest_memory ? host - c->guest_memory : 0, c->guest);
    if (r->cpu < 0)
        sbuf_addf(out, " %5s", "-");
    else
        sbuf_addf(out, " %4.0f%%", r->cpu * 100);
    if (r->oldest_call == 0)
        sbuf_addf(out, " %7s\n", "-");
    else
        sbuf_addf(out, " %6.1fs\n", (double)r->oldest_call / 1e9);
}

static void put_table(const struct look *l, struct sbuf *out)
{
    sbuf_addf(out, "%-27s %-10s %7s %7s %7s %5s %7s\n", "SANDBOX", "VM", "HOST", "GUEST", "MORE",
              "CPU", "CALL");
    for (size_t i = 0; i < l->n; i++)
        put_row(&l->v[i], out);
    if (l->n == 0)
        sbuf_adds(out, "(no sandbox runs)\n");
}

static void put_json(const struct look *l, struct jsw *w)
{
    jsw_arr(w, NULL);
    for (size_t i = 0; i < l->n; i++) {
        const struct row *r = &l->v[i];

        jsw_obj(w, NULL);
        jsw_str(w, "namespace", r->shim->ns);
        jsw_str(w, "sandbox", r->shim->id);
        jsw_str(w, "state", r->state);
        jsw_u64(w, "shim_pss_bytes", r->cost.shim_pss);
        jsw_u64(w, "vmm_pss_bytes", r->cost.vmm_pss);
        jsw_u64(w, "anchors_pss_bytes", r->cost.anchors_pss);
        jsw_u64(w, "host_cpu_ns", r->cost.host_cpu_ns);
        if (r->cpu >= 0)
            jsw_f64(w, "cpu", r->cpu);
        if (r->cost.guest) {
            jsw_u64(w, "guest_memory_bytes", r->cost.guest_memory);
            jsw_u64(w, "guest_cpu_ns", r->cost.guest_cpu_ns);
        }
        jsw_u64(w, "oldest_call_ns", r->oldest_call);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
    sbuf_addc(&w->out, '\n');
}

static bool all_answer(const struct look *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (!l->v[i].answers)
            return false;
    return true;
}

/* ---- once */

static int print_once(struct ctx *ctx, struct tool *t, bool json, struct err *err)
{
    AUTO(jsw_release) struct jsw w;
    struct look first = { 0 }, second = { 0 };
    int code;

    jsw_init(&w, JSW_PLAIN);
    if (look(ctx, t, NULL, &first, err) < 0)
        return -1;
    if (first.n > 0 && fiber_sleep(ctx, ONCE_PAUSE, err) < 0) {
        look_release(&first);
        return -1;
    }
    if (look(ctx, t, &first, &second, err) < 0) {
        look_release(&first);
        return -1;
    }
    if (json)
        put_json(&second, &w);
    else
        put_table(&second, &w.out);
    tool_print(STDOUT_FILENO, w.out.data);
    code = all_answer(&second) ? TOOL_OK : TOOL_FAILED;
    look_release(&first);
    look_release(&second);
    return code;
}

/* ---- live */

/* Cut to the terminal: a line that wraps would move all below it. */
static void draw(const struct look *l, uint32_t seconds)
{
    AUTO(sbuf_release) struct sbuf table = { 0 }, out = { 0 };
    uint16_t rows = 24, cols = 80, n = 1;

    (void)term_size(&rows, &cols);
    put_table(l, &table);
    sbuf_addf(&out, "\033[H%.*s\033[K", (int)cols, "lcow top - q ends it");
    if (cols > 60)
        sbuf_addf(&out, ", %u s between two looks; memory in MiB", seconds);
    for (const char *line = table.data; *line && n < rows; n++) {
        const char *end = strchr(line, '\n');
        int len = (int)(end - line);

        sbuf_addf(&out, "\r\n%.*s\033[K", len < cols ? len : cols, line);
        line = end + 1;
    }
    sbuf_adds(&out, "\033[J");
    tool_print(STDOUT_FILENO, out.data);
}

struct live {
    const struct look *shown; /* NULL: nothing yet */
    uint32_t seconds;
    struct cancel stop;
};

/* The terminal is to be given back as it was: nobody dies of these at once. */
static void on_end(void *arg, const struct signalfd_siginfo *info)
{
    struct live *v = arg;

    (void)info;
    cancel_fire(&v->stop, ERR_CANCELLED, "a signal");
}

static void on_resize(void *arg, const struct signalfd_siginfo *info)
{
    const struct live *v = arg;

    (void)info;
    if (v->shown)
        draw(v->shown, v->seconds);
}

/* Until a key, or until it is time to look again. *ret_quit: the key was one that ends. */
static int await_key(struct ctx *ctx, uint64_t until, bool *ret_quit, struct err *err)
{
    struct ctx limited = *ctx;
    char keys[16];

    limited.deadline = until;
    *ret_quit = false;
    if (loop_wait_fd(&limited, STDIN_FILENO, POLLIN, "a key", err) < 0) {
        if (err->code != ERR_DEADLINE)
            return -1;
        err_clear(err);
        return 0;
    }

    ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));

    for (ssize_t i = 0; i < n; i++)
        *ret_quit = *ret_quit || keys[i] == 'q' || keys[i] == 'Q' || keys[i] == 3;
    *ret_quit = *ret_quit || n <= 0; /* the terminal is gone */
    return 0;
}

static int watch(struct ctx *ctx, struct tool *t, struct live *live, struct err *err)
{
    struct look before = { 0 }, now;
    bool quit = false;
    int r = 0;

    live->shown = &before;
    while (r == 0 && !quit) {
        r = look(ctx, t, before.v ? &before : NULL, &now, err);
        if (r < 0)
            break;
        look_release(&before);
        before = now;
        draw(&before, live->seconds);
        r = await_key(ctx, loop_now(ctx->loop) + live->seconds * NS_PER_S, &quit, err);
    }
    live->shown = NULL;
    look_release(&before);
    return r;
}

static int live_screen(struct ctx *ctx, struct tool *t, struct live *live, struct err *err)
{
    static const int ends[] = { SIGTERM, SIGINT, SIGHUP };
    struct ctx until = ctx_with_cancel(ctx, &live->stop);
    int r;

    (void)loop_on_signal(t->loop, SIGWINCH, on_resize, live); /* else the next look draws anew */
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        (void)loop_on_signal(t->loop, ends[i], on_end, live);
    r = term_raw();

    if (r < 0)
        return err_sys(err, -r, "the terminal");
    tool_print(STDOUT_FILENO, "\033[?1049h\033[?25l\033[2J");
    r = watch(&until, t, live, err);
    tool_print(STDOUT_FILENO, "\033[?25h\033[?1049l");
    term_restore();
    return live->stop.fired ? 0 : r;
}

static int top_run(struct ctx *ctx, struct tool *t, char **argv)
{
    struct top_opts o = { .seconds = PAUSE_S };
    struct live live = { 0 }; /* here, since its handlers stay as long as the loop */
    struct args_rest rest;
    struct err err = ERR_INIT;
    int code;

    if (!tool_begin(t, &cmd, &o, argv, &rest, &code))
        return code;
    if (o.once || o.json) {
        code = print_once(ctx, t, o.json, &err);
        return code < 0 ? tool_fail(TOOL_FAILED, "%s", err.msg) : code;
    }
    if (!term_is(STDOUT_FILENO) || !isatty(STDIN_FILENO))
        return tool_fail(TOOL_USAGE, "top needs a terminal; without one: lcow top --once");
    live.seconds = o.seconds;
    cancel_init(&live.stop, ctx->cancel);
    code = live_screen(ctx, t, &live, &err);
    cancel_release(&live.stop);
    if (code < 0)
        return tool_fail(TOOL_FAILED, "%s", err.msg);
    return TOOL_OK;
}

const struct tool_command top_command = { .cmd = &cmd, .run = top_run };
