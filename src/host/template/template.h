/* template.h - the store of templates: VMs saved just before their agent's first connection, to be
 * cloned from. One directory per key below the store's:
 *     <dir>/<key>/ram      the memory; clones map it copy-on-write
 *     <dir>/<key>/state    the devices
 *     <dir>/<key>/header   what it is: a checksum, then JSON
 *     <dir>/<key>/bad      if it is there: why no VM may be cloned from it any more
 *     <dir>/<key>/strikes  if it is there: why clones failed, a line each
 *     <dir>/failed-<key>   if it is there: when, how often and why its build failed
 * All of root's and nobody else's, written elsewhere and put in place by rename. Whatever is
 * damaged, of another owner or a symlink is refused with ERR_DATA_LOSS or ERR_PERMISSION, and a
 * builder replaces it. Blocks for a local file system; only template_lock may wait. */
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
    uint32_t tsc_khz;    /* what its kernel was told; 0: nothing */
    uint64_t created_ns; /* wall clock */
    struct template_file ram, state;
};
void template_info_release(struct template_info *i); /* repeatable */
AUTO_VALUE(struct template_info, template_info_release);
/* As one JSON object. */
void template_info_write(const struct template_info *i, struct jsw *w, const char *key);

/* The header's bytes and back; ERR_DATA_LOSS names what is wrong. Caller frees. Fuzzed. */
char *template_header_format(const struct template_info *i, size_t *ret_len);
int template_header_parse(const char *text, size_t len, struct template_info *ret, struct err *err);

/* An opened one. */
struct template
{
    struct template_info info;
    int ram_fd, state_fd; /* for reading */
};
void template_close(struct template *t); /* repeatable; needs ram_fd and state_fd set */
AUTO_VALUE(struct template, template_close);

/* The cheap look, at each use: owners, kinds, the header's checksum, that both files are those that
 * were written (size, inode, time), and that it is not marked bad. ERR_NOT_FOUND: there is none. */
int template_open(const char *dir, const char *key, struct template *ret, struct err *err);
/* The same for a draft that is sealed. */
int template_open_draft(const char *path, const char *key, struct template *ret, struct err *err);
/* The same, and the checksums of both files. Reads all of them. */
int template_verify(const char *dir, const char *key, struct template_info *ret, struct err *err);
/* Keys in the order of their names, whatever state they are in. Caller frees. A store that is not
 * there is empty. */
int template_list(const char *dir, char (**ret_keys)[TEMPLATE_KEY_SIZE], size_t *ret_n,
                  struct err *err);
int template_remove(const char *dir, const char *key, struct err *err);

/* No VM is cloned from it any more; the next builder replaces it. */
int template_mark_bad(const char *dir, const char *key, const char *why, struct err *err);
/* A clone failed in a way that may be the template's fault. True: that was one too many, and it is
 * marked bad now. The count begins anew whenever a clone has proved to be good (absolve). */
#define TEMPLATE_STRIKES 2
bool template_strike(const char *dir, const char *key, const char *why);
void template_absolve(const char *dir, const char *key);

/* A build that failed. */
struct template_failure {
    char key[TEMPLATE_KEY_SIZE];
    uint64_t at_ns; /* wall clock */
    unsigned count; /* one after the other */
    char why[512];
};
void template_remember_failure(const char *dir, const char *key, uint64_t now_ns, const char *why);
bool template_failure(const char *dir, const char *key, struct template_failure *ret);
/* Before that nobody but an administrator tries again: 10 min after the first, doubling to 24 h. */
uint64_t template_retry_at(const struct template_failure *f);
/* All that the store knows of; caller frees. */
size_t template_failures(const char *dir, struct template_failure **ret);

/* A VM starts from it: it is wanted. Best effort. */
void template_touch(const char *dir, const char *key);
/* Removes those that nobody has used for TEMPLATE_UNUSED_NS, and the longest unused while there are
 * more than TEMPLATE_MOST; never keep, which may be NULL. VMs that were cloned from them go on. For
 * the holder of the lock. now_ns: wall clock. removed, which may be NULL, is told each. */
#define TEMPLATE_MOST 4
#define TEMPLATE_UNUSED_NS (UINT64_C(14) * 24 * 3600 * 1000000000)
int template_prune(const char *dir, const char *keep, uint64_t now_ns,
                   void (*removed)(void *arg, const char *key), void *arg, struct err *err);

/* The store's lock: one builder at a time. The directory is made if it is missing. wait: until ctx
 * ends; else ERR_EXISTS if another has it. *ret is closed to let go. */
int template_lock(struct ctx *ctx, const char *dir, bool wait, int *ret, struct err *err);

/* One that is being made, by the holder of the lock. */
struct template_draft {
    char *path;
    int ram_fd, state_fd; /* for writing */
    struct ledger *ledger;
    uint64_t record;
};
/* Removes what builders before left half done. ram_bytes are reserved: a disk that is full says so
 * now. Its directory is in the ledger, which is borrowed. */
int template_draft_begin(const char *dir, const char *key, uint64_t ram_bytes,
                         struct ledger *ledger, struct template_draft *ret, struct err *err);
/* Checksums, header, fsync: it can be cloned from, to prove it. info's files are filled in. */
int template_draft_seal(struct template_draft *d, struct template_info *info, struct err *err);
/* By rename into its place; what was held against this key is forgotten. */
int template_draft_publish(struct template_draft *d, const char *dir, const char *key,
                           struct err *err);
void template_draft_abort(struct template_draft *d); /* repeatable */

/* What a file is, without reading it: changes with every write or replacement. "-" if that cannot
 * be told. Caller frees. */
char *template_file_identity(int fd);
/* What a program is: its build id, or what a small one consists of. The same for the same content,
 * whoever touched or installed it. As template_file_identity() if it has neither. */
char *template_program_identity(int fd);
/* The processor, from /proc/cpuinfo's text: what a saved CPU state depends on. Caller frees. */
char *template_cpu_identity(const char *cpuinfo);
/* What two identities differ in: "another kernel, another QEMU". NULL if it is none of kernel,
 * initrd, QEMU and processor, but the VM's settings. Caller frees. */
char *template_difference(const char *identity, const char *other);
/* The newest template in the store that was made for another kernel, initrd, QEMU or processor:
 * what it differs in, for those who say why it is not used; NULL if there is none. Caller frees. */
char *template_outdated(const char *dir, const char *identity, char ret_key[TEMPLATE_KEY_SIZE]);
/* Of the lines. */
void template_key_of(const char *identity, char ret[TEMPLATE_KEY_SIZE]);
