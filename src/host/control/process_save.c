/* process_save.c - a process of a container. Not saved: what its container has too (ids, bundle,
 * pid); signals of a start under way, since a process that is being started cannot be saved. The
 * fibers that await its exit are started again. */
#include "base/json.h"
#include "base/saved.h"
#include "host/control/container.h"
#include "host/control/pod.h"
#include "host/control/process_priv.h"
#include "host/control/registry.h"
#include "host/io/io.h"

static void fields(struct saved *s, struct process *p)
{
    saved_str(s, 1, &p->exec_id);
    saved_str(s, 2, &p->in);
    saved_str(s, 3, &p->out);
    saved_str(s, 4, &p->err);
    json_saved(s, 5, &p->oci_process);
    saved_bool(s, 6, &p->terminal);
    SAVED_ENUM(s, 7, p->state, PROCESS_ST_COUNT);
    saved_bool(s, 8, &p->stdin_closed);
    saved_u16(s, 9, &p->rows);
    saved_u16(s, 10, &p->cols);
    saved_u32(s, 11, &p->guest_pid);
    saved_u64(s, 12, &p->wait_id);
    saved_u32(s, 13, &p->exit_status);
    saved_u64(s, 14, &p->exited_wall_ns);
    saved_bool(s, 15, &p->killed);
    saved_u64(s, 16, &p->killed_until);
}

static void resume(struct process *p)
{
    if (p->state == PROCESS_ST_TERMINATED)
        latch_set(&p->exited);
    if (p->state == PROCESS_ST_RUNNING || p->wait_id)
        process_watch(p);
    if (p->killed && p->state == PROCESS_ST_RUNNING)
        process_watch_killed(p);
}

void process_saved(struct saved *s, uint32_t field, struct container *c, struct process **p)
{
    struct err ignored = ERR_INIT;
    struct io_spec spec;

    if ((!saved_reads(s) && !*p) || !saved_open(s, field))
        return;
    if (saved_reads(s))
        *p = process_new(c, "", &(struct stdio_paths){ 0 }, NULL);
    else if ((*p)->starting || (*p)->draining)
        saved_fail(s, "a process of container %s is being started or ends", container_id(c));
    fields(s, *p);
    if (!(*p)->exec_id || !(*p)->in || !(*p)->out || !(*p)->err)
        saved_fail(s, "a process of container %s is incomplete", container_id(c));
    spec = process_io_spec(*p);
    io_saved(s, 17, (*p)->pod->r->o.loop, &spec, &(*p)->io);
    if (saved_reads(s) && saved_check(s, &ignored) == 0)
        resume(*p);
    saved_close(s);
}
