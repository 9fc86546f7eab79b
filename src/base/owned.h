/* owned.h - files in a store of our own (templates, layer images): opened only if they are what we
 * wrote, and small texts with a checksum in front. Blocks for a local file system. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct err;
struct stat;

/* Checks kind (S_IFDIR, S_IFREG), owner (this user) and mode (not writable by others); fills *st.
 * ERR_DATA_LOSS or ERR_PERMISSION names what. */
int owned_check(int fd, const char *what, mode_t kind, struct stat *st, struct err *err);
/* Opens a regular file of a directory for reading, with the same check. A symbolic link is
 * ERR_PERMISSION, a file that cannot be opened ERR_DATA_LOSS. Caller closes *ret. */
int owned_open(int dir, const char *name, struct stat *st, int *ret, struct err *err);
uint64_t owned_mtime_ns(const struct stat *st);

/* The text behind a line with its SHA-256. Caller frees. */
char *owned_seal(const char *body, size_t len, size_t *ret_len);
/* The body, borrowed from text, or NULL with ERR_DATA_LOSS. */
const char *owned_unseal(const char *text, size_t len, size_t *ret_len, struct err *err);
