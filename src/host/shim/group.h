/* group.h - which containers share a shim: the group's name, its address, its lock, and the files
 * that are left in bundles for containerd ("address") and for `delete` ("lcow.json"). The files
 * are containerd's own, on tmpfs: reading and writing them does not wait; taking the lock does. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;

#define GROUP_FILE "lcow.json"

/* The sandbox that the bundle's config.json names, else id. A config.json that is missing or
 * broken is Create's business. ERR_INVALID: the name is invalid. Caller frees. */
int group_of_bundle(const char *bundle, const char *id, char **ret, struct err *err);

/* Exclusive, for whoever makes or removes the group's socket. Waits until ctx ends. The lock file
 * goes with its last holder. {0} is not held. */
struct group_lock {
    const char *path; /* owned */
    int fd;
};
int group_lock(struct ctx *ctx, const char *address, struct group_lock *ret, struct err *err);
void group_unlock(struct group_lock *l);
AUTO_VALUE(struct group_lock, group_unlock);

/* True if a shim listens there, even if it does not answer. One that answers is told that a
 * container comes: it does not leave meanwhile. Waits 1.1 s at most, for a shim that hangs. */
bool group_join(struct ctx *ctx, const char *address);

/* A shim that has decided to leave says so at its address, where it can be seen of one that hangs,
 * too: its socket gets the sticky bit. It keeps the address until all else is done, since whoever
 * comes next must not begin beside it. */
int group_mark_leaving(const char *address);
bool group_is_leaving(const char *address);
/* Who is: a pidfd, for the caller to close, that is ready when it has gone; -1: it has. Waits
 * 100 ms at most. */
struct group_leaver {
    int pidfd, pid;
};
int group_find_leaver(struct ctx *ctx, const char *address, struct group_leaver *ret,
                      struct err *err);

/* The path of a "unix://" address; borrows. */
const char *group_path(const char *address);

/* The address for containerd: whole or not at all, no newline. */
int group_write_address(const char *bundle, const char *address, struct err *err);

struct group_file {
    char *group, *address, *run_root, *scratch_dir; /* owned */
    char *shim;                                     /* ledger_process_name(); or NULL */
    char *home;                                     /* the bundle it was started for; or NULL */
    uint32_t pid;                                   /* 0: no container yet */
    uint32_t exit_status;                           /* of its first process */
    uint64_t exited_wall_ns;                        /* 0: it has not exited */
};
int group_write_file(const char *bundle, const struct group_file *n, struct err *err);
/* What delete needs, from the files in the bundle; where there are none, from the defaults:
 * containerd's "sandbox" file, config.json, id. Fails only for a name that is invalid. */
int group_read_file(const char *bundle, const char *containerd, const char *ns, const char *id,
                    struct group_file *ret, struct err *err);
void group_file_release(struct group_file *n);
AUTO_VALUE(struct group_file, group_file_release);
