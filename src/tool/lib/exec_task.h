/* exec_task.h - a command in a container of a running VM, asked of its shim as containerd would
 * (Exec, Start, Wait, Delete), for `lcow exec ID`. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct rpc_client;

struct exec_task {
    struct rpc_client *client; /* borrows, as all here */
    const char *container, *exec_id;
    const char *process; /* JSON of an OCI process */
    bool terminal;
};

/* The process of the container's own spec, with this command and directory (NULL: as the container
 * has it). Reads its bundle. Caller frees. */
int exec_task_process(const char *bundle, char *const *argv, const char *cwd, bool terminal,
                      char **ret_json, struct err *err);
/* Waits until it has ended. ctx over: it is killed. */
int exec_task_run(struct ctx *ctx, const struct exec_task *t, const char *in, const char *out,
                  const char *err_path, int *ret_code, struct err *err);
int exec_task_close_stdin(struct ctx *ctx, const struct exec_task *t, struct err *err);
int exec_task_resize(struct ctx *ctx, const struct exec_task *t, uint16_t rows, uint16_t cols,
                     struct err *err);
