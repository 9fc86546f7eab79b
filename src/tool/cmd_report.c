/* cmd_report.c - `lcow report`: one archive with all that helps to find a fault of ours. Nothing in
 * it holds a secret: environments, command lines and annotations are scrubbed where they are
 * logged, and are in none of the documents. */
#include "tool/cmd_report.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/shims.h"
#include "tool/tool.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define BLOCK 512u
#define OCTAL_11 077777777777ull /* what a field of 12 holds */

struct report_opts {
    const char *path;
};
static const struct args_opt opts_table[] = {
    { "output", 'o', ARGS_STR, "FILE", offsetof(struct report_opts, path),
      "where to (default: lcow-report-ID.tar here); - is stdout" },
};

/* ---- ustar */

struct ustar {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct ustar) == BLOCK, "a header is one block");

static void put_file(struct sbuf *tar, const char *name, const struct sbuf *content, uint64_t now)
{
    static const char zeros[BLOCK];
    struct ustar h = { .type = '0', .magic = "ustar", .version = { '0', '0' } };
    unsigned sum = 0;

    snprintf(h.name, sizeof(h.name), "lcow-report/%s", name);
    snprintf(h.mode, sizeof(h.mode), "%07o", 0600u);
    snprintf(h.uid, sizeof(h.uid), "%07o", 0u);
    snprintf(h.gid, sizeof(h.gid), "%07o", 0u);
    snprintf(h.size, sizeof(h.size), "%011llo", content->len & OCTAL_11);
    snprintf(h.mtime, sizeof(h.mtime), "%011llo", now / NS_PER_S & OCTAL_11);
    memset(h.sum, ' ', sizeof(h.sum));
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((const unsigned char *)&h)[i];
    snprintf(h.sum, sizeof(h.sum), "%06o", sum);
    sbuf_add(tar, &h, sizeof(h));
    if (content->len > 0)
        sbuf_add(tar, content->data, content->len);
    sbuf_add(tar, zeros, (BLOCK - content->len % BLOCK) % BLOCK);
}

/* ---- the parts */

struct report {
    struct tool *tool;
    const char *word;
    const struct shim *shim;   /* NULL: it is gone */
    struct rpc_client *client; /* the same, or it does not answer */
    size_t n;                  /* parts that are there */
};

static int versions(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    struct utsname u = { 0 };
    char now[CLOCK_RFC3339_SIZE];

    (void)uname(&u);
    clock_rfc3339(loop_wall(ctx->loop), now);
    sbuf_addf(out, "lcow %s\nshim %s\nhost %s %s %s\ntime %s\n", LCOW_VERSION,
              r->shim ? r->shim->version : "(gone)", u.sysname, u.release, u.machine, now);
    return 0;
}

static int state(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    if (!r->shim || !r->shim->doc)
        return err_set(err, ERR_UNAVAILABLE, "%s", r->shim ? r->shim->why.msg : "its shim is gone");

    AUTO_FREE char *text = js_text(r->shim->doc, 2);

    sbuf_addf(out, "%s\n", text);
    return 0;
}

static int journal(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    return logs_put(ctx, r->tool, r->word, out, err);
}

static int explanation(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    return explain_put(ctx, r->tool, r->word, out, NULL, err);
}

static int needs_shim(const struct report *r, struct err *err)
{
    return r->client ? 0 : err_set(err, ERR_UNAVAILABLE, "its shim is gone or does not answer");
}

static int stacks(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    return needs_shim(r, err) < 0 ? -1 : stacks_put(ctx, r->client, out, NULL, err);
}

static int console(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    return needs_shim(r, err) < 0 ? -1 : console_put(ctx, r->client, out, err);
}

static int picture(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    return needs_shim(r, err) < 0 ? -1 : timeline_put(r->shim, "svg", out, err);
}

static int ledger(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err)
{
    AUTO_FREE char *path = NULL, *text = NULL;
    size_t len;
    int n;

    if (!r->shim)
        return err_set(err, ERR_NOT_FOUND, "its shim is gone");
    path = str_format("%s/%s/%s/ledger", r->tool->config.run_root, r->shim->ns, r->shim->id);
    n = file_read_all(path, 4u << 20, &text, &len);
    if (n < 0)
        return err_sys(err, -n, "read %s", path);
    sbuf_add(out, text, len);
    return 0;
}

static const struct part {
    const char *name;
    int (*make)(struct ctx *ctx, struct report *r, struct sbuf *out, struct err *err);
    bool proof; /* something is known of the sandbox if this is there */
} parts[] = {
    { "versions.txt", versions, false }, { "explain.txt", explanation, true },
    { "journal.jsonl", journal, true },  { "state.json", state, true },
    { "console.txt", console, false },   { "stacks.txt", stacks, false },
    { "timeline.svg", picture, false },  { "ledger.txt", ledger, false },
};

static void put_parts(struct ctx *ctx, struct report *r, struct sbuf *tar, struct err *ret_why)
{
    static const char end[2 * BLOCK];

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        AUTO(sbuf_release) struct sbuf text = { 0 };
        struct err err = ERR_INIT;

        if (parts[i].make(ctx, r, &text, &err) < 0) {
            sbuf_release(&text);
            sbuf_addf(&text, "not there: %s\n", err.msg);
            if (ret_why->code == ERR_NONE)
                *ret_why = err;
        } else if (parts[i].proof) {
            r->n++;
        }
        put_file(tar, parts[i].name, &text, loop_wall(ctx->loop));
    }
    sbuf_add(tar, end, sizeof(end));
}

static int write_out(const char *path, const struct sbuf *tar, struct err *err)
{
    AUTO_FD int file = -1;
    int fd = STDOUT_FILENO, r;

    if (!str_eq(path, "-")) {
        fd = file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (file < 0)
            return err_sys(err, errno, "open %s", path);
    }
    r = fd_write_full(fd, tar->data, tar->len);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    AUTO(sbuf_release) struct sbuf tar = { 0 };
    const struct report_opts *o = t->opts;
    struct report r = { .tool = t, .word = t->rest.argv[0] };
    AUTO_FREE char *named = str_format("lcow-report-%s.tar", r.word);
    const char *path = o->path ? o->path : named, *container;
    struct err why = ERR_INIT, ignored = ERR_INIT; /* each part tells if it is missing */

    if (shims_list(ctx, t->config.run_root, &shims, err) < 0)
        return -1;
    if (shims_find(&shims, r.word, &r.shim, &container, &ignored) < 0)
        r.shim = NULL;
    else if (r.shim->doc)
        (void)shim_connect(ctx, r.shim, &r.client, &ignored);
    put_parts(ctx, &r, &tar, &why);
    rpc_client_free(r.client);
    if (r.n == 0) {
        *err = why;
        return -1;
    }
    for (char *c = named; *c; c++)
        *c = *c == '/' ? '-' : *c;
    if (write_out(path, &tar, err) < 0)
        return -1;
    if (!str_eq(path, "-"))
        sbuf_addf(&t->out, "%s\n", path);
    return TOOL_OK;
}

const struct args_cmd report_command = {
    .name = "report",
    .summary = "Gather logs and states of a sandbox into one archive.",
    .synopsis = "[options] ID",
    .text = "Journal, state, console, stacks, timeline, explanation and versions, in a tar. Works "
            "with what it can get: a part that is missing says why. Environments, command lines "
            "and annotations are not in it.\n"
            "\n"
            "Exit code: 0; 1 if nothing is known of it; 2 if this command line is wrong.",
    .opts = ARGS_TABLE(opts_table),
    .opts_size = sizeof(struct report_opts),
    .takes_words = true,
    .takes_id = true,
    .examples = ARGS_EXAMPLES({ "lcow report 4f2a9", "writes lcow-report-4f2a9.tar" }),
    .run = run,
};
