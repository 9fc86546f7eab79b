/* template.h - the store of templates: VMs that were saved just before their agent's first
 * connection, to be cloned. The store has one directory per key:
 *     <dir>/<key>/ram      the memory; clones map it copy-on-write
 *     <dir>/<key>/state    the devices
 *     <dir>/<key>/header   what it is: a checksum, then JSON
 *     <dir>/<key>/bad      exists if no VM may be cloned from it any more: the reason
 *     <dir>/<key>/strikes  exists if clones failed: the reasons, one per line
 *     <dir>/failed-<key>   exists if its build failed: when, how often and why
 * Only root can access them. They are written elsewhere and renamed into place. Files that are
 * damaged, are symlinks or have another owner are refused with ERR_DATA_LOSS or ERR_PERMISSION, and
 * a builder replaces them. Blocks for a local file system; only template_lock may wait. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct jsw;
struct ledger;

#define TEMPLATE_KEY_SIZE 33 /* hexadecimal, with its NUL */
#define TEMPLATE_HEADER_MAX (256 * 1024)
#define TEMPLATE_LIST_MAX 256

struct template_file {
    uint64_t size, inode, mtime_ns;
    char sha256[65];
};

struct template_info {
    char key[TEMPLATE_KEY_SIZE];
    char *identity; /* the lines the key is a hash of; owned */
    char vmm_version[64];
    uint32_t memory_mib, max_memory_mib, max_cpus;
    bool emulated;
    uint32_t tsc_khz;    /* passed to its kernel; 0: not passed */
    uint64_t created_ns; /* wall clock */
    struct template_file ram, state;
};
void template_info_release(struct template_info *i); /* repeatable */
AUTO_VALUE(struct template_info, template_info_release);
/* As one JSON object. */
void template_info_write(const struct template_info *i, struct jsw *w, const char *key);

/* Encode and decode the header; ERR_DATA_LOSS names the invalid member. Caller frees. Fuzzed. */
char *template_header_format(const struct template_info *i, size_t *ret_len);
int template_header_parse(const char *text, size_t len, struct template_info *ret, struct err *err);

/* An open template. */
struct template
{
    struct template_info info;
    int ram_fd, state_fd; /* for reading */
};
void template_close(struct template *t); /* repeatable; needs ram_fd and state_fd set */
AUTO_VALUE(struct template, template_close);

/* Opens with the quick check of each use: owners, kinds, the header's checksum, size, inode and
 * time of both files, and that the template is not marked bad. ERR_NOT_FOUND: it does not exist. */
int template_open(const char *dir, const char *key, struct template *ret, struct err *err);
/* The same for a sealed draft. */
int template_open_draft(const char *path, const char *key, struct template *ret, struct err *err);
/* The same, and compares the checksums of both files, which are read completely. */
int template_verify(const char *dir, const char *key, struct template_info *ret, struct err *err);
/* All keys, sorted, in any state. Caller frees. A missing store is empty. */
int template_list(const char *dir, char (**ret_keys)[TEMPLATE_KEY_SIZE], size_t *ret_n,
                  struct err *err);
int template_remove(const char *dir, const char *key, struct err *err);

/* Marks the template: no VM is cloned from it any more, and the next builder replaces it. */
int template_mark_bad(const char *dir, const char *key, const char *why, struct err *err);
/* Counts a failed clone that may be the template's fault. True: the limit was reached, and the
 * template is marked bad now. A clone that works resets the count (absolve). */
#define TEMPLATE_STRIKES 2
bool template_strike(const char *dir, const char *key, const char *why);
void template_absolve(const char *dir, const char *key);

/* A build that failed. */
struct template_failure {
    char key[TEMPLATE_KEY_SIZE];
    uint64_t at_ns; /* wall clock */
    unsigned count; /* in a row */
    char why[512];
};
void template_remember_failure(const char *dir, const char *key, uint64_t now_ns, const char *why);
bool template_failure(const char *dir, const char *key, struct template_failure *ret);
/* The time of the next automatic retry: 10 min after the first failure, doubling up to 24 h. */
uint64_t template_retry_at(const struct template_failure *f);
/* All failed builds in the store; caller frees. */
size_t template_failures(const char *dir, struct template_failure **ret);

/* Records that a VM starts from the template. Best effort. */
void template_touch(const char *dir, const char *key);
/* Removes templates that were unused for TEMPLATE_UNUSED_NS, and the longest unused while there are
 * more than TEMPLATE_MOST; never keep, which may be NULL. Their clones keep running. The caller
 * holds the lock. now_ns: wall clock. Calls removed, which may be NULL, for each. */
#define TEMPLATE_MOST 4
#define TEMPLATE_UNUSED_NS (UINT64_C(14) * 24 * 3600 * 1000000000)
int template_prune(const char *dir, const char *keep, uint64_t now_ns,
                   void (*removed)(void *arg, const char *key), void *arg, struct err *err);

/* The store's lock: one builder at a time. Creates the directory if it is missing. wait: waits
 * until ctx ends; otherwise ERR_EXISTS if another builder has it. Closing *ret releases the lock.
 */
int template_lock(struct ctx *ctx, const char *dir, bool wait, int *ret, struct err *err);

/* A template that the holder of the lock is building. */
struct template_draft {
    char *path;
    int ram_fd, state_fd; /* for writing */
    struct ledger *ledger;
    uint64_t record;
};
/* Removes incomplete drafts of earlier builders. Reserves ram_bytes, so that a full disk fails
 * here. The ledger, which is borrowed, records the draft's directory. */
int template_draft_begin(const char *dir, const char *key, uint64_t ram_bytes,
                         struct ledger *ledger, struct template_draft *ret, struct err *err);
/* Writes checksums and header, and syncs: the draft can then be cloned, to test it. Fills in info's
 * files. */
int template_draft_seal(struct template_draft *d, struct template_info *info, struct err *err);
/* Renames the draft into its place; removes the key's failed builds. */
int template_draft_publish(struct template_draft *d, const char *dir, const char *key,
                           struct err *err);
void template_draft_abort(struct template_draft *d); /* repeatable */

/* The identity of a file without reading it: it changes with every write or replacement. "-" if it
 * is unknown. Caller frees. */
char *template_file_identity(int fd);
/* The identity of a program: its build id, or the hash of a small file. It is the same for the same
 * content, even after a reinstallation. template_file_identity() if it has neither. */
char *template_program_identity(int fd);
/* The processor, from /proc/cpuinfo's text: what a saved CPU state depends on. Caller frees. */
char *template_cpu_identity(const char *cpuinfo);
/* The difference of two identities: "another kernel, another QEMU". NULL if kernel, initrd, QEMU
 * and processor are the same and only the VM's settings differ. Caller frees. */
char *template_difference(const char *identity, const char *other);
/* Why the newest template in the store is not used: its difference in kernel, initrd, QEMU or
 * processor; NULL if there is none. Caller frees. */
char *template_outdated(const char *dir, const char *identity, char ret_key[TEMPLATE_KEY_SIZE]);
/* The key of an identity's lines. */
void template_key_of(const char *identity, char ret[TEMPLATE_KEY_SIZE]);
