/* exec.h - a command in a running VM or one of its containers, with descriptors of ours as its
 * stdio. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct exec_task;
struct rpc_client;
struct tool;

struct tool_exec {
    const struct exec_task *task; /* in a container; NULL: in the VM, and then: */
    char *const *argv;            /* NULL-terminated */
    const char *cwd;              /* NULL: / */
    bool terminal;                /* of the VM's, with ours in raw mode meanwhile */
    int fds[3];                   /* borrowed */
    uint64_t stall_ns; /* ends with ERR_DEADLINE if no byte moves for so long; 0: never */
};
/* Waits until it has ended and its output is written. SIGINT and SIGTERM end it. Once a process. */
int tool_exec_in_vm(struct ctx *ctx, struct tool *t, struct rpc_client *client,
                    const struct tool_exec *what, int *ret_code, struct err *err);
