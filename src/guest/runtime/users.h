/* users.h - the user of an OCI image, "user|uid[:group|gid]", looked up in the image's own passwd
 * and group files. Pure; never waits. */
#pragma once
#include <stdint.h>

struct err;

#define USERS_MAX_BYTES (1u << 20) /* of either file */

/* passwd and group: the files' texts, "" if there is none. A name must have exactly one entry; a
 * uid or gid without one is taken as it is (a uid then with gid 0). ERR_INVALID names what is
 * missing. */
int users_resolve(const char *user, const char *passwd, const char *group, uint32_t *ret_uid,
                  uint32_t *ret_gid, struct err *err);
