/* cmd_report.c - `lcow report`: one archive with all that helps to find a fault of lcow. It must
 * not contain secrets: environments, command lines and annotations are in none of the documents,
 * and are not logged, except for a value that an error names. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "host/ledger/journal.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/reading.h"
#include "tool/tool.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define BLOCK 512u
#define OCTAL_11 077777777777ull /* the maximum of a 12-byte field */

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

static int versions(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct utsname u = { 0 };
    char now[CLOCK_RFC3339_SIZE];

    (void)uname(&u);
    clock_rfc3339(loop_wall(ctx->loop), now);
    sbuf_addf(&t->out, "lcow %s\nshim %s\nhost %s %s %s\ntime %s\n", LCOW_VERSION,
              t->shim ? t->shim->version : "(gone)", u.sysname, u.release, u.machine, now);
    return 0;
}

static int ledger(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE char *path = NULL, *text = NULL;
    size_t len;
    int n;

    if (!t->shim)
        return err_set(err, ERR_NOT_FOUND, "the shim does not exist any more");
    path = str_format("%s/%s/%s/ledger", t->config.run_root, t->shim->ns, t->shim->id);
    n = file_read_all(path, 4u << 20, &text, &len);
    if (n < 0)
        return err_sys(err, -n, "read %s", path);
    sbuf_add(&t->out, text, len);
    return 0;
}

/* The state that a shim kept which does not answer any more. False: there is none. */
static bool kept_state(struct tool *t)
{
    AUTO(readings_release) struct readings r = { 0 };
    AUTO_FREE char *path = NULL, *text = NULL;
    const struct shim *shim;
    const char *container;
    struct err ignored = ERR_INIT;
    size_t len;

    readings_init(&r, t->config.run_root);
    if (readings_find(&r, &t->shims, t->rest.argv[0], &shim, &container, &ignored) < 0)
        return false;
    path = journal_state_path(r.v[0]->path);
    if (file_read_all(path, 4u << 20, &text, &len) < 0)
        return false;
    t->out.len = 0;
    sbuf_add(&t->out, text, len);
    return true;
}

static int state(struct ctx *ctx, struct tool *t, struct err *err)
{
    int r = inspect_command.run(ctx, t, err);

    return r < 0 && kept_state(t) ? TOOL_OK : r;
}

/* Most parts are the output of another command. */
static const struct part {
    const char *name;
    const struct args_cmd *command;
    int (*make)(struct ctx *ctx, struct tool *t, struct err *err);
    struct tool_opts opts;
    bool proof; /* exists only if the sandbox is known */
} parts[] = {
    { "versions.txt", NULL, versions },
    { "explain.txt", &explain_command, .proof = true },
    { "journal.jsonl", &logs_command, .opts = { .json = true, .no_output = true }, .proof = true },
    { "state.json", NULL, state, .proof = true },
    { "console.txt", &console_command },
    { "stacks.txt", &stacks_command },
    { "timeline.svg", &timeline_command, .opts = { .format = "svg" } },
    { "ledger.txt", NULL, ledger },
};

/* Returns the number of existing parts with `proof`; *ret_why: why the first is missing. */
static size_t put_parts(struct ctx *ctx, const struct tool *t, struct sbuf *tar,
                        struct err *ret_why)
{
    static const char end[2 * BLOCK];
    size_t n = 0;

    for (const struct part *p = parts; p < parts + ARRAY_LEN(parts); p++) {
        struct tool one = *t; /* shares the answers of the shims */
        struct err err = ERR_INIT;

        one.opts = p->opts;
        if ((p->command ? p->command->run : p->make)(ctx, &one, &err) < 0) {
            one.out.len = 0;
            sbuf_addf(&one.out, "missing: %s\n", err.msg);
            if (ret_why->code == ERR_NONE)
                *ret_why = err;
        } else {
            n += p->proof;
        }
        put_file(tar, p->name, &one.out, loop_wall(ctx->loop));
        sbuf_release(&one.out);
        rpc_client_free(one.client);
    }
    sbuf_add(tar, end, sizeof(end));
    return n;
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
    AUTO(sbuf_release) struct sbuf tar = { 0 };
    AUTO_FREE char *named = str_format("lcow-report-%s.tar", t->rest.argv[0]);
    const char *path = t->opts.output ? t->opts.output : named;
    struct err why = ERR_INIT, ignored = ERR_INIT; /* a missing part contains its error */

    if (tool_list(ctx, t, err) < 0)
        return -1;
    if (tool_find(ctx, t, t->rest.argv[0], &ignored) < 0)
        t->shim = NULL;
    if (put_parts(ctx, t, &tar, &why) == 0) {
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
    .summary = "Collect logs and state of a sandbox in one archive.",
    .text =
        "The tar contains journal, state, console, stacks, timeline, explanation and versions. "
        "If a part is missing, its file contains the reason. The state of a shim that is gone is "
        "as it was at the last start or exit of a container, or upgrade. The archive does not "
        "contain "
        "environments, command lines and annotations.",
    .exits = "1 if the sandbox is unknown",
    .opts = ARGS_OPTIONS({ "output", 'o', ARGS_STR, "FILE", OPT(output),
                           "write to FILE (default: lcow-report-ID.tar); - is stdout" }),
    .takes_id = true,
    .examples = ARGS_EXAMPLES({ "lcow report 4f2a9", "write lcow-report-4f2a9.tar" }),
    .run = run,
};
