/* cgroup_scope.h - a scope unit of systemd: a cgroup that systemd makes, knows, and removes when it
 * is empty. systemd's own programs ask for it (docs/decisions/0032). */
#pragma once
#include "base/mem.h"
#include <stdint.h>

struct ctx;
struct err;
struct ledger;
struct saved;
struct scope;

struct scope_opts {
    const char *unit, *slice; /* "cri-containerd-ID.scope", "kubepods-….slice" */
    struct ledger *ledger;    /* borrows; NULL: nothing is recorded */
};
/* Waits until the scope is active. *ret is NULL if this host has no systemd-run: then the caller
 * makes the directory. A process of ours is in it and keeps it until scope_settle. Caller frees. */
int scope_start(struct ctx *ctx, const struct scope_opts *o, struct scope **ret, struct err *err);
/* Repeatable. */
void scope_settle(struct scope *s);
/* "Name=value" each, then NULL, or earlier. Waits. */
int scope_set(struct ctx *ctx, const struct scope *s, const char *const *properties,
              struct err *err);
void scope_free(struct scope *s);
/* For saved.h, after scope_settle. NULL: none. */
void scope_saved(struct saved *s, uint32_t field, struct ledger *ledger, struct scope **scope);
