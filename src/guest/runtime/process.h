/* process.h - processes in the VM itself, outside containers: started with their stdio dialled to
 * the host, waited for, signalled, resized. A process is in the table from its start until its
 * first answered wait. Pids are those of the VM's root pid namespace.
 *
 * Without a terminal the dialled sockets themselves are the process's fds 0, 1 and 2 and we keep
 * no copy; with one, a relay stands between (stdio/tty.h). */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct dialer;
struct err;
struct loop;
struct process_table;

#define PROCESS_MAX 1024
#define PROCESS_WAIT_FOREVER UINT32_MAX

struct process_spec {
    const char *const *argv;  /* NULL-terminated; wins over command_line if not empty */
    const char *command_line; /* split by cmdline_split() */
    const char *const *env;   /* the whole environment; NULL or empty: our PATH */
    const char *cwd;          /* NULL or "": ours */
    bool terminal;            /* then no stderr */
    uint16_t rows, cols;      /* 0: leave */
    bool want[3];             /* stdin, stdout, stderr; the others are /dev/null */
    uint32_t port[3];         /* of the host, for those wanted */
};

/* Borrows the dialer. Caller frees. */
struct process_table *process_table_new(struct loop *loop, struct dialer *dialer);
/* Kills what still runs and waits (bounded by the kernel) until all is reaped. */
void process_table_free(struct process_table *t);
AUTO_DEFINE(struct process_table *, process_table_free);
size_t process_count(const struct process_table *t);

/* Waits for the dialled streams and until exec happened. ERR_INVALID: nothing to run, or a
 * terminal with stderr; ERR_EXHAUSTED: too many; else the error names the command or the port. */
int process_exec(struct ctx *ctx, struct process_table *t, const struct process_spec *spec,
                 uint32_t *ret_pid, struct err *err);
/* Waits until the process has exited and a terminal's output has been drained, then forgets it.
 * Code: exit status, or 128 + signal. ERR_DEADLINE after timeout_ms (the process stays),
 * ERR_NOT_FOUND for an unknown pid. */
int process_wait(struct ctx *ctx, struct process_table *t, uint32_t pid, uint32_t timeout_ms,
                 uint32_t *ret_code, struct err *err);
/* ERR_NOT_FOUND: unknown or gone; ERR_INVALID: no such signal. 0 means SIGKILL. */
int process_signal(struct process_table *t, uint32_t pid, int signo, struct err *err);
/* ERR_STATE without a terminal; success if it is closed already. */
int process_resize(struct process_table *t, uint32_t pid, uint16_t rows, uint16_t cols,
                   struct err *err);
/* Signals all that run and waits until they have exited or ctx ends. */
int process_stop_all(struct ctx *ctx, struct process_table *t, int signo, struct err *err);
