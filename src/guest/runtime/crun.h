/* crun.h - runs crun and maps its errors. Each call is a child with a directory of its
 * own for log, pid file and console socket, removed afterwards. Waits until crun has ended or ctx
 * has; a crun that takes too long is killed. */
#pragma once
#include "base/mem.h"
#include "guest/stdio/dial.h"
#include <stdbool.h>
#include <sys/types.h>

struct crun;
struct ctx;
struct err;

#define CRUN_PROGRAM "/bin/crun"
#define CRUN_STATE "/run/crun"

/* At most CRUN_SLOTS run at a time; other calls wait in order. More would only share the VM's few
 * processors, and each takes memory. */
#define CRUN_SLOTS 8

/* The program, as a sealed copy in memory. Without it crun makes a copy at each start, so that no
 * container can write to crun through /proc/PID/exe. That takes half of its time. Caller frees. */
int crun_new(struct crun **ret, struct err *err);
void crun_free(struct crun *crun);
AUTO_DEFINE(struct crun *, crun_free);

/* The error of a failed crun, from the text it logged: ERR_NOT_FOUND (no such container or
 * command), ERR_EXISTS, ERR_INVALID (the id), ERR_STATE (not stopped), ERR_UNAVAILABLE (not
 * running), ERR_PERMISSION (the command), else ERR_INTERNAL. Errors about the command have runc's
 * texts, because clients match them. Always -1. */
int crun_error(const char *text, struct err *err);
/* The text of the last entry of level error in a log of JSON lines. Caller frees; NULL if none. */
char *crun_log_error(const char *log);

struct crun_start {
    const char *id;
    const char *bundle;  /* used by create only */
    const char *process; /* exec: the OCI process as JSON text; NULL: create */
    bool terminal;
    struct stdio_fds fds; /* the process's ends of its pipes; unused with a terminal. Borrowed */
};
/* crun create or exec. *ret_master is the terminal's (-1 without one). ret_pid is the process's. */
int crun_start_process(struct ctx *ctx, struct crun *crun, const struct crun_start *s,
                       pid_t *ret_pid, int *ret_master, struct err *err);
int crun_start(struct ctx *ctx, struct crun *crun, const char *id, struct err *err);
/* What `crun start` and `crun delete` do for a container that has no hooks, without a process,
 * which would first parse the container's spec again: one writes to the FIFO that init waits for
 * (ERR_UNAVAILABLE if it has exited), the other removes crun's directory of a container whose
 * processes and cgroup are gone (missing is success). root: CRUN_STATE. Neither waits. */
int crun_release(const char *root, const char *id, struct err *err);
int crun_forget(const char *root, const char *id, struct err *err);
/* A container that crun does not know is success. force: also kills. */
int crun_delete(struct ctx *ctx, struct crun *crun, const char *id, bool force, struct err *err);
/* resources: OCI LinuxResources as JSON text. */
int crun_update(struct ctx *ctx, struct crun *crun, const char *id, const char *resources,
                struct err *err);
