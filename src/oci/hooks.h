/* hooks.h - the hooks of a spec (runtime-spec, POSIX-platform hooks). Hooks of the runtime's
 * namespace run on the host, as with runc: prestart, createRuntime, poststart, poststop. Hooks of
 * the container's namespace are refused, because it is in the VM (docs/decisions/0028). Pure JSON;
 * never waits. */
#pragma once
#include "base/mem.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct hooks;
struct saved;
struct spec;

/* *ret: NULL if there is none. Keeps what it needs of the spec. Unless run is set, all hooks are
 * refused. ERR_INVALID names the hook and the remedy. */
int hooks_read(const struct spec *s, bool run, struct hooks **ret, struct err *err);
void hooks_free(struct hooks *h);

struct hook {
    const char *path;      /* borrowed */
    struct strv argv, env; /* env: all of it; empty: the caller decides */
    uint32_t timeout_s;    /* 0: none is set */
};
/* The i-th of one kind; false: there are no more, or h is NULL. The caller releases it. */
bool hooks_get(const struct hooks *h, const char *kind, size_t i, struct hook *ret);
void hook_release(struct hook *h);
AUTO_VALUE(struct hook, hook_release);

/* What a hook reads on its stdin. pid 0: left out. The caller frees it. */
char *hooks_state(const struct hooks *h, const char *id, const char *bundle, const char *status,
                  uint32_t pid);

/* For saved.h. NULL: none. */
void hooks_saved(struct saved *s, uint32_t field, struct hooks **h);
