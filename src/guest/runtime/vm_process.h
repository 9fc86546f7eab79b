/* vm_process.h - programs that run in the VM itself, outside of any container: started with their
 * stdio dialled to the host, waited for, signalled, resized. Each is in the table from its start
 * until its first answered wait.
 *
 * Without a terminal the dialled sockets themselves are the process's fds 0, 1 and 2 and we keep
 * no copy; with one, a relay stands between (stdio/tty.h). */
#pragma once
#include "base/fiber.h"
#include "guest/runtime/process.h"
#include "guest/stdio/dial.h"

struct strv;

#define VM_PROCESS_MAX 1024

struct vm_process_spec {
    const char *const *argv;  /* NULL-terminated; wins over command_line if not empty */
    const char *command_line; /* split by cmdline_split() */
    const char *const *env;   /* the whole environment; NULL or empty: the agent's PATH */
    const char *cwd;          /* NULL or "": the agent's */
    bool terminal;            /* then no stderr */
    struct stdio_ports io;    /* streams that are not wanted are /dev/null */
};

struct vm_processes {
    struct loop *loop;
    struct dialer *dialer; /* borrows */
    struct processes all;
    struct waitq exits;
};

/* Caller frees. */
struct vm_processes *vm_processes_new(struct loop *loop, struct dialer *dialer);
/* Kills what still runs and waits (bounded by the kernel) until all is reaped. */
void vm_processes_free(struct vm_processes *v);
AUTO_DEFINE(struct vm_processes *, vm_processes_free);
/* SIGTERM to all that run; waits until they have exited or ctx ends. */
int vm_processes_stop(struct ctx *ctx, struct vm_processes *v, struct err *err);

/* Waits until the streams are connected and the program runs. ERR_INVALID: nothing to run, or a
 * terminal with stderr; ERR_EXHAUSTED: too many; else the error names the command or the port. */
int vm_process_exec(struct ctx *ctx, struct vm_processes *v, const struct vm_process_spec *spec,
                    uint32_t *ret_pid, struct err *err);
/* As process_wait(), then forgets it. ERR_NOT_FOUND for an unknown pid, as in those below. */
int vm_process_wait(struct ctx *ctx, struct vm_processes *v, uint32_t pid, uint32_t timeout_ms,
                    uint32_t *ret_code, struct err *err);
/* As process_signal() and process_resize(). */
int vm_process_signal(struct vm_processes *v, uint32_t pid, int signo, struct err *err);
int vm_process_resize(struct vm_processes *v, uint32_t pid, uint16_t rows, uint16_t cols,
                      struct err *err);

/* Splits a command line into words as a shell would, without expanding anything:
 * blanks separate, '…' is literal, "…" knows \" and \\, outside a backslash takes the next
 * character as it is. Never waits. */
#define CMDLINE_MAX_BYTES (128 * 1024)

/* Adds the words to *ret_words. ERR_INVALID for an open quote or a lonely backslash. */
int cmdline_split(const char *line, struct strv *ret_words, struct err *err);
