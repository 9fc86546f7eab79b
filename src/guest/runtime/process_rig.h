/* process_rig.h - for tests: a process table whose host is a socketpair per stream. Whatever goes
 * wrong in these fails the running test. */
#pragma once
#include "base/stream.h"
#include "guest/runtime/process.h"
#include "guest/stdio/dial_pair.h"
#include "harness/tap.h"

#define ARGV(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define SH(script) ARGV("sh", "-c", script)

struct rig {
    struct dial_pair *host;
    struct process_table *t;
    struct stream *in, *out, *err; /* the host's ends */
};

void rig_init(struct rig *w, struct ctx *ctx);
/* Kills what still runs. */
void rig_release(struct rig *w);
/* Starts with ports 10, 11 and 12 and takes the host's ends. */
uint32_t rig_start(struct ctx *ctx, struct rig *w, struct process_spec spec);
/* The exit code. */
uint32_t rig_wait(struct ctx *ctx, struct rig *w, uint32_t pid);
/* To its end. Caller frees. */
char *rig_read_all(struct ctx *ctx, struct stream *s);
/* Until the text has been seen; what came up to then. Caller frees. */
char *rig_read_until(struct ctx *ctx, struct stream *s, const char *text);
void rig_say(struct ctx *ctx, struct stream *s, const char *text);
