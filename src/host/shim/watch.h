/* watch.h - decides when the shim exits:
 * - Shutdown was called and nothing is left to serve;
 * - the last container was deleted after an early Shutdown (some versions of containerd send no
 *   second one);
 * - there was no call for a minute and there is nothing to serve, because containerd did not accept
 *   the answer of `start`;
 * - containerd has given up all containers: `delete` has written files that say so, or for a minute
 *   no client was connected or called and all bundles are gone.
 * One fiber, which has no timer while there are containers and clients.
 * Life: new -> (poke) … -> stop -> free. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>

struct ctx;
struct err;
struct loop;
struct saved;
struct service;
struct watch;

/* Why the shim exits. */
enum watch_end {
    WATCH_STAYS,
    WATCH_GIVEN_UP,
    WATCH_SHUTDOWN,
    WATCH_EARLY_SHUTDOWN,
    WATCH_NEVER_CALLED,
    WATCH_BUNDLE_GONE,
    WATCH_BUNDLES_GONE,
    WATCH_END_COUNT,
};

struct watch_opts {
    struct loop *loop;
    struct service *service; /* borrows */
    /* Called once. Must not wait. */
    void (*leave)(void *arg, enum watch_end why);
    unsigned (*clients)(void *arg); /* connections */
    /* True if containerd has removed all bundles. Waits. */
    bool (*bundles_gone)(struct ctx *ctx, void *arg);
    void *arg;
};
struct watch *watch_new(const struct watch_opts *o);
/* For the log. Static. */
const char *watch_end_text(enum watch_end why);
/* Something changed: check again. Never waits. */
void watch_poke(struct watch *w);
/* Ends the fiber. Waits. */
int watch_stop(struct ctx *ctx, struct watch *w, struct err *err);
void watch_free(struct watch *w); /* after stop */
AUTO_DEFINE(struct watch *, watch_free);
/* For saved.h. */
void watch_saved(struct saved *s, struct watch *w);
