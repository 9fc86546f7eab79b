/* registry.c - what there is, by id. The VM is in registry_vm.c. */
#include "host/control/registry.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/control/registry_priv.h"
#include "host/control/sandbox_priv.h"
#include "host/control/vm.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_LOST 255u

struct registry *registry_new(const struct registry_opts *o)
{
    struct registry *r = mem_new(struct registry);

    r->o = *o;
    r->ns = str_dup(o->ns);
    r->id = str_dup(o->id);
    list_init(&r->containers);
    list_init(&r->volumes);
    waitq_init(&r->changed);
    group_init(&r->fibers);
    group_init(&r->drivers);
    return r;
}

void registry_free(struct registry *r)
{
    if (!r)
        return;
    LIST_EACH (&r->containers, pos)
        registry_drop(r, LIST_ENTRY(pos, struct container, node));
    sandbox_free(r->sandbox);
    free(r->ns);
    free(r->id);
    free(r);
}

/* As containerd's own rule, with a limit of our own: it becomes a path in the guest. */
int registry_check_id(const char *what, const char *id, size_t max, struct err *err)
{
    size_t len = id ? strlen(id) : 0;
    bool separator = true;

    if (len == 0)
        return err_set(err, ERR_INVALID, "%s is empty", what);
    if (len > max)
        return err_set(err, ERR_INVALID, "%s has %zu characters, at most %zu", what, len, max);
    for (const char *c = id; *c; c++) {
        bool alnum = isalnum((unsigned char)*c) && (unsigned char)*c < 0x80;

        if (!alnum && (separator || !strchr("._-", *c)))
            return err_set(err, ERR_INVALID,
                           "%s \"%.80s\": letters and digits, with single '.', '_' or '-' between",
                           what, id);
        separator = !alnum;
    }
    if (separator)
        return err_set(err, ERR_INVALID, "%s \"%.80s\" ends with '%c'", what, id, id[len - 1]);
    return 0;
}

struct container *registry_find(struct registry *r, const char *id, struct err *err)
{
    LIST_EACH (&r->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, node);

        if (str_eq(c->id, id) && !c->hidden)
            return c;
    }
    err_set(err, ERR_NOT_FOUND, "no container %.*s", REGISTRY_ID_MAX, id ? id : "");
    return NULL;
}

void registry_drop(struct registry *r, struct container *c)
{
    if (!c->listed)
        return;
    c->listed = false;
    list_remove(&c->node);
    r->n_containers--;
    if (c->anchor_name)
        registry_update_note(r);
    while (!list_empty(&c->execs))
        process_forget(LIST_FIRST(&c->execs, struct process, node));
    if (c->init)
        process_forget(c->init);
    container_unref(c);
    waitq_wake_all(&r->changed);
    registry_drop_vm(r);
}

struct container *registry_add(struct registry *r, const char *id, const char *bundle)
{
    struct container *c = container_new(r, id, bundle);

    c->refs++; /* the list's */
    c->listed = true;
    list_append(&r->containers, &c->node);
    r->n_containers++;
    return c;
}

static void push_create(struct registry *r, const struct container *c,
                        const struct registry_create *rc)
{
    events_push(r->o.events, &(struct event){ .kind = EVENT_CREATE,
                                              .wall_ns = loop_wall(r->o.loop),
                                              .container_id = c->id,
                                              .exec_id = "",
                                              .pid = c->pid,
                                              .bundle = c->bundle,
                                              .in = c->init->in,
                                              .out = c->init->out,
                                              .err = c->init->err,
                                              .terminal = c->init->terminal,
                                              .rootfs = rc->rootfs,
                                              .n_rootfs = rc->n_rootfs });
}

void registry_undo(struct registry *r, struct container *c, struct err *err)
{
    struct ctx root = ctx_root(r->o.loop), own = ctx_with_id(&root, "cid", c->id);
    struct ctx limited = ctx_with_timeout(&own, CONTAINER_UNDO_LIMIT);
    struct err lost = ERR_INIT;

    fsm_step(&container_fsm, &c->state, CONTAINER_EV_CREATE_FAILED);
    if (container_release(&limited, c, &lost) == 0) {
        registry_drop(r, c);
        return;
    }
    log_error(&own, "a failed create is not taken back; delete goes on with it", F_ERR(&lost));
    /* Nothing of it runs, and whoever waits for its end or that of its output (a containerd that
     * lost the call and found the container) must not wait for ever. */
    if (c->init) {
        if (c->init->io)
            io_close(c->init->io);
        process_end(c->init, EXIT_LOST, false);
    }
    err_wrap(err, "%s; and before that", lost.msg);
}

int registry_create(struct ctx *ctx, struct registry *r, const struct registry_create *rc,
                    uint32_t *ret_pid, struct err *err)
{
    struct err none = ERR_INIT;

    if (registry_check_id("container id", rc->id, REGISTRY_ID_MAX, err) < 0)
        return -1;
    if (rc->checkpoint && rc->checkpoint[0])
        return err_set(err, ERR_UNIMPLEMENTED,
                       "a VM's container cannot be restored from a "
                       "checkpoint");
    if (!rc->bundle || rc->bundle[0] != '/')
        return err_set(err, ERR_INVALID, "bundle \"%.128s\" is not an absolute path",
                       rc->bundle ? rc->bundle : "");
    if (r->closing)
        return err_set(err, ERR_UNAVAILABLE, "the shim is shutting down");
    if (registry_find(r, rc->id, &none) || (r->sandbox && str_eq(r->sandbox->id, rc->id)))
        return err_set(err, ERR_EXISTS, "container %s exists already", rc->id);
    if (r->sandbox && r->sandbox->state != SANDBOX_READY)
        return err_set(err, ERR_STATE, "sandbox %s is %s: no container %s in it", r->sandbox->id,
                       fsm_state_name(&sandbox_fsm, r->sandbox->state), rc->id);

    AUTO(container_unref) struct container *c = registry_add(r, rc->id, rc->bundle);
    struct ctx limited = ctx_with_timeout(ctx, REGISTRY_CREATE_LIMIT);
    struct ctx own = ctx_with_id(&limited, "cid", c->id);

    /* Nobody else is in there, but a delete may come. */
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, &own, "container.create", err);

    if (!held || container_create(&own, c, rc, NULL, err) < 0) {
        vm_explain(r->vm, err);
        registry_undo(r, c, err);
        return err_wrap(err, "create container %s", rc->id);
    }
    r->forsook = false;
    *ret_pid = c->pid;
    push_create(r, c, rc);
    log_info(&own, "container created", F_U("pid", c->pid));
    return 0;
}

/* --- delete --- */

static void fill_deleted(const struct process *p, struct registry_deleted *ret)
{
    *ret = (struct registry_deleted){ .pid = p->pid,
                                      .exit_status = p->exit_status,
                                      .exited_wall_ns = p->exited_wall_ns };
}

static int delete_exec(struct container *c, const char *exec_id, struct registry_deleted *ret,
                       struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (p->state == PROCESS_ST_RUNNING || p->starting)
        return err_set(err, ERR_STATE, "exec %s of container %s runs: kill it first", exec_id,
                       c->id);
    if (p->state == PROCESS_ST_CREATED)
        process_end(p, 0, false);
    fill_deleted(p, ret);
    process_forget(p);
    return 0;
}

static bool has_ended(const struct container *c)
{
    return c->state == CONTAINER_STOPPED || c->state == CONTAINER_INVALID;
}

static struct container *find_member(const struct container *pod, bool alive)
{
    LIST_EACH (&pod->r->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, node);

        if (c != pod && pod->kind == SPEC_SANDBOX && str_eq(c->pod_id, pod->id) &&
            !(alive && has_ended(c)))
            return c;
    }
    return NULL;
}

/* With the last one its VM goes: nothing in there needs to be undone one by one, unless the guest
 * may still hold back what belongs on the host. */
static bool all_goes(const struct container *c)
{
    LIST_EACH (&c->r->containers, pos) {
        const struct container *other = LIST_ENTRY(pos, struct container, node);

        if (other->writes_host || other->state == CONTAINER_INVALID ||
            (other != c && (c->kind != SPEC_SANDBOX || !str_eq(other->pod_id, c->id))))
            return false;
    }
    return true;
}

/* Containers of a pod that have ended and were not deleted: that failed, and whoever asked has
 * forgotten them. They must not keep the pod. */
static int delete_members(struct ctx *ctx, struct container *pod, struct err *err)
{
    struct container *c;

    while ((c = find_member(pod, false))) {
        struct registry_deleted ignored;

        log_warn(ctx, "a container that has ended goes with its pod", F_STR("cid", c->id));
        if (registry_delete(ctx, pod->r, c->id, "", &ignored, err) < 0 &&
            err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err);
    }
    return 0;
}

static int delete_container(struct ctx *ctx, struct container *c, struct registry_deleted *ret,
                            struct err *err)
{
    struct registry *r = c->r;

    if (c->state == CONTAINER_RUNNING || c->state == CONTAINER_PAUSED)
        return err_set(err, ERR_STATE, "container %s runs: kill it first", c->id);
    if (c->state == CONTAINER_CREATED && container_has_running_execs(c))
        return err_set(err, ERR_STATE, "an exec of container %s runs: kill it first", c->id);

    const struct container *alive = find_member(c, true);

    if (alive)
        return err_set(err, ERR_STATE, "pod %s still has container %s", c->id, alive->id);
    /* From here on it can only go. Never started: killed. */
    if (c->state == CONTAINER_CREATED)
        process_end(c->init, 128 + 9, false);

    bool all = all_goes(c);

    if (all)
        vm_kill(r->vm);
    if ((all && vm_wait(ctx, r->vm, NULL, err) < 0) || delete_members(ctx, c, err) < 0 ||
        container_release(ctx, c, err) < 0)
        return err_wrap(err, "delete container %s", c->id);
    /* A start that failed stops the container, whatever an exec in it still does. */
    process_settle_execs(ctx, c);
    *ret = (struct registry_deleted){ 0 };
    if (c->init)
        fill_deleted(c->init, ret);
    if (c->state != CONTAINER_INVALID) /* else nobody was told that it exists */
        events_push(r->o.events, &(struct event){ .kind = EVENT_DELETE,
                                                  .wall_ns = loop_wall(r->o.loop),
                                                  .container_id = c->id,
                                                  .exec_id = "",
                                                  .pid = ret->pid,
                                                  .exit_status = ret->exit_status,
                                                  .exited_wall_ns = ret->exited_wall_ns });
    log_info(ctx, "container deleted");
    registry_drop(r, c);
    return 0;
}

int registry_delete(struct ctx *ctx, struct registry *r, const char *id, const char *exec_id,
                    struct registry_deleted *ret, struct err *err)
{
    struct container *found = registry_find(r, id, err);

    if (!found)
        return -1;
    if (exec_id && exec_id[0])
        return delete_exec(found, exec_id, ret, err);

    AUTO(container_unref) struct container *c = container_ref(found);
    struct ctx own = ctx_with_id(ctx, "cid", c->id);

    /* Before the gate too: it need not wait to be refused. */
    if (c->state == CONTAINER_RUNNING || c->state == CONTAINER_PAUSED)
        return err_set(err, ERR_STATE, "container %s runs: kill it first", c->id);

    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, &own, "container.delete", err);

    if (!held)
        return -1;
    if (!c->listed)
        return err_set(err, ERR_NOT_FOUND, "no container %s", id);
    return delete_container(&own, c, ret, err);
}

/* --- queries and the end --- */

size_t registry_containers(const struct registry *r)
{
    return r->n_containers - (r->sandbox && r->sandbox->pod && r->sandbox->pod->listed);
}

bool registry_idle(const struct registry *r)
{
    return r->n_containers == 0 && !sandbox_alive(r);
}

struct vm *registry_vm(struct registry *r)
{
    return r->vm;
}

/* NULL if none is left that clients know of. */
static struct container *newest(struct registry *r)
{
    for (struct list *pos = r->containers.prev; pos != &r->containers; pos = pos->prev) {
        struct container *c = LIST_ENTRY(pos, struct container, node);

        if (!c->hidden)
            return c;
    }
    return NULL;
}

int registry_close(struct ctx *ctx, struct registry *r, struct err *err)
{
    r->closing = true;
    waitq_wake_all(&r->changed);
    /* Killing the VM ends every process, which is told; then nothing is left to wait for. */
    vm_kill(r->vm);
    if (vm_wait(ctx, r->vm, NULL, err) < 0)
        return err_wrap(err, "end the VM of sandbox %s", r->id);
    for (struct container *last; (last = newest(r));) { /* a pod's own is its first */
        AUTO(container_unref) struct container *c = container_ref(last);
        struct process *init = c->init;
        struct process_view ignored;
        struct registry_deleted deleted;

        bool ends = init && (init->state == PROCESS_ST_RUNNING || container_has_running_execs(c));

        if (ends && process_wait(ctx, init, &ignored, err) < 0)
            return -1;
        if (registry_delete(ctx, r, c->id, "", &deleted, err) < 0 && err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err);
    }
    if (sandbox_close(ctx, r, err) < 0)
        return -1;
    registry_drop_vm(r);
    while (r->vm)
        if (waitq_wait(ctx, &r->changed, "the VM to be cleaned up", err) < 0)
            return -1;
    return group_wait(ctx, &r->fibers, "fibers of the registry", err);
}
