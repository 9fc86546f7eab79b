#include "host/shim/event_wire.h"
#include "api/events.pb-c.h"
#include "api/types.pb-c.h"
#include "base/mem.h"
#include "host/control/events.h"
#include "proto/pb.h"

static const char *const topics[EVENT_KIND_COUNT] = {
    [EVENT_CREATE] = "/tasks/create",
    [EVENT_START] = "/tasks/start",
    [EVENT_EXEC_ADDED] = "/tasks/exec-added",
    [EVENT_EXEC_STARTED] = "/tasks/exec-started",
    [EVENT_OOM] = "/tasks/oom",
    [EVENT_EXIT] = "/tasks/exit",
    [EVENT_DELETE] = "/tasks/delete",
    [EVENT_PAUSED] = "/tasks/paused",
    [EVENT_RESUMED] = "/tasks/resumed",
};

static int wire_create(const struct event *e, Any **ret)
{
    AUTO(pb_free) TaskCreate *m = pb_new(&task_create__descriptor);

    pb_set_str(&m->container_id, e->container_id);
    pb_set_str(&m->bundle, e->bundle);
    m->pid = e->pid;
    m->io = pb_new(&task_io__descriptor);
    pb_set_str(&m->io->stdin, e->in);
    pb_set_str(&m->io->stdout, e->out);
    pb_set_str(&m->io->stderr, e->err);
    m->io->terminal = e->terminal;
    for (size_t i = 0; i < e->n_rootfs; i++) {
        Mount *mount = pb_new(&mount__descriptor);
        const char *const *o = e->rootfs[i].options;

        pb_set_str(&mount->type, e->rootfs[i].type);
        pb_set_str(&mount->source, e->rootfs[i].source);
        pb_set_str(&mount->target, e->rootfs[i].target);
        for (; o && *o; o++) {
            const char *option = NULL;

            pb_set_str(&option, *o);
            pb_add(mount->options, mount->n_options, option);
        }
        pb_add(m->rootfs, m->n_rootfs, mount);
    }
    return pb_set_any(ret, m);
}

static int wire_exit(const struct event *e, Any **ret)
{
    TaskExit m = TASK_EXIT__INIT;
    Timestamp at = pb_time_of(e->exited_wall_ns);

    m.container_id = e->container_id;
    m.id = e->exec_id[0] ? e->exec_id : e->container_id;
    m.pid = e->pid;
    m.exit_status = e->exit_status;
    m.exited_at = &at;
    return pb_set_any(ret, &m);
}

static int wire_delete(const struct event *e, Any **ret)
{
    TaskDelete m = TASK_DELETE__INIT;
    Timestamp at = pb_time_of(e->exited_wall_ns);

    m.container_id = e->container_id;
    m.id = e->exec_id;
    m.pid = e->pid;
    m.exit_status = e->exit_status;
    m.exited_at = &at;
    return pb_set_any(ret, &m);
}

/* Those that have a container, and perhaps an exec and a pid: field by field the same in C. */
static int wire_plain(const struct event *e, Any **ret)
{
    TaskStart start = TASK_START__INIT;
    TaskExecAdded added = TASK_EXEC_ADDED__INIT;
    TaskExecStarted started = TASK_EXEC_STARTED__INIT;
    TaskOOM oom = TASK_OOM__INIT;
    TaskPaused paused = TASK_PAUSED__INIT;
    TaskResumed resumed = TASK_RESUMED__INIT;

    start.container_id = added.container_id = started.container_id = e->container_id;
    oom.container_id = paused.container_id = resumed.container_id = e->container_id;
    added.exec_id = started.exec_id = e->exec_id;
    start.pid = started.pid = e->pid;

    const void *by_kind[EVENT_KIND_COUNT] = {
        [EVENT_START] = &start, [EVENT_EXEC_ADDED] = &added, [EVENT_EXEC_STARTED] = &started,
        [EVENT_OOM] = &oom,     [EVENT_PAUSED] = &paused,    [EVENT_RESUMED] = &resumed,
    };

    return pb_set_any(ret, by_kind[e->kind]);
}

ForwardRequest *event_wire(const struct event *e, const char *ns)
{
    AUTO(pb_free) ForwardRequest *req = pb_new(&forward_request__descriptor);
    Envelope *envelope = pb_new(&envelope__descriptor);
    int r;

    req->envelope = envelope;
    pb_set_time(&envelope->timestamp, e->wall_ns);
    pb_set_str(&envelope->namespace_, ns);
    pb_set_str(&envelope->topic, topics[e->kind]);
    r = e->kind == EVENT_CREATE   ? wire_create(e, &envelope->event)
        : e->kind == EVENT_EXIT   ? wire_exit(e, &envelope->event)
        : e->kind == EVENT_DELETE ? wire_delete(e, &envelope->event)
                                  : wire_plain(e, &envelope->event);
    return r < 0 ? NULL : TAKE_PTR(req);
}
