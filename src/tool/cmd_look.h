/* cmd_look.h - what `lcow report` gathers, as texts that are appended to out. Each asks one shim
 * with a limit of its own, or reads files; a part that fails is told by err and keeps the others.
 */
#pragma once
#include <stdbool.h>

struct ctx;
struct err;
struct rpc_client;
struct sbuf;
struct shim;
struct tool;

int tool_stacks(struct ctx *ctx, struct rpc_client *client, bool json, struct sbuf *out,
                struct err *err);
int tool_console(struct ctx *ctx, struct rpc_client *client, struct sbuf *out, struct err *err);
/* format: "txt", "svg" or "json". */
int tool_timeline(const struct shim *shim, const char *format, struct sbuf *out, struct err *err);
int tool_explain(struct ctx *ctx, struct tool *t, const char *word, bool json, struct sbuf *out,
                 struct err *err);
/* The journal that word means, whole, a JSON object a line. */
int tool_journal(struct ctx *ctx, struct tool *t, const char *word, struct sbuf *out,
                 struct err *err);
