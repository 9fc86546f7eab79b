/* cgroup_save.c - a cgroup in saved state: what was made, and where its files are. */
#include "base/saved.h"
#include "host/jail/cgroup_oom.h"
#include "host/jail/cgroup_priv.h"
#include "host/jail/cgroup_scope.h"

static void made_saved(struct saved *s, struct cgroup *c)
{
    size_t n = saved_count(s, 1, c->n_made);

    for (size_t i = 0; i < n && saved_open(s, 1); i++) {
        if (saved_reads(s)) {
            c->made = mem_grow(c->made, c->n_made, &c->made_cap, sizeof(*c->made));
            c->made[c->n_made++] = (struct cgroup_made){ 0 };
        }
        saved_str(s, 1, &c->made[i].path);
        saved_bool(s, 2, &c->made[i].leaf);
        saved_u64(s, 3, &c->made[i].record);
        saved_close(s);
    }
}

static void procs_saved(struct saved *s, struct cgroup *c)
{
    size_t n = saved_count(s, 2, c->n_procs);

    if (n > CGROUP_HIERARCHIES_MAX) {
        saved_fail(s, "a cgroup in %zu hierarchies", n);
        return;
    }
    for (size_t i = 0; i < n && saved_open(s, 2); i++) {
        saved_str(s, 1, &c->procs[i]);
        saved_close(s);
    }
    c->n_procs = n;
}

void cgroup_saved(struct saved *s, uint32_t field, struct ledger *ledger, struct cgroup **cgroup)
{
    bool reads = saved_reads(s);
    struct cgroup *c = reads ? NULL : *cgroup;

    if (reads)
        *cgroup = NULL;
    if ((!reads && !c) || !saved_open(s, field))
        return;
    if (reads) {
        *cgroup = c = mem_new(struct cgroup);
        c->ledger = ledger;
    }
    made_saved(s, c);
    procs_saved(s, c);
    saved_str(s, 3, &c->cpu_dir);
    saved_str(s, 4, &c->cpuset_dir);
    saved_bool(s, 5, &c->v2);
    scope_saved(s, 6, ledger, &c->scope);
    saved_close(s);
}

static void count_saved(struct saved *s, struct oom_count *c)
{
    saved_u64(s, 1, &c->kills);
    saved_u64(s, 2, &c->local);
    saved_bool(s, 3, &c->known);
}

void oom_watch_saved(struct saved *s, uint32_t field, struct oom_watch *w)
{
    if (!saved_open(s, field))
        return;
    saved_str(s, 1, &w->mount);
    saved_str(s, 2, &w->path);
    saved_bool(s, 3, &w->v2);
    for (size_t i = 0; i < OOM_LEVELS && saved_open(s, 4); i++) {
        count_saved(s, &w->before[i]);
        saved_close(s);
    }
    saved_close(s);
    /* One without the other would be read as a path. */
    if (!w->mount != !w->path)
        saved_fail(s, "an OOM watch without its %s", w->mount ? "cgroup" : "hierarchy");
}
