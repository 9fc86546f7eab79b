/* container_list.c - the processes of a container, as the guest knows them. */
#include "base/log.h"
#include "host/bridge/guest.h"
#include "host/control/container_priv.h"
#include <stdlib.h>

#define KIB 1024

_Static_assert(CONTAINER_PID_BASE > GUEST_PID_MAX, "no host has such a pid");

static bool runs(const struct container *c)
{
    return c->p.state == CONTAINER_RUNNING || c->p.state == CONTAINER_PAUSED;
}

static int ask_list(struct ctx *ctx, struct container *c, struct guest_listed **ret, size_t *ret_n,
                    struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_LIST_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "list processes", err);

    if (!in ||
        in->guest->ops->list_processes(&limited, in->guest, c->p.guest_id, ret, ret_n, err) < 0)
        return -1;
    return 0;
}

/* Keeps the last list if the guest does not answer. */
static void refresh(struct ctx *ctx, struct container *c)
{
    struct guest_listed *v = NULL;
    struct err err = ERR_INIT, none = ERR_INIT;
    size_t n = 0;

    if (ask_list(ctx, c, &v, &n, &err) == 0) {
        free(c->last_list);
        c->last_list = v;
        c->n_last_list = n;
        c->list_failed = false;
        return;
    }
    /* Known already; it has ended, or its VM has; or the client has given up, not the guest. */
    if (c->list_failed || !runs(c) || err.code == ERR_UNAVAILABLE || ctx_check(ctx, &none) < 0)
        return;
    c->list_failed = true;
    log_warn(ctx, "the guest did not list a container's processes; answering with those last known",
             F_STR(LK_CID, c->p.id), F_ERR(&err));
}

static const char *exec_of(const struct container *c, const struct guest_listed *g)
{
    for (size_t i = 0; i < c->n_execs; i++) {
        uint32_t pid = process_guest_pid(c->execs[i]);
        if (pid && (pid == g->pid || pid == g->leader) && process_is_alive(c->execs[i]))
            return process_exec_id(c->execs[i]);
    }
    return "";
}

static uint64_t times(uint64_t n, uint64_t factor)
{
    return n > UINT64_MAX / factor ? UINT64_MAX : n * factor; /* the guest's: anything */
}

static void report(const struct container *c, const struct guest_listed *g, bool init,
                   void (*fn)(void *arg, const struct container_listed *l), void *arg)
{
    fn(arg, &(struct container_listed){ .pid = init ? c->p.pid : CONTAINER_PID_BASE + g->pid,
                                        .guest_pid = g->pid,
                                        .exec_id = init ? "" : exec_of(c, g),
                                        .name = g->name,
                                        .start_ns = g->start_ns,
                                        .user_ns = times(g->user_ms, NS_PER_MS),
                                        .kernel_ns = times(g->kernel_ms, NS_PER_MS),
                                        .data_bytes = times(g->data_kib, KIB),
                                        .private_bytes = times(g->private_kib, KIB),
                                        .shared_bytes = times(g->shared_kib, KIB) });
}

void container_list(struct ctx *ctx, struct container *given,
                    void (*fn)(void *arg, const struct container_listed *l), void *arg)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    struct guest_listed init = { 0 };
    const struct guest_listed *v;
    size_t n;

    if (runs(c))
        refresh(ctx, c);
    v = c->last_list;
    n = v && runs(c) ? c->n_last_list : 0; /* else the guest's list is over, or not begun */
    init.pid = c->p.init ? process_guest_pid(c->p.init) : 0;
    for (size_t i = 0; i < n; i++)
        if (v[i].pid == init.pid)
            init = v[i];
    report(c, &init, true, fn, arg);
    for (size_t i = 0; i < n; i++)
        if (v[i].pid != init.pid)
            report(c, &v[i], false, fn, arg);
    for (size_t i = 0; n == 0 && i < c->n_execs; i++) {
        struct guest_listed exec = { .pid = process_guest_pid(c->execs[i]) };
        if (process_state(c->execs[i]) == PROCESS_ST_RUNNING)
            report(c, &exec, false, fn, arg);
    }
}
