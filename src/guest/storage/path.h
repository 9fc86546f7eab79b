/* path.h - what a path from the host may look like before we mount, make or delete there. Leaf
 * code; never waits. */
#pragma once
#include <stdbool.h>

struct err;

#define PATH_BYTES_MAX 4095
#define PATH_PASSABLE 0711 /* directories that crun must get through in a user namespace */

/* Absolute, no empty, "." or ".." component, no slash at the end, no line feed. ERR_INVALID
 * otherwise. what: the field's name. */
int path_check(const char *path, const char *what, struct err *err);
/* The same, and below /run: where the guest may mount and delete. */
int path_check_run(const char *path, const char *what, struct err *err);
/* Fit for the option string of an overlay: no ':', ',' or '\'. */
int path_check_option(const char *path, const char *what, struct err *err);
/* One component: not empty, not "." or "..", no '/', at most 128 bytes of [0-9A-Za-z._-]. */
bool path_name_ok(const char *name);

/* root/relative with "", "." and ".." resolved by text. ERR_INVALID if that leaves root or is root
 * itself. Caller frees. */
int path_below(const char *root, const char *relative, char **ret, struct err *err);
/* True if path is base or below it. */
bool path_is_below(const char *path, const char *base);
/* Caller frees; "/" for "/a". */
char *path_parent(const char *path);
