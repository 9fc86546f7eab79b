/* process_priv.h - the inside of a process, for process.c and its tests. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "host/control/process.h"
#include "host/io/io.h"

/* Every wait of this controller that no caller bounds has its limit here. */
#define PROCESS_LOST_DRAIN_LIMIT (20 * NS_PER_MS) /* what is in our sockets already */
/* From a SIGKILL that the guest acted on to the news of the end: more than all the limits on its
 * way, for output, execs and OOM. */
#define PROCESS_KILLED_LIMIT (60 * NS_PER_S)

struct process {
    unsigned refs;
    struct container *c; /* NULL once it was deleted */
    struct pod *pod;     /* counted */
    char *container_id, *guest_id, *bundle, *exec_id, *in, *out, *err;
    json_t *oci_process; /* of an exec */
    bool terminal;
    bool hidden; /* as its container */
    enum process_state state;
    bool starting;
    bool draining;            /* its io is in use */
    uint64_t pending_signals; /* bit n-1; sent when the start is through */
    bool stdin_closed;
    uint16_t rows, cols; /* asked for before the start */
    uint32_t guest_pid, pid;
    uint64_t wait_id; /* guest.h */
    uint32_t exit_status;
    uint64_t exited_wall_ns;
    struct io *io;
    struct latch exited;
    bool killed;           /* by a SIGKILL that the guest acted on: its end is awaited */
    uint64_t killed_until; /* until then */
};

struct io_spec process_io_spec(const struct process *p);
/* Starts the fiber that awaits its exit; that awaits it after a SIGKILL, until killed_until. */
void process_watch(struct process *p);
void process_watch_killed(struct process *p);
