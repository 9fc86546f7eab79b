/* container_save.c - a container with its processes. Not saved: the guest's last list of its
 * processes, which is asked for again; the fibers that watch its anchor and for OOM are started
 * again. */
#include "base/saved.h"
#include "host/control/container_priv.h"
#include "host/jail/anchor.h"
#include "host/jail/cgroup.h"
#include "oci/hooks.h"

static void parts_saved(struct saved *s, struct container_parts *p)
{
    saved_str(s, 1, &p->id);
    saved_str(s, 2, &p->bundle);
    saved_str(s, 3, &p->guest_id);
    SAVED_ENUM(s, 4, p->state, CONTAINER_STATE_COUNT);
    saved_u32(s, 5, &p->pid);
    saved_str(s, 6, &p->anchor_name);
    saved_u64(s, 7, &p->limits.memory_bytes);
    saved_u64(s, 8, &p->limits.cpu_period);
    saved_i64(s, 9, &p->limits.cpu_quota);
    saved_u64(s, 10, &p->limits.cpu_shares);
    saved_bool(s, 11, &p->hidden);
    saved_bool(s, 12, &p->forsaken);
    saved_bool(s, 13, &p->in_guest);
    saved_bool(s, 14, &p->writes_host);
}

static void fields(struct saved *s, struct container *c)
{
    saved_str(s, 20, &c->log_name);
    saved_str(s, 21, &c->log_dir);
    saved_str(s, 22, &c->log_uri);
    SAVED_ENUM(s, 23, c->kind, SPEC_WORKLOAD + 1);
    saved_bool(s, 24, &c->no_writable_shares);
    saved_bool(s, 25, &c->privileged);
    saved_bool(s, 26, &c->own_pids);
    saved_bool(s, 27, &c->ending);
    saved_bool(s, 28, &c->end_ask);
    saved_u32(s, 29, &c->end_status);
    saved_str(s, 30, &c->last_stats);
    saved_u64(s, 31, &c->scratch_bytes);
    saved_u32(s, 32, &c->scratch_quota_mib);
    SAVED_ENUM(s, 33, c->root_writes, ROOT_READ_ONLY + 1);
    saved_str(s, 34, &c->bundle_path);
    saved_str(s, 35, &c->root_path);
    saved_str(s, 36, &c->scratch_path);
    saved_strv(s, 37, &c->layers);
    saved_bool(s, 38, &c->combined);
    saved_bool(s, 39, &c->anchor_watched);
    saved_bool(s, 40, &c->oom_watched);
    saved_u64(s, 41, &c->oom_wait_id);
    saved_u64(s, 42, &c->oom_rate.full_at_ns);
    saved_u64(s, 43, &c->oom_untold);
    saved_bool(s, 44, &c->anchor_lost);
    hooks_saved(s, 45, &c->hooks);
    saved_bool(s, 46, &c->hooks_begun);
}

static void holding_saved(struct saved *s, struct holding *h)
{
    SAVED_ENUM(s, 1, h->kind, HOLD_DEVICE + 1);
    saved_u64(s, 2, &h->id);
}

static void holdings_saved(struct saved *s, struct container *c)
{
    size_t n = saved_count(s, 50, c->n_holdings);

    for (size_t i = 0; i < n && saved_open(s, 50); i++) {
        if (saved_reads(s)) {
            c->holdings = mem_grow(c->holdings, i, &c->holdings_cap, sizeof(*c->holdings));
            c->holdings[c->n_holdings++] = (struct holding){ 0 };
        }
        holding_saved(s, &c->holdings[i]);
        saved_close(s);
    }
}

/* Which pod, and whether it holds it. */
static void pod_part(struct saved *s, struct container *c, struct pod *const *pods, size_t n)
{
    bool holds = c->p.pod && c->p.pod->holder == c;
    uint64_t at = 0;

    while (at < n && pods[at] != c->p.pod)
        at++;
    saved_u64(s, 51, &at);
    saved_bool(s, 52, &holds);
    if (!saved_reads(s))
        return;
    if (at >= n || (holds && pods[at]->holder)) {
        saved_fail(s, "container %s is in a pod that does not exist", c->p.id ? c->p.id : "");
        return;
    }
    c->p.pod = pod_ref(pods[at]);
    pod_join(c->p.pod, c);
    if (holds)
        c->p.pod->holder = c;
}

/* What needs the pod's VM. */
static void host_part(struct saved *s, struct container *c)
{
    struct ledger *ledger = c->p.pod->vm ? vm_parts(c->p.pod->vm)->ledger : NULL;
    size_t n = saved_count(s, 56, c->n_execs);

    cgroup_saved(s, 53, ledger, &c->cgroup);
    anchor_saved(s, 54, c->r->o.loop, ledger, &c->anchor);
    process_saved(s, 55, c, &c->p.init);
    for (size_t i = 0; i < n; i++) {
        struct process *p = saved_reads(s) ? NULL : c->execs[i];

        process_saved(s, 56, c, &p);
        if (!saved_reads(s) || !p)
            continue;
        c->execs = mem_grow(c->execs, c->n_execs, &c->execs_cap, sizeof(struct process *));
        c->execs[c->n_execs++] = p;
    }
}

static void resume(struct container *c)
{
    if (c->anchor_watched)
        container_watch_anchor(c);
    if (c->oom_watched)
        container_watch_oom(c);
}

void container_saved(struct saved *s, struct registry *r, struct pod *const *pods, size_t n_pods,
                     struct container **ret)
{
    struct container *c = saved_reads(s) ? container_new(r) : *ret;
    struct err ignored = ERR_INIT;

    *ret = c;
    parts_saved(s, &c->p);
    if (c->p.state == CONTAINER_NOT_CREATED || !c->p.id || !c->p.bundle || !c->p.guest_id)
        saved_fail(s, "container %s is being created", c->p.id ? c->p.id : "");
    fields(s, c);
    holdings_saved(s, c);
    pod_part(s, c, pods, n_pods);
    if (!c->p.pod)
        return;
    host_part(s, c);
    if ((c->anchor_watched && !c->anchor) || (c->p.state < CONTAINER_INVALID && !c->p.init))
        saved_fail(s, "container %s is incomplete", c->p.id);
    if (saved_reads(s) && saved_check(s, &ignored) == 0)
        resume(c);
}
