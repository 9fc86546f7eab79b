/* exec.h - runs a command in a VM or one of its containers, with our descriptors as its stdio. As
 * with containerd, the stdio passes through FIFOs in a directory of our own. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct rpc_client;

struct exec_what {
    const char *container;         /* NULL: in the VM itself */
    const char *exec_id, *process; /* in a container: by exec_process() */
    char *const *argv;             /* in the VM; NULL-terminated */
    const char *cwd;               /* the same; NULL: / */
    bool terminal;                 /* a terminal in the VM, with ours in raw mode */
    int fds[3];                    /* borrowed */
    uint64_t stall_ns; /* fails with ERR_DEADLINE without progress for this long; 0: never */
};
/* Waits until the command has exited and its output is written. SIGINT and SIGTERM end it. May be
 * called once per process. */
int exec_run(struct ctx *ctx, struct rpc_client *client, const struct exec_what *what,
             int *ret_code, struct err *err);
/* As JSON, the process of the container's own spec with this command and directory (NULL: as the
 * container has it). Reads its bundle. Caller frees. */
int exec_process(const char *bundle, char *const *argv, const char *cwd, bool terminal,
                 char **ret_json, struct err *err);
