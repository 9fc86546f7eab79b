/* cmd_top.c - `lcow top`: the resources that each sandbox uses on the host and in its guest, live.
 */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "tool/lib/term.h"
#include "tool/tool.h"
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define PAUSE_S 2
#define ONCE_PAUSE (500 * NS_PER_MS) /* between two measurements of the CPU time */
#define MIB (UINT64_C(1) << 20)

/* ---- one measurement */

/* CPU use as a fraction of one processor since the last measurement; < 0: not known yet. */
static double cpu_since(const struct shims *before, const struct shim *now)
{
    for (size_t i = 0; i < before->n; i++) {
        const struct shim *old = &before->v[i];

        if (!str_eq(old->ns, now->ns) || !str_eq(old->id, now->id))
            continue;
        if (now->cost.at <= old->cost.at || now->cost.host_cpu_ns < old->cost.host_cpu_ns)
            return -1;
        return (double)(now->cost.host_cpu_ns - old->cost.host_cpu_ns) /
               (double)(now->cost.at - old->cost.at);
    }
    return -1;
}

static const char *state_of(const struct shim *s)
{
    const char *state = doc_text(json_object_get(s->doc, "vm"), "state");

    return !s->doc ? "no answer" : state[0] ? state : "no VM";
}

static uint64_t oldest_call(const struct shim *s)
{
    return doc_number(json_object_get(s->doc, "vm"), "oldest_call_ns");
}

/* ---- as a table */

static void put_mib(struct sbuf *out, uint64_t bytes, bool known)
{
    if (known)
        sbuf_addf(out, " %7.1f", (double)bytes / (double)MIB);
    else
        sbuf_addf(out, " %7s", "-");
}

static void put_row(const struct shim *s, double cpu, struct sbuf *out)
{
    AUTO_FREE char *name = str_format("%s/%s", s->ns, s->id);
    const struct cost *c = &s->cost;
    uint64_t host = cost_host_memory(c), call = oldest_call(s);

    sbuf_addf(out, "%-27.27s %-10.10s", name, state_of(s));
    put_mib(out, host, true);
    put_mib(out, c->guest_memory, c->guest);
    put_mib(out, host > c->guest_memory ? host - c->guest_memory : 0, c->guest);
    if (cpu < 0)
        sbuf_addf(out, " %5s", "-");
    else
        sbuf_addf(out, " %4.0f%%", cpu * 100);
    if (call == 0)
        sbuf_addf(out, " %7s\n", "-");
    else
        sbuf_addf(out, " %6.1fs\n", (double)call / 1e9);
}

static void put_table(const struct shims *before, const struct shims *now, struct sbuf *out)
{
    sbuf_addf(out, "%-27s %-10s %7s %7s %7s %5s %7s\n", "SANDBOX", "VM", "HOST", "GUEST", "MORE",
              "CPU", "CALL");
    for (size_t i = 0; i < now->n; i++)
        put_row(&now->v[i], cpu_since(before, &now->v[i]), out);
    if (now->n == 0)
        sbuf_adds(out, "(no sandbox is running)\n");
}

static json_t *as_json(const struct shims *before, const struct shims *now)
{
    json_t *all = json_array();

    for (size_t i = 0; i < now->n; i++) {
        const struct shim *s = &now->v[i];
        double cpu = cpu_since(before, s);
        json_t *one = json_pack(
            "{so so ss sI sI sI sI}", "namespace", doc_string(s->ns), "sandbox", doc_string(s->id),
            "state", state_of(s), "shim_pss_bytes", (json_int_t)s->cost.shim_pss, "vmm_pss_bytes",
            (json_int_t)s->cost.vmm_pss, "anchors_pss_bytes", (json_int_t)s->cost.anchors_pss,
            "host_cpu_ns", (json_int_t)s->cost.host_cpu_ns);

        if (cpu >= 0)
            json_object_set_new(one, "cpu", json_real(cpu));
        if (s->cost.guest) {
            json_object_set_new(one, "guest_memory_bytes",
                                json_integer((json_int_t)s->cost.guest_memory));
            json_object_set_new(one, "guest_cpu_ns",
                                json_integer((json_int_t)s->cost.guest_cpu_ns));
        }
        json_object_set_new(one, "oldest_call_ns", json_integer((json_int_t)oldest_call(s)));
        json_array_append_new(all, one);
    }
    return all;
}

/* ---- once */

static int print_once(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(shims_release) struct shims first = { 0 };
    int code = TOOL_OK;

    if (tool_measure(ctx, t, err) < 0)
        return -1;
    first = t->shims;
    t->shims = (struct shims){ 0 };
    if ((first.n > 0 && fiber_sleep(ctx, ONCE_PAUSE, err) < 0) || tool_measure(ctx, t, err) < 0)
        return -1;
    if (t->opts.json)
        t->json = as_json(&first, &t->shims);
    else
        put_table(&first, &t->shims, &t->out);
    for (size_t i = 0; i < t->shims.n; i++)
        code = t->shims.v[i].doc ? code : TOOL_FAILED;
    return code;
}

/* ---- live */

struct live {
    struct shims before;
    const struct shims *now;
    bool drawn;
    uint32_t seconds;
    struct cancel stop;
};

/* Lines are cut at the terminal's width: a wrapped line would move all lines below it. */
static void draw(const struct live *v)
{
    AUTO(sbuf_release) struct sbuf table = { 0 }, out = { 0 };
    uint16_t rows = 24, cols = 80, n = 1;

    (void)term_size(&rows, &cols);
    put_table(&v->before, v->now, &table);
    sbuf_addf(&out, "\033[H%.*s\033[K", (int)cols, "lcow top - q quits");
    if (cols > 60)
        sbuf_addf(&out, ", updated every %u s; memory in MiB", v->seconds);
    for (const char *line = table.data; *line && n < rows; n++) {
        const char *end = strchr(line, '\n');
        int len = (int)(end - line);

        sbuf_addf(&out, "\r\n%.*s\033[K", len < cols ? len : cols, line);
        line = end + 1;
    }
    sbuf_adds(&out, "\033[J");
    tool_print(STDOUT_FILENO, out.data);
}

static void on_resize(void *arg, const struct signalfd_siginfo *info)
{
    const struct live *v = arg;

    (void)info;
    if (v->drawn)
        draw(v);
}

/* Waits for a key or for the next update. *ret_quit: the key was q or ^C. */
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
    bool quit = false;

    while (!quit) {
        shims_release(&live->before);
        live->before = t->shims;
        t->shims = (struct shims){ 0 };
        live->drawn = false; /* on_resize must not redraw while the shims are queried */
        if (tool_measure(ctx, t, err) < 0)
            return -1;
        live->drawn = true;
        draw(live);
        if (await_key(ctx, loop_now(ctx->loop) + live->seconds * NS_PER_S, &quit, err) < 0)
            return -1;
    }
    return 0;
}

static int live_screen(struct ctx *ctx, struct tool *t, struct live *live, struct err *err)
{
    struct ctx until = ctx_with_cancel(ctx, &live->stop);
    int r;

    (void)loop_on_signal(t->loop, SIGWINCH, on_resize,
                         live);                   /* optional: the next update redraws as well */
    term_cancel_by_signals(t->loop, &live->stop); /* so that the terminal is restored first */
    r = term_raw();

    if (r < 0)
        return err_sys(err, -r, "set up the terminal");
    tool_print(STDOUT_FILENO, "\033[?1049h\033[?25l\033[2J");
    r = watch(&until, t, live, err);
    tool_print(STDOUT_FILENO, "\033[?25h\033[?1049l");
    term_restore();
    return live->stop.fired ? 0 : r;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct live live = { .now = &t->shims, .seconds = t->opts.seconds ? t->opts.seconds : PAUSE_S };
    int r;

    if (t->opts.once || t->opts.json)
        return print_once(ctx, t, err);
    if (!term_is(STDOUT_FILENO) || !isatty(STDIN_FILENO))
        return tool_fail(TOOL_USAGE,
                         "top needs a terminal; without a terminal use: lcow top --once");
    cancel_init(&live.stop, ctx->cancel);
    r = live_screen(ctx, t, &live, err);
    live.drawn = false; /* the signal handler stays as long as the loop */
    cancel_release(&live.stop);
    shims_release(&live.before);
    return r;
}

const struct args_cmd top_command = {
    .name = "top",
    .summary = "Show the resources that each sandbox uses, live.",
    .text = "HOST is the memory (PSS) of shim, QEMU and anchors. GUEST is the memory of the "
            "containers, "
            "as their guest reports it. MORE is the difference: the overhead of the VM. CPU is in "
            "percent of one processor. CALL is the age of the oldest unanswered call to the guest.",
    .exits = "1 if a shim did not answer",
    .opts = ARGS_OPTIONS({ "once", '1', ARGS_FLAG, NULL, OPT(once),
                           "print the table once, without the live screen" },
                         { "delay", 'd', ARGS_NUMBER, "S", OPT(seconds),
                           "seconds between updates (default: 2)", .min = 1, .max = 3600,
                           .unit = "seconds" },
                         OPT_JSON("print one JSON array and exit")),
    .examples = ARGS_EXAMPLES({ "lcow top", "show it live; q quits" },
                              { "lcow top --once", "print it once, for a script" }),
    .run = run,
};
