/* watch.h - when the shim leaves: Shutdown was called and nothing is left to serve; the last
 * container went after a Shutdown that came too early (some versions of containerd send no second
 * one); or nobody has called for a minute and there is nothing to serve, because containerd did
 * not like what `start` answered and has forgotten us; or containerd has given up all that we have:
 * `delete` has left files that say so, or for a minute no client is connected or has called and all
 * bundles are gone. One fiber, asleep while there are containers and clients.
 * Life: new -> (poke) … -> stop -> free. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>

struct ctx;
struct err;
struct loop;
struct service;
struct watch;

struct watch_opts {
    struct loop *loop;
    struct service *service; /* borrows */
    /* Told once, with a static text. May not wait. */
    void (*leave)(void *arg, const char *why);
    unsigned (*clients)(void *arg); /* connections */
    /* Has containerd removed all bundles? Waits. */
    bool (*bundles_gone)(struct ctx *ctx, void *arg);
    void *arg;
};
struct watch *watch_new(const struct watch_opts *o);
/* Something changed: look again. Never waits. */
void watch_poke(struct watch *w);
/* Ends the fiber. Waits. */
int watch_stop(struct ctx *ctx, struct watch *w, struct err *err);
void watch_free(struct watch *w); /* after stop */
AUTO_DEFINE(struct watch *, watch_free);
