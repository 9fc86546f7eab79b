/* capture.h - runs a program and captures its output. */
#pragma once
#include <stdint.h>

struct ctx;
struct err;

#define CAPTURE_MAX_BYTES (1024 * 1024)

struct capture {
    const char *const *argv; /* argv[0] is looked up in PATH */
    const char *input;       /* for its stdin; NULL: none */
    uint64_t clone_flags;
    int (*setup)(void *arg, struct err *err); /* in the child, as in struct child_opts */
    void *setup_arg;
    uint64_t limit_ns;
};

/* Waits. *ret_text: stdout and stderr together, caller frees; *ret_status as from waitpid(). -1 if
 * the program could not be run, did not exit in time, or printed too much. */
int capture_run(struct ctx *ctx, const struct capture *c, char **ret_text, int *ret_status,
                struct err *err);
