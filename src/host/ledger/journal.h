/* journal.h - what one shim did and saw, as JSON lines in <run_root>/.journal/<namespace>@<id>, for
 * lcow(1): its log, its guest's, its events. It is a file and not a question to the shim, so that
 * it can be read when the shim hangs, or is gone. Bounded: at JOURNAL_MAX_BYTES the file becomes
 * "<name>@1" in place of the one before.
 *
 * Life: open -> add … -> close. A shim that ends well removes it; one that had an error to tell, or
 * was killed, leaves it behind, and the next to open one keeps the newest JOURNAL_KEEP of those.
 * The files are ours, on tmpfs: nothing here waits. */
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
/* One whole line, with its newline. What cannot be written is lost. */
void journal_add(struct journal *j, const char *line, size_t len);
/* For those who cannot call journal_add (log_aside): it stays the same until the journal is closed.
 * -1 for NULL. */
int journal_fd(const struct journal *j);
/* keep: leave it for those who come later. Frees. NULL is fine. */
void journal_close(struct journal *j, bool keep);

/* --- for readers --- */

/* Caller frees. */
char *journal_path(const char *run_root, const char *ns, const char *id);
struct journal_entry {
    const char *ns, *id, *path;
    bool alive; /* its shim is */
    uint64_t changed_wall_ns;
};
/* Calls fn for each; its -1 ends the walk. A missing directory has none. */
int journal_each(const char *run_root, int (*fn)(void *arg, const struct journal_entry *e),
                 void *arg, struct err *err);
