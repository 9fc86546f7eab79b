/* run_file.h - what a shim leaves in its VM's run directory, beside the ledger, for programs that
 * must not depend on its answer: lcow(1) and `delete`.
 *
 *     shim            where it listens, which process it is, which containers it has
 *     forsaken.<id>   written by `delete`: containerd has given this container up. The shim ends
 *                     the container and removes the file; the text is the container's anchor, so
 *                     that a later container of the same name is not meant.
 *
 * The files are ours, on tmpfs: only run_bundles_gone() waits. */
#pragma once
#include "base/str.h"
#include <sys/types.h>

struct ctx;
typedef struct json_t json_t;
struct err;

/* Strings are borrowed: those of a file that was read until it is released. */
struct run_member {
    const char *id, *bundle;
    const char *anchor; /* ledger_process_name(); "" if it had ended */
    bool hidden;        /* the sandbox's own, see sandbox.h */
};
struct run_file {
    const char *address, *version;
    pid_t pid;
    const char *process; /* ledger_process_name() of the shim; "" of versions that did not say */
    const char *home;    /* the bundle that the shim was started for; "" likewise */
    struct run_member *v;
    size_t n;
    json_t *root; /* whose strings they are; NULL: the writer's */
};
int run_file_write(const char *dir, const struct run_file *n, struct err *err);
/* ERR_NOT_FOUND: there is none. */
int run_file_read(const char *dir, struct run_file *ret, struct err *err);
char *run_file_path(const char *dir); /* caller frees */
void run_file_release(struct run_file *n);
AUTO_VALUE(struct run_file, run_file_release);
/* NULL: it has no such container. Borrowed. */
const struct run_member *run_file_find(const struct run_file *n, const char *id);

int run_forsake(const char *dir, const char *id, const char *anchor, struct err *err);
void run_unforsake(const char *dir, const char *id); /* a file that is gone is fine */
void run_each_forsaken(const char *dir, void (*fn)(void *arg, const char *id, const char *anchor),
                       void *arg);

/* Whether containerd has given up everything that this shim serves: each container, and the bundle
 * that the shim was started for, is forsaken or has no bundle any more. Waits. */
int run_given_up(struct ctx *ctx, const char *dir, const struct run_file *n, bool *ret,
                 struct err *err);
/* Whether none of these directories exists. A directory that cannot be looked at counts as there.
 * Waits until ctx ends: they are the client's. */
int run_bundles_gone(struct ctx *ctx, const struct strv *paths, bool *ret, struct err *err);
