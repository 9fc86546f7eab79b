/* ledger.h - what we have created and must take back. Before anything that outlives a syscall is
 * made, a record is appended; after it was released, another. Each line carries a checksum; a
 * torn last line (we died while writing it) is dropped. Once most of a long file is released
 * records, it is written anew and renamed over the old one. Clean-up works from the file alone, in
 * reverse order, and can be repeated at any point. One directory per VM:
 *     <run_dir>/<namespace>/<id>/ledger
 * held open with a lock by its owner, so that gc knows the living from the dead. Leaf files are
 * ours: these calls block only for tmpfs; ledger_reclaim also waits for another one's clean-up. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ctx;
struct err;
struct ledger;

enum ledger_kind {
    LEDGER_PROCESS,   /* "pid start-time boot-id": killed, in that boot of the machine only */
    LEDGER_INTERFACE, /* ledger_interface_name(): deleted */
    LEDGER_INGRESS,   /* the same: its ingress qdisc, deleted */
    LEDGER_FILE,      /* path: unlinked */
    LEDGER_DIR,       /* path: removed with its content, no symlink followed */
    LEDGER_CGROUP,    /* path: removed */
    LEDGER_KIND_COUNT
};
const char *ledger_kind_name(enum ledger_kind k);

/* Makes the directory (0700) and the file (0600), and locks it. ERR_EXISTS if another owner is
 * alive, ERR_UNAVAILABLE while somebody takes back what a dead one left. Caller frees with
 * ledger_close(), which keeps the records. */
int ledger_create(const char *dir, struct ledger **ret, struct err *err);
void ledger_close(struct ledger *l);
AUTO_DEFINE(struct ledger *, ledger_close);
const char *ledger_dir(const struct ledger *l);

/* Writes "about to create"; *ret_id is for ledger_forget. `what` is refused (ERR_INVALID) with
 * line breaks or beyond 4 KiB. A full disk: ERR_EXHAUSTED, and the caller creates nothing. */
int ledger_add(struct ledger *l, enum ledger_kind kind, const char *what, uint64_t *ret_id,
               struct err *err);
int ledger_add_process(struct ledger *l, pid_t pid, uint64_t *ret_id, struct err *err);
/* A process by a name that is never another's: "pid start-time boot-id". NULL: it is gone. Caller
 * frees. */
char *ledger_process_name(pid_t pid);
/* 1: it is there (perhaps as a zombie), caller closes *ret_pidfd. 0: it is gone. -1: err. */
int ledger_process_open(const char *name, pid_t *ret_pid, int *ret_pidfd, struct err *err);
/* SIGKILL; waits until it has ended, or ctx. */
int ledger_process_kill(struct ctx *ctx, pid_t pid, int pidfd, struct err *err);
/* An interface in a network namespace: "path#inode ifname". The path may lead to another namespace
 * by now (/proc/PID/ns/net), which is then left alone; without "#inode" the path alone counts.
 * Caller frees. */
char *ledger_interface_name(const char *netns_path, uint64_t inode, const char *ifname);
int ledger_forget(struct ledger *l, uint64_t id, struct err *err);
/* All released: removes file and directory, and the namespace's directory above if it is empty
 * then. ERR_STATE if records are open. */
int ledger_finish(struct ledger *l, struct err *err);

struct ledger_record {
    uint64_t id;
    enum ledger_kind kind;
    const char *what;
};
/* Calls fn for each open record of a directory's ledger, newest first, of whatever length: only
 * open records are in memory. fn ends it with something other than 0. */
int ledger_read(const char *dir, int (*fn)(void *arg, const struct ledger_record *), void *arg,
                struct err *err);

/* Of somebody else's directory: is its owner alive? Only looks, disturbs nobody. */
int ledger_owner_alive(const char *dir, bool *ret_alive, struct err *err);
/* Takes everything back that dir's ledger still names, then the directory itself and, if it is
 * empty, the one above. Waits for
 * killed processes. fn (may be NULL) is told of each item; with dry_run nothing is touched, nor
 * locked. Another one at work on the same directory is waited for until ctx ends; what it has done
 * is done. ERR_STATE if the owner is alive. Goes on after a failed item and fails at the end, so
 * that it can be repeated. */
int ledger_reclaim(struct ctx *ctx, const char *dir, bool dry_run,
                   void (*fn)(void *arg, const struct ledger_record *, const char *result),
                   void *arg, struct err *err);
