/* diag.h - requests that diagnose a running shim through its registry: a process in the VM itself,
 * a host directory in the VM, all processes, what each fiber waits for. None of them takes a gate
 * or changes a container. */
#pragma once
#include "host/control/process.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct io;
struct registry;
struct vm_process;

struct diag_exec {
    const char *const *argv;  /* NULL-terminated */
    const char *cwd;          /* "": / */
    struct stdio_paths stdio; /* as for a container's process; "": none */
};
/* A hold on a process while diag_exec runs; zeroed by the caller, empty before and after. */
struct diag_live {
    struct registry *r;
    struct io *io;
    struct vm_process *process;
    bool stdin_closed; /* also before there is an io to tell */
};
/* Waits until the process has ended and its output is delivered; it is killed if ctx ends first.
 * ERR_STATE: no VM runs, or a terminal with a stderr. */
int diag_exec(struct ctx *ctx, struct registry *r, const struct diag_exec *e,
              struct diag_live *live, uint32_t *ret_code, struct err *err);
/* No more input behind what is on its way. Never waits. */
void diag_close_stdin(struct diag_live *l);
/* ERR_STATE before it runs. */
int diag_resize(struct ctx *ctx, struct diag_live *l, uint16_t rows, uint16_t cols,
                struct err *err);

/* A host directory or a single file, seen in the VM at vm_path (absolute; "": where the share
 * itself is). It stays until the VM ends. *ret_path: where it is. Caller frees. */
int diag_share(struct ctx *ctx, struct registry *r, const char *host_path, const char *vm_path,
               bool read_only, char **ret_path, struct err *err);

/* The image or device of one of the VM's disks has grown (scsi_resize()). */
int diag_resize_disk(struct ctx *ctx, struct registry *r, const char *host_path,
                     uint64_t *ret_bytes, struct err *err);

/* Each container's init (its exec_id is ""), followed by the container's execs. Never waits. */
void diag_each(struct registry *r, void (*fn)(void *arg, const struct process_view *v), void *arg);

/* Both are texts; callers free. A guest that does not answer within seconds does not keep the
 * host's part back: then *ret_guest says why. */
void diag_stacks(struct ctx *ctx, struct registry *r, char **ret_host, char **ret_guest);

/* The last lines of the VM's console, made printable; also while the VM is stopped, or when it has
 * just ended. Caller frees. ERR_STATE: there is none. Never waits. */
int diag_console(struct registry *r, char **ret_text, struct err *err);
