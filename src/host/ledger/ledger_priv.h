/* ledger_priv.h - shared by ledger.c (writing), ledger_parse.c (reading) and ledger_reclaim.c. */
#pragma once
#include "base/str.h"
#include "host/ledger/ledger.h"

#define LEDGER_FILE_NAME "ledger"
#define LEDGER_WHAT_MAX 4096
#define LEDGER_NEW_NAME "ledger.new" /* being written, to take the other's name */
#define LEDGER_COMPACT_BYTES (64u * 1024)

/* CRC-32 as in zlib and PNG. */
uint32_t ledger_crc(const char *data, size_t len);
/* The kind, or -EINVAL. */
int ledger_kind_parse(const char *name, size_t len);

/* The open records of a ledger that is read piece by piece. {0} is none. */
struct ledger_line {
    uint64_t id;
    uint8_t kind;
    char *what; /* NULL: released */
};
struct ledger_lines {
    struct ledger_line *v; /* ids rise */
    size_t n, cap, n_gone;
    uint64_t last_id;
    size_t number, bad, first_bad; /* of lines */
};
/* From the beginning of the file. 0 or -errno. */
int ledger_lines_read(struct ledger_lines *l, int fd);
void ledger_lines_release(struct ledger_lines *l);
static inline void ledger_lines_release_auto(struct ledger_lines *l)
{
    ledger_lines_release(l);
}

enum ledger_holder { LEDGER_NOBODY, LEDGER_OWNER, LEDGER_VISITOR };
/* Opens and locks dir's ledger. flags: O_CREAT or 0. 0, -EWOULDBLOCK if *ret_holder has it,
 * -errno. */
int ledger_lock(const char *dir, int flags, enum ledger_holder as, int *ret_fd,
                enum ledger_holder *ret_holder);
/* Locks an open file for its owner that has no name yet that others know. */
int ledger_own(int fd);
/* As ledger_lock, for a visitor, and waits (in ctx) while another one has it: -EBUSY with err,
 * then. */
int ledger_visit(struct ctx *ctx, const char *dir, int *ret_fd, enum ledger_holder *ret_holder,
                 struct err *err);
/* Only looks. 0 or -errno. */
int ledger_holder(const char *dir, enum ledger_holder *ret);

/* Whether such a record may be written, and what it names be removed later. */
int ledger_check(enum ledger_kind kind, const char *what, struct err *err);
/* This boot of the machine; "" if the kernel does not say. Caller frees. */
char *ledger_boot_id(void);
/* "pid start-time boot". *ret_boot points into what. 0 or -EINVAL. */
int ledger_process_parse(const char *what, pid_t *ret_pid, uint64_t *ret_start,
                         const char **ret_boot);
/* Removes the directory above (the namespace's) if it is empty now. */
void ledger_drop_parent(const char *dir);
