/* pause.h - the root file system of a pod that comes without one (containerd's sandboxer "shim"):
 * one program, which waits and lets the kernel fetch the pod's orphans. A detached, read-only
 * mount (see tree.h): nothing of it is on a disk. */
#pragma once

struct ctx;
struct err;

#define PAUSE_NAME "pause"
#define PAUSE_PROGRAM "/" PAUSE_NAME

/* Waits until ctx ends; the work is a thread's. Caller closes *ret_fd. */
int pause_open(struct ctx *ctx, int *ret_fd, struct err *err);
