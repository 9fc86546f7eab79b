/* scratch_priv.h - between scratch*.c. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct ledger;

/* scratch_template.c: the pristine image of this size, made if it is not there yet. Opened for
 * reading; the fd, or -1. */
int scratch_template(struct ctx *ctx, const char *dir, uint32_t size_mib, struct ledger *ledger,
                     struct err *err);
/* A file's name: it is a template that only an older lcow made, and nobody looks for any more. */
bool scratch_template_is_old(const char *name);
/* scratch_copy.c: what is there, and no more; blocks. from_dir is for the message. */
int scratch_copy(int from, int to, const char *to_dir, struct err *err);
/* ENOSPC and EDQUOT name the directory that is full. */
int scratch_err(struct err *err, int errnum, const char *doing, const char *dir);
