/* holder.h - the first process of a pod, without crun and without a root file system
 * (docs/decisions/0039-a-pod-without-a-pause-image.md): it has new pid, IPC, UTS and mount
 * namespaces, the pod's network, an empty root and no rights. Its program is embedded. */
#pragma once
#include <sys/types.h>

struct ctx;
struct err;
struct spec;

/* Its program as bytes, made at build time from holder_main.c. */
extern const unsigned char holder_blob[];
extern const unsigned long holder_blob_len;

struct holder_opts {
    /* Read of it: hostname, linux.sysctl, process.user, process.oomScoreAdj and the path of the
     * network namespace, without which it gets one of its own. */
    const struct spec *spec;
    const char *cgroup; /* which exists: its full path */
    const int *fds;     /* stdin, stdout, stderr; borrowed */
};
/* Waits until it runs. It is a child of the caller, who reaps it. */
int holder_spawn(struct ctx *ctx, const struct holder_opts *o, pid_t *ret, struct err *err);
