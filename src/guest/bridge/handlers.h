/* handlers.h - what each bridge message does: one table from message to handler. A handler
 * decodes nothing and encodes nothing: it calls one room and turns its errors into the HRESULTs
 * of docs/reference/gcs-protocol.md §2.5. */
#pragma once
#include "guest/bridge/server.h"
#include "guest/runtime/container.h"

struct dialer;
struct loop;
struct nets;
struct vm_processes;
struct storage;

/* What the handlers work on. All borrowed. */
struct handlers {
    struct vm_processes *processes;
    struct containers *containers;
    struct storage *storage;
    struct nets *nets;
    struct dialer *dialer;
    unsigned n_forwards;   /* connections to pods' ports */
    struct server *server; /* for notifications */
    bool policy_set;       /* an (empty) security policy has come */
    /* Powers the VM off at once. Returns only on failure. */
    int (*power_off)(struct err *err);
};

/* For containers_opts.notify; arg is the struct handlers. */
void handlers_notify(void *arg, const char *id, const char *activity_id, enum container_end end);

extern const struct server_entry handlers_table[];
extern const size_t handlers_table_len;

/* Ends the VM. Graceful: SIGTERM to containers and to processes outside them, up to 5 s in all,
 * then the file systems are synced. Returns only if powering off failed. */
int handlers_shutdown(struct ctx *ctx, struct handlers *h, bool forced, struct err *err);

/* What the agent is doing, for DumpStacks and SIGUSR1: every fiber with what it waits for, every
 * thread with where it is in the kernel. Into the log, one line each. */
void stacks_log(struct loop *loop);
