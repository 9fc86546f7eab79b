/* logport.h - the log's way to the host: lines wait in a pipe, whose 64 KiB are the bound, until
 * the host's log port is connected. When the pipe is full the newest lines are dropped and
 * counted, so that the first ones of a boot are kept; the count is logged when lines flow again. */
#pragma once
#include "base/log.h"
#include "base/mem.h"
#include <stdint.h>

struct ctx;
struct dialer;
struct err;
struct logport;
struct loop;

/* Makes the pipe and points the log at it, as JSON lines. Caller frees. */
int logport_new(struct loop *loop, enum log_level level, struct logport **ret, struct err *err);
void logport_level(struct logport *p, enum log_level level);
/* Points the log back at stderr. */
void logport_free(struct logport *p);
AUTO_DEFINE(struct logport *, logport_free);
/* Waits for the dial, then relays in a fiber of its own. Borrows the dialer for good. After a
 * failure or a loss logport_retry() dials again. */
int logport_connect(struct ctx *ctx, struct logport *p, struct dialer *d, uint32_t port,
                    struct err *err);
/* Called when the bridge has connected, so the host should answer. Never waits. */
void logport_retry(struct logport *p);
/* Drops the lines that wait for the host, and resets the count of dropped lines. */
void logport_forget(struct logport *p);
/* A whole line of JSON with its line feed, whatever the level; dropped if there is no room. */
void logport_line(struct logport *p, const char *line, size_t len);
