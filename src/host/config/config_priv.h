/* config_priv.h - the table of keys, for config*.c and its test. */
#pragma once
#include "host/config/config.h"
#include <stddef.h>

struct err;

enum key_type {
    KEY_BOOL,
    KEY_U32,
    KEY_PATH,    /* absolute */
    KEY_PROGRAM, /* absolute, or a name without a slash */
    KEY_LEVEL,
    KEY_WORDS,  /* any, separated by blanks */
    KEY_EITHER, /* bool: the words for false and true */
    KEY_URL,    /* http:// or empty */
    KEY_CGROUP, /* none, pod or an absolute path */
    KEY_CHOICE, /* enum: the words for 0, 1 and 2 */
};

struct config_key {
    const char *section, *name;
    enum key_type type;
    const char *def; /* NULL: computed by config_init */
    uint32_t min, max;
    size_t offset;
    const char *doc;
    const char *words[3]; /* KEY_EITHER, KEY_CHOICE, KEY_CGROUP */
};
extern const struct config_key config_keys[];
extern const size_t config_n_keys;

/* Sets the field at k->offset of fields. The error says what is allowed: "must be 1–64". */
int config_key_set(void *fields, const struct config_key *k, const char *value, struct err *err);
/* section "": any. NULL: not found; err suggests the nearest name or the key's section. */
const struct config_key *config_key_find(const char *section, const char *name, struct err *err);

/* Sets one value that was found at `where` ("FILE:LINE") and records its origin. An error goes to
 * the report if there is one; without a report, returns -1. */
int config_take(struct config *c, const char *where, const char *section, const char *name,
                const char *value, struct config_report *report, struct err *err);
