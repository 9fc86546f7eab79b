/* group.h - the containers that share a shim: the group's name, its address, its lock, and the
 * files in bundles for containerd ("address") and for `delete` ("lcow.json"). The files are on
 * tmpfs, so reading and writing them does not wait; taking the lock does. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;

#define GROUP_FILE "lcow.json"

/* The sandbox that the bundle's config.json names, else id. Create reports a missing or invalid
 * config.json. ERR_INVALID: the name is invalid. Caller frees. */
int group_of_bundle(const char *bundle, const char *id, char **ret, struct err *err);

/* Exclusive lock for creating or removing the group's socket. Waits until ctx ends. The last holder
 * removes the lock file. {0} is not held. */
struct group_lock {
    const char *path; /* owned */
    int fd;
};
int group_lock(struct ctx *ctx, const char *address, struct group_lock *ret, struct err *err);
void group_unlock(struct group_lock *l);
AUTO_VALUE(struct group_lock, group_unlock);

/* True if a shim listens there, even if it does not answer. Announces a container to a shim that
 * answers, so that it does not exit meanwhile. Waits 1.1 s at most, for a shim that hangs. */
bool group_join(struct ctx *ctx, const char *address);

/* A shim that has decided to exit sets the sticky bit of its socket, which is visible even if the
 * shim hangs. It keeps the address until the end of its clean-up, so that no new shim starts
 * beside it. */
int group_mark_leaving(const char *address);
bool group_is_leaving(const char *address);
/* A pidfd of the shim that is exiting, which becomes readable when it has exited; -1: it has.
 * Caller closes. Waits 100 ms at most. */
struct group_leaver {
    int pidfd, pid;
};
int group_find_leaver(struct ctx *ctx, const char *address, struct group_leaver *ret,
                      struct err *err);

/* The path of a "unix://" address; borrows. */
const char *group_path(const char *address);

/* Writes the address for containerd, atomically and without a newline. */
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
/* What `delete` needs, from the files in the bundle; if they are missing, from containerd's
 * "sandbox" file, config.json, id. Fails only for an invalid name. */
int group_read_file(const char *bundle, const char *containerd, const char *ns, const char *id,
                    struct group_file *ret, struct err *err);
void group_file_release(struct group_file *n);
AUTO_VALUE(struct group_file, group_file_release);
