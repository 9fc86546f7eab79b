/* ledger.h - what the shim has created and must clean up. Before anything that outlives a system
 * call is created, a record is appended; after its release, another. Each line has a checksum; an
 * incomplete last line (its writer died) is dropped. When released records make up most of a long
 * file, it is compacted: a new file is renamed over the old one. Cleaning up needs only the file,
 * runs in reverse order, and can be repeated at any point. One directory per VM:
 *     <run_dir>/<namespace>/<id>/ledger
 * The owner holds a lock on it, by which gc knows that the owner is running. The files are ours:
 * these calls block only for tmpfs; ledger_reclaim also waits for another process that cleans up.
 */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ctx;
struct err;
struct saved;
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

/* Creates the directory (0700) and the file (0600), and locks it. ERR_EXISTS if another owner is
 * running, ERR_UNAVAILABLE while a visitor cleans up after a dead owner. Caller frees with
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
/* A unique name of a process: "pid start-time boot-id". NULL: it has exited. Caller frees. */
char *ledger_process_name(pid_t pid);
/* 1: it exists (perhaps as a zombie), caller closes *ret_pidfd. 0: it is gone. -1: err. */
int ledger_process_open(const char *name, pid_t *ret_pid, int *ret_pidfd, struct err *err);
/* Sends SIGKILL; waits until the process has exited or ctx ends. */
int ledger_process_kill(struct ctx *ctx, pid_t pid, int pidfd, struct err *err);
/* An interface in a network namespace: "path#inode ifname". The inode detects that the path now
 * leads to another namespace (/proc/PID/ns/net), in which nothing is removed; without "#inode" only
 * the path counts. Caller frees. */
char *ledger_interface_name(const char *netns_path, uint64_t inode, const char *ifname);
int ledger_forget(struct ledger *l, uint64_t id, struct err *err);
/* Removes file and directory, and the namespace's directory above if it is then empty. ERR_STATE if
 * records are open. */
int ledger_finish(struct ledger *l, struct err *err);

struct ledger_record {
    uint64_t id;
    enum ledger_kind kind;
    const char *what;
};
/* Calls fn for each open record of a directory's ledger, newest first. Only open records are in
 * memory. A result of fn other than 0 ends the walk. */
int ledger_read(const char *dir, int (*fn)(void *arg, const struct ledger_record *), void *arg,
                struct err *err);

/* Whether the owner of another process's directory is running. Takes no lock. */
int ledger_owner_alive(const char *dir, bool *ret_alive, struct err *err);
/* Cleans up everything that dir's ledger still names, then removes the directory and, if it is
 * empty, the one above. Waits for killed processes. Calls fn (may be NULL) for each item with
 * what happened to it: taken is 1, 0 if it was gone already, or -1; result is the same for people.
 * With dry_run, nothing is changed or locked. If another process cleans up the same directory,
 * waits for it until ctx ends and continues with the rest. ERR_STATE if the owner is running.
 * Continues after a failed item and fails at the end, so that it can be repeated. */
int ledger_reclaim(struct ctx *ctx, const char *dir, bool dry_run,
                   void (*fn)(void *arg, const struct ledger_record *, int taken,
                              const char *result),
                   void *arg, struct err *err);

/* For saved.h: the file and its lock stay open. NULL: none. */
void ledger_saved(struct saved *s, uint32_t field, struct ledger **l);
