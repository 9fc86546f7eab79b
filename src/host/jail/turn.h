/* turn.h - how many VMs start at one time on this host. All shims share one file: who holds the
 * lock on one of its first bytes has a turn, one more byte is the queue before them. Locks end with
 * their holders, so nothing is left to clean up. Whoever is first in the queue and does nothing for
 * some seconds (it is stopped, or hangs) is overtaken, in order, by way of a second queue; there
 * are a few of them. */
#pragma once

struct ctx;
struct err;
struct turn;

/* Waits until one of n turns is free, in the order of coming, until ctx ends. path: made (0600) if
 * it is missing. */
int turn_take(struct ctx *ctx, const char *path, unsigned n, struct turn **ret, struct err *err);
/* Accepts NULL. Never waits. */
void turn_give(struct turn *t);
