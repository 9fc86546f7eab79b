/* bundle.h - the config.json of a bundle. */
#pragma once
#include <stddef.h>

struct ctx;
struct err;

/* Blocks until it is read or ctx ends: the bundle is a client's path, and may be on a dead NFS.
 * why: what a fiber's stack says meanwhile. err->sys is EFBIG for more than SPEC_MAX_BYTES. Caller
 * frees *ret_text. */
int bundle_read(struct ctx *ctx, const char *bundle, const char *why, char **ret_text,
                size_t *ret_len, struct err *err);
