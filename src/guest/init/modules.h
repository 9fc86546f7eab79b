/* modules.h - loads kernel modules with what they depend on. The image keeps them flat, plain
 * and in a known order: /lib/modules/RELEASE/NAME.ko, and a file "order" there with a line
 * "root: dep1 dep2 … root" per module. Repeatable: a module that is there already is fine. Blocks
 * in the kernel while a module initialises. */
#pragma once
#include <stddef.h>

struct err;
struct strv;

/* Also fine: built into the kernel. A missing or corrupt file is named with its errno. */
int modules_load(const char *root, struct err *err);

/* The same with the directory and the way to insert given; insert returns 0 or -errno. */
int modules_load_from(const char *dir, const char *root,
                      int (*insert)(void *arg, int fd, const char *name), void *arg,
                      struct err *err);
/* The names to load for root, from the text of an order file. '-' and '_' are the same in names.
 * ERR_NOT_FOUND without such a line, ERR_INVALID for a damaged one. Adds to *ret_names. */
int modules_order(const char *text, const char *root, struct strv *ret_names, struct err *err);
