/* journal.h - the log of one shim and its guest, and its events, as JSON lines for lcow(1) in
 * <run_root>/.journal/<namespace>@<id>. It is a file, so that lcow can read it even if the shim
 * hangs or has exited. Bounded: at JOURNAL_MAX_BYTES the file is renamed to "<name>@1" and replaces
 * the previous one.
 *
 * Life: open -> add … -> close. A shim that exits without an error removes its journal. After an
 * error or a kill the journal stays; the next shim that opens one keeps the newest JOURNAL_KEEP of
 * them. The files are ours, on tmpfs: nothing here waits. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct journal;

#define JOURNAL_MAX_BYTES (256u << 10)
#define JOURNAL_KEEP 32u

int journal_open(const char *run_root, const char *ns, const char *id, struct journal **ret,
                 struct err *err);
/* Adds one line, which includes its newline. A line that cannot be written is lost. */
void journal_add(struct journal *j, const char *line, size_t len);
/* Keeps the shim's state beside the journal, for as long as that is kept. Replaces what was there;
 * if it cannot be written, that stays. NULL removes it. j may be NULL. */
void journal_state(struct journal *j, const char *text);
/* The descriptor, for code that cannot call journal_add (log_aside). Its number does not change
 * until the journal is closed. -1 for NULL. */
int journal_fd(const struct journal *j);
/* keep: do not remove the file. Frees j, which may be NULL. */
void journal_close(struct journal *j, bool keep);

/* --- for readers --- */

/* Caller frees. */
char *journal_path(const char *run_root, const char *ns, const char *id);
/* Where journal_state() keeps it, for the journal of this path. Caller frees. */
char *journal_state_path(const char *path);
struct journal_entry {
    const char *ns, *id, *path;
    bool alive; /* its shim is running */
    uint64_t changed_wall_ns;
};
/* Calls fn for each journal; its -1 ends the walk. A missing directory has no journals. */
int journal_each(const char *run_root, int (*fn)(void *arg, const struct journal_entry *e),
                 void *arg, struct err *err);
