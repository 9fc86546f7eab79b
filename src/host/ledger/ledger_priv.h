/* ledger_priv.h - what ledger.c, ledger_reclaim.c and their tests share. */
#pragma once
#include "base/str.h"
#include "host/ledger/ledger.h"

#define LEDGER_FILE_NAME "ledger"
#define LEDGER_WHAT_MAX 4096
#define LEDGER_NEW_NAME "ledger.new" /* during a compaction; then renamed to the ledger */
#define LEDGER_COMPACT_BYTES (64u * 1024)

struct ledger {
    char *dir, *path;
    int fd;
    uint64_t last_id;
    uint64_t *open; /* ids of open records, increasing */
    size_t n_open, cap_open;
    off_t end;        /* of the last complete line */
    off_t compact_at; /* the length at which compaction is considered */
};
/* Of a file with its lock: finds the open records. 0, -EBADMSG if it is damaged, -errno. */
int ledger_resume(struct ledger *l);

/* As ledger_read(). Fuzzed. */
int ledger_read_fd(int fd, int (*fn)(void *arg, const struct ledger_record *), void *arg,
                   struct err *err);
/* CRC-32 as in zlib and PNG. */
uint32_t ledger_crc(const char *data, size_t len);

enum ledger_holder { LEDGER_NOBODY, LEDGER_OWNER, LEDGER_VISITOR };
/* Opens and locks dir's ledger. flags: O_CREAT or 0. 0, -EWOULDBLOCK if *ret_holder has it,
 * -errno. */
int ledger_lock(const char *dir, int flags, enum ledger_holder as, int *ret_fd,
                enum ledger_holder *ret_holder);
/* Blocks while a visitor holds the open ledger; the caller closes fd at once. 0 or -errno. */
int ledger_await_visitor(int fd);
/* Finds the holder without taking a lock. 0 or -errno. */
int ledger_holder(const char *dir, enum ledger_holder *ret);

/* True if such a record may be written, and its object be removed later. */
int ledger_check(enum ledger_kind kind, const char *what, struct err *err);
/* The id of this boot of the machine; "" if it is unknown. Caller frees. */
char *ledger_boot_id(void);
/* Removes the directory above (the namespace's) if it is empty now. */
void ledger_drop_parent(const char *dir);
