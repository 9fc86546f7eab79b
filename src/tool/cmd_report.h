/* cmd_report.h - what `lcow report` gathers of other commands, as texts that are appended to out.
 * Each asks one shim with a limit of its own, or reads files; a part that fails is told by err and
 * keeps the others. */
#pragma once

struct ctx;
struct err;
struct jsw;
struct rpc_client;
struct sbuf;
struct shim;
struct tool;

/* w: as one JSON value to it instead; may be NULL, as in explain_put(). */
int stacks_put(struct ctx *ctx, struct rpc_client *client, struct sbuf *out, struct jsw *w,
               struct err *err);
int console_put(struct ctx *ctx, struct rpc_client *client, struct sbuf *out, struct err *err);
/* format: "txt", "svg" or "json". */
int timeline_put(const struct shim *shim, const char *format, struct sbuf *out, struct err *err);
int explain_put(struct ctx *ctx, struct tool *t, const char *word, struct sbuf *out, struct jsw *w,
                struct err *err);
/* The journal that word means, whole, a JSON object a line. */
int logs_put(struct ctx *ctx, struct tool *t, const char *word, struct sbuf *out, struct err *err);
