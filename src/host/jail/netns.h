/* netns.h - a network namespace, by a path that is a client's. */
#pragma once

struct ctx;
struct err;

/* Waits until it is open or ctx ends. ERR_INVALID if it is something else, which is not opened: to
 * open a device may do something. */
int netns_open(struct ctx *ctx, const char *path, int *ret_fd, struct err *err);
