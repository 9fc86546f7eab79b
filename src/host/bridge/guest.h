/* guest.h - THE GUEST SEAM: typed calls of the GCS protocol, as the controllers see them; no wire
 * format. The real one (bridge.c) speaks frames over a stream, the fake one is scripted.
 *
 * Life: new (implementation's own) -> prepare (before the VM starts) -> connect -> calls … ->
 * close -> free. Many calls may be in flight; each waits until ctx ends or the bridge is lost,
 * then ERR_UNAVAILABLE. A call on a guest that is not connected is ERR_UNAVAILABLE, never a
 * crash. close never waits and wakes everyone; it can be repeated. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct guest;
struct stream;

#define GUEST_NULL_ID "00000000-0000-0000-0000-000000000000" /* addresses the VM itself */

struct guest_caps {
    bool namespace_add, signal_process, dump_stacks, delete_container_state;
    char os[16]; /* "linux" */
};

struct guest_exec {
    const char *container; /* NULL: in the VM, outside containers */
    /* For the VM: */
    const char *const *argv;
    const char *const *env; /* "KEY=value"; the whole environment */
    const char *cwd;
    /* For a container: an OCI process as JSON text; NULL starts its init. */
    const char *oci_process;
    bool terminal; /* then no stderr */
    bool want_stdin, want_stdout, want_stderr;
};

struct guest_process {
    uint32_t pid;                  /* in the guest's root pid namespace */
    struct stream *in, *out, *err; /* NULL if not wanted; caller frees */
};

#define GUEST_WAIT_FOREVER UINT32_MAX

struct guest_ops {
    /* Opens the ports for entropy, log and bridge. */
    int (*prepare)(struct ctx *ctx, struct guest *g, struct err *err);
    /* Accepts the bridge, negotiates version 4. */
    int (*connect)(struct ctx *ctx, struct guest *g, struct err *err);
    void (*close)(struct guest *g, const char *why);
    /* Waits until the guest's log stream has ended, or ctx. At once if it never began. */
    int (*drain_log)(struct ctx *ctx, struct guest *g, struct err *err);
    void (*free)(struct guest *g);

    bool (*connected)(const struct guest *g);
    const struct guest_caps *(*caps)(const struct guest *g);
    /* Age of the oldest outstanding call in ns, 0 if none; waits for processes do not count. */
    uint64_t (*oldest_call)(const struct guest *g);

    /* Ports for stdio are opened before the request and never reused. */
    int (*exec)(struct ctx *ctx, struct guest *g, const struct guest_exec *e,
                struct guest_process *ret, struct err *err);
    /* ERR_DEADLINE when timeout_ms passed in the guest, ERR_NOT_FOUND for an unknown pid. The
     * answer comes only after the output streams were read to their end and closed. */
    int (*wait_process)(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                        uint32_t timeout_ms, uint32_t *ret_exit_code, struct err *err);
    int (*signal_process)(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          int signo, struct err *err);
    int (*resize_console)(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          uint16_t rows, uint16_t cols, struct err *err);
    /* query and *ret_properties are JSON texts; caller frees the latter. */
    int (*get_properties)(struct ctx *ctx, struct guest *g, const char *container,
                          const char *query, char **ret_properties, struct err *err);
    int (*dump_stacks)(struct ctx *ctx, struct guest *g, char **ret_text, struct err *err);
    /* Success means asked for. The VM itself answers by going away. */
    int (*shutdown)(struct ctx *ctx, struct guest *g, const char *container, bool forced,
                    struct err *err);
};

struct guest {
    const struct guest_ops *ops;
};
