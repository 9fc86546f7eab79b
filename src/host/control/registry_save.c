/* registry_save.c - all there is in one shim. Not saved: its options, which are of the program that
 * reads; containers that were deleted and whose processes the guest has not reported yet. */
#include "base/saved.h"
#include "base/str.h"
#include "host/control/container.h"
#include "host/control/forsaken.h"
#include "host/control/pod.h"
#include "host/control/registry.h"
#include "host/control/sandbox.h"
#include "host/control/vm.h"
#include <stdlib.h>

static void check_name(struct saved *s, uint32_t field, char *own)
{
    AUTO_FREE char *name = str_dup(own);

    saved_str(s, field, &name);
    if (!str_eq(name, own))
        saved_fail(s, "it is of %s, not of %s", name ? name : "another sandbox", own);
}

static void vm_part(struct saved *s, struct registry *r)
{
    struct vm_opts o = { 0 };

    if ((!saved_reads(s) && !r->vm) || !saved_open(s, 6))
        return;
    if (saved_reads(s))
        o = registry_vm_opts(r);
    vm_saved(s, &o, &r->vm);
    saved_close(s);
}

struct pods {
    struct pod **v;
    size_t n, cap;
};

static void add_pod(struct pods *all, struct pod *pod)
{
    for (size_t i = 0; i < all->n; i++)
        if (all->v[i] == pod)
            return;
    all->v = mem_grow(all->v, all->n, &all->cap, sizeof(struct pod *));
    all->v[all->n++] = pod ? pod_ref(pod) : NULL;
}

static void pods_saved(struct saved *s, struct registry *r, struct pods *all)
{
    size_t n;

    for (size_t i = 0; !saved_reads(s) && i < r->n_containers; i++)
        add_pod(all, container_pod(r->containers[i]));
    n = saved_count(s, 7, all->n);
    for (size_t i = 0; i < n && saved_open(s, 7); i++) {
        struct pod *pod = saved_reads(s) ? NULL : all->v[i];

        pod_saved(s, r, &pod);
        saved_close(s);
        if (!saved_reads(s))
            continue;
        add_pod(all, pod);
        pod_unref(pod);
    }
}

static void containers_saved(struct saved *s, struct registry *r, const struct pods *all)
{
    size_t n = saved_count(s, 8, r->n_containers);

    for (size_t i = 0; i < n && saved_open(s, 8); i++) {
        struct container *c = saved_reads(s) ? NULL : r->containers[i];

        container_saved(s, r, all->v, all->n, &c);
        saved_close(s);
        if (!saved_reads(s))
            continue;
        registry_add(r, c);
        container_unref(c);
    }
}

void registry_saved(struct saved *s, struct registry *r)
{
    struct pods all = { 0 };
    struct err ignored = ERR_INIT;

    if (r->closing)
        saved_fail(s, "the shim is shutting down");
    check_name(s, 1, r->ns);
    check_name(s, 2, r->id);
    saved_u64(s, 3, &r->lost_bytes);
    saved_u64(s, 4, &r->record);
    saved_bool(s, 5, &r->forsook);
    vm_part(s, r);
    pods_saved(s, r, &all);
    containers_saved(s, r, &all);
    sandbox_saved(s, 9, r);
    if (saved_reads(s) && saved_check(s, &ignored) == 0)
        forsaken_resume(r);
    for (size_t i = 0; i < all.n; i++)
        pod_unref(all.v[i]);
    free(all.v);
}
