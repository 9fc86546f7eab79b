/* oom.h - who goes first when the host runs out of memory. */
#pragma once
#include <sys/types.h>

struct ctx;
struct err;

/* -1000 (never) … 1000 (first). For a process of ours that nobody has reaped. ERR_INVALID outside
 * that range. Lowering it below what we have ourselves needs a right that we may lack: that is a
 * warning in the log, not an error. Never waits. */
int oom_score_adj_set(const struct ctx *ctx, pid_t pid, int adj, struct err *err);
