/* cmd_logs.c - `lcow logs`: the logs of shim, agent and guest kernel about one sandbox, in the
 * order of time; `lcow events`: the events sent to containerd. Both read the journals (reading.h).
 */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "tool/lib/reading.h"
#include "tool/lib/term.h"
#include "tool/tool.h"
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* Interval for checking whether the shim was killed or our reader is gone: neither is signalled. */
#define LOOK_AGAIN NS_PER_S

/* ---- one line */

struct printing {
    bool wanted[LINE_SOURCE_COUNT];
    bool named;            /* also lines that name a container: */
    const char *container; /* the container; NULL: any */
    bool json, colour, whose;
};

static bool names(const struct line *l, const char *container)
{
    const char *cid = doc_text(l->doc, "cid");

    if (!container)
        return cid[0];
    return str_eq(cid, container) || strstr(doc_text(l->doc, "fields"), container);
}

static bool is_wanted(const struct printing *p, const struct line *l)
{
    return p->wanted[l->source] || (p->named && names(l, p->container));
}

static bool is_told_already(const char *key)
{
    static const char *const keys[] = { "time", "at",     "level", "msg",
                                        "text", "source", "event", "fields" };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (str_eq(key, keys[i]))
            return true;
    return false;
}

static void put_words(struct sbuf *out, const char *text)
{
    AUTO_FREE char *safe = str_printable(text);

    sbuf_adds(out, safe);
}

static void put_fields(struct sbuf *out, const struct line *l)
{
    const char *more = doc_text(l->doc, "fields");
    const char *key;
    json_t *value;

    json_object_foreach(l->doc, key, value)
    {
        AUTO_FREE char *dumped = NULL;
        const char *text = json_string_value(value);

        if (is_told_already(key) || (text && json_string_length(value) == 0))
            continue;
        if (!text || !text[0]) /* not a string, or a string that begins with NUL */
            text = dumped = js_text(value, 0);
        sbuf_addf(out, " %s=", key);
        put_words(out, text);
    }
    if (more[0]) {
        sbuf_addc(out, ' ');
        put_words(out, more);
    }
}

static const char *colour_of(const struct line *l)
{
    static const char *const colours[LINE_SOURCE_COUNT] = { [LINE_SHIM] = "\033[36m",
                                                            [LINE_AGENT] = "\033[32m",
                                                            [LINE_KERNEL] = "\033[33m",
                                                            [LINE_EVENT] = "\033[35m",
                                                            [LINE_OUTPUT] = "\033[34m" };

    return str_eq(l->level, "error") ? "\033[31m" : colours[l->source];
}

static void put_line(const struct printing *p, const struct line *l, struct sbuf *out)
{
    if (p->json) {
        AUTO_FREE char *text = js_text(l->doc, 0);

        sbuf_addf(out, "%s\n", text);
        return;
    }
    /* "02:41:24.123" of "2026-11-16T02:41:24.123456789Z" */
    sbuf_addf(out, "%.12s %s%-6s%s ", strlen(l->time) > 22 ? l->time + 11 : l->time,
              p->colour ? colour_of(l) : "", line_source_names[l->source],
              p->colour ? "\033[0m" : "");
    if (p->whose)
        sbuf_addf(out, "%s/%.13s ", l->ns, l->id);
    if (l->source == LINE_OUTPUT) {
        sbuf_addf(out, "%.20s: %s\n", doc_text(l->doc, "container"), l->text);
        return;
    }
    if (l->source == LINE_EVENT) {
        put_words(out, doc_text(l->doc, "event"));
    } else {
        sbuf_addf(out, "%-5s ", l->level);
        put_words(out, l->text);
    }
    put_fields(out, l);
    sbuf_addc(out, '\n');
}

/* ---- following */

/* Prints the last `limit` new lines that match; 0: all. */
static int put_more(struct tool *t, struct readings *r, const struct printing *p, uint32_t limit,
                    struct err *err)
{
    AUTO(lines_release) struct lines lines = { 0 };
    size_t n = 0;

    if (readings_more(r, &lines, err) < 0)
        return -1;
    for (size_t i = 0; i < lines.n; i++)
        n += is_wanted(p, &lines.v[i]);
    for (size_t i = 0; i < lines.n; i++)
        if (is_wanted(p, &lines.v[i]) && (!limit || n-- <= limit))
            put_line(p, &lines.v[i], &t->out);
    return 0;
}

static bool is_over(struct readings *r, struct err *err)
{
    AUTO(readings_release) struct readings now;
    AUTO_FREE char *word = str_format("%s/%s", r->v[0]->ns, r->v[0]->id);

    readings_init(&now, r->run_root);
    return readings_add(&now, word, err) < 0 || !now.v[0]->alive;
}

/* all: new sandboxes are included, and following ends only when lcow or its reader exits. */
static int follow(struct ctx *ctx, struct tool *t, struct readings *r, const struct printing *p,
                  bool all, struct err *err)
{
    AUTO_FD int fd = -1;
    char news[4096];

    if (readings_watch(r, &fd, err) < 0)
        return -1;
    for (;;) {
        struct err ignored = ERR_INIT;
        bool over = !all && is_over(r, &ignored);

        if ((all && readings_add(r, NULL, err) < 0) || put_more(t, r, p, 0, err) < 0)
            return -1;
        tool_flush(t);
        if (over || fd_ready_now(STDOUT_FILENO, 0) & (POLLERR | POLLHUP))
            return 0;

        struct ctx limited = ctx_with_timeout(ctx, LOOK_AGAIN);

        if (loop_wait_fd(&limited, fd, POLLIN, "new log lines", err) < 0) {
            if (err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0)
                return -1;
            err_clear(err);
        }
        while (read(fd, news, sizeof(news)) > 0)
            ;
    }
}

/* ---- logs */

static int logs_run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(readings_release) struct readings r = { 0 };
    AUTO(sbuf_release) struct sbuf untold = { 0 };
    const struct tool_opts *o = &t->opts;
    bool any = o->shim || o->agent || o->kernel || o->container;
    struct printing p = { .wanted = { [LINE_SHIM] = !any || o->shim,
                                      [LINE_AGENT] = !any || o->agent,
                                      [LINE_KERNEL] = !any || o->kernel,
                                      [LINE_EVENT] = !any,
                                      [LINE_OUTPUT] = !any },
                          .named = o->container,
                          .json = o->json,
                          .colour = term_is(STDOUT_FILENO) };

    readings_init(&r, t->config.run_root);
    if (tool_list(ctx, t, err) < 0 ||
        readings_find(&r, &t->shims, t->rest.argv[0], &t->shim, &p.container, err) < 0)
        return -1;

    const json_t *list = t->shim ? json_object_get(t->shim->doc, "containers") : NULL;

    for (size_t i = 0; i < json_array_size(list); i++)
        readings_tell(&r, json_array_get(list, i));
    r.with_output = (!any && !o->no_output) || o->container;
    if (put_more(t, &r, &p, o->lines, err) < 0)
        return -1;
    if (o->container) {
        tool_flush(t);
        readings_untold(&r, p.container, &untold);
        tool_print(STDERR_FILENO, untold.data ? untold.data : "");
    }
    return o->follow ? follow(ctx, t, &r, &p, false, err) : TOOL_OK;
}

const struct args_cmd logs_command = {
    .name = "logs",
    .summary = "Print the logs of shim, agent, guest kernel and containers.",
    .text = "The lines are in the order of time; the guest's times are converted to the host's "
            "clock. lcow keeps the last 256–512 KiB of each sandbox, and the logs of the last 32 "
            "sandboxes that failed. A container's output is read from the file of the CRI or of a "
            "file:// URI (the last MiB); output to a FIFO is not available.",
    .exits = "1 if there is no log of it",
    .opts = ARGS_OPTIONS(
        { "follow", 'f', ARGS_FLAG, NULL, OPT(follow), "print new lines until the sandbox stops" },
        { "lines", 'n', ARGS_NUMBER, "N", OPT(lines), "print the last N lines only (default: all)",
          .min = 1, .max = 1000000 },
        { "shim", 0, ARGS_FLAG, NULL, OPT(shim), "only the shim's lines; may be combined" },
        { "agent", 0, ARGS_FLAG, NULL, OPT(agent), "only the agent's lines" },
        { "kernel", 0, ARGS_FLAG, NULL, OPT(kernel), "only the guest kernel's lines" },
        { "container", 0, ARGS_FLAG, NULL, OPT(container),
          "only output of containers, and lines about them" },
        OPT_JSON("print one JSON object per line")),
    .takes_id = true,
    .examples =
        ARGS_EXAMPLES({ "lcow logs 4f2a9", "print all, also of a sandbox that failed and is gone" },
                      { "lcow logs -f --kernel 4f2a9", "follow the guest kernel's log" },
                      { "lcow logs -f --container 77b01", "follow one container" }),
    .run = logs_run,
};

/* ---- events */

static int events_run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(readings_release) struct readings r = { 0 };
    const struct printing p = { .wanted = { [LINE_EVENT] = true },
                                .json = t->opts.json,
                                .whose = true,
                                .colour = term_is(STDOUT_FILENO) };

    readings_init(&r, t->config.run_root);
    if (readings_add(&r, NULL, err) < 0 || put_more(t, &r, &p, 0, err) < 0)
        return -1;
    return t->opts.follow ? follow(ctx, t, &r, &p, true, err) : TOOL_OK;
}

const struct args_cmd events_command = {
    .name = "events",
    .summary = "Print the events of all sandboxes that were sent to containerd.",
    .text = "Prints events of running sandboxes, and of those that failed.",
    .exits = "1 if the events cannot be read",
    .opts =
        ARGS_OPTIONS({ "follow", 'f', ARGS_FLAG, NULL, OPT(follow), "print new events until ^C" },
                     OPT_JSON("print one JSON object per line")),
    .examples = ARGS_EXAMPLES({ "lcow events -f", "follow the events of this host" }),
    .run = events_run,
};
