/* exec.h - a command in a running VM or one of its containers, with descriptors of ours as its
 * stdio, which goes through FIFOs in a directory of our own, as containerd's does. */
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
    bool terminal;                 /* of the VM's, with ours in raw mode meanwhile */
    int fds[3];                    /* borrowed */
    uint64_t stall_ns; /* ends with ERR_DEADLINE if no byte moves for so long; 0: never */
};
/* Waits until it has ended and its output is written. SIGINT and SIGTERM end it. Once a process. */
int exec_run(struct ctx *ctx, struct rpc_client *client, const struct exec_what *what,
             int *ret_code, struct err *err);
/* As JSON, the process of the container's own spec with this command and directory (NULL: as the
 * container has it). Reads its bundle. Caller frees. */
int exec_process(const char *bundle, char *const *argv, const char *cwd, bool terminal,
                 char **ret_json, struct err *err);
