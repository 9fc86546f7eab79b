/* pod.c - a pod's life, its containers, and Kill for all of them. */
#include "host/control/pod.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "host/config/sizing.h"
#include "host/control/container.h"
#include "host/control/pod_priv.h"
#include "host/control/registry.h"
#include "host/control/vm.h"
#include <stdlib.h>
#include <string.h>

struct pod *pod_empty(struct registry *r)
{
    struct pod *pod = mem_new(struct pod);

    pod->refs = 1;
    pod->r = r;
    list_init(&pod->volumes);
    list_init(&pod->disks);
    gate_init(&pod->disks_gate, "volumes");
    return pod;
}

struct pod *pod_new(struct registry *r, const char *id, struct container *c)
{
    struct pod *pod = pod_empty(r);

    pod->id = str_dup(id);
    pod->guest_id = registry_guest_id(r, id);
    pod->holder = c;
    pod_join(pod, c);
    return pod;
}

struct pod *pod_ref(struct pod *pod)
{
    pod->refs++;
    return pod;
}

void pod_unref(struct pod *pod)
{
    if (!pod || --pod->refs > 0)
        return;
    pod_release_volumes(pod);
    if (pod->vm)
        vm_unref(pod->vm);
    free(pod->members);
    free(pod->netns);
    idmap_release(&pod->ids);
    free(pod->id);
    free(pod->guest_id);
    free(pod);
}

void pod_join(struct pod *pod, struct container *c)
{
    pod->members =
        mem_grow(pod->members, pod->n_members, &pod->members_cap, sizeof(struct container *));
    pod->members[pod->n_members++] = c;
}

void pod_leave(struct pod *pod, struct container *c)
{
    size_t i = 0;

    while (i < pod->n_members && pod->members[i] != c)
        i++;
    if (i == pod->n_members)
        return;
    pod->n_members--;
    memmove(&pod->members[i], &pod->members[i + 1],
            (pod->n_members - i) * sizeof(struct container *));
    if (pod->holder == c)
        pod->holder = NULL;
}

struct container *pod_other(const struct pod *pod, const struct container *c, bool alive)
{
    for (size_t i = 0; i < pod->n_members; i++)
        if (pod->members[i] != c && !(alive && container_has_ended(pod->members[i])))
            return pod->members[i];
    return NULL;
}

void pod_set_vm(struct pod *pod, struct vm *vm)
{
    if (!pod->vm)
        pod->vm = vm_ref(vm);
}

void pod_size(const struct pod *pod, const struct container *one, const struct spec_limits *limits,
              struct sizing_pod *ret)
{
    for (size_t i = 0; i < pod->n_members; i++) {
        const struct container *c = pod->members[i];
        const struct spec_limits *its = c == one ? limits : &container_parts(c)->limits;

        if (c == pod->holder)
            ret->own = *its;
        else if (!container_has_ended(c))
            sizing_add(ret, its);
    }
}

/* --- Kill --- */

struct killing {
    struct ctx *ctx;
    struct container *c; /* counted */
    uint32_t signo;
    struct err err;
};

static void kill_main(void *arg)
{
    struct killing *k = arg;

    (void)container_kill_alone(k->ctx, k->c, k->signo, &k->err); /* k->err says it */
}

int pod_kill(struct ctx *ctx, struct pod *given, uint32_t signo, struct err *err)
{
    struct pod *pod = pod_ref(given); /* its containers may be deleted meanwhile */
    struct loop *loop = pod->r->o.loop;
    size_t n = pod->n_members;
    AUTO_FREE struct killing *all = mem_zalloc(n * sizeof(*all));
    struct ctx bounded = ctx_root(loop); /* each call has ctx */
    struct err none = ERR_INIT;
    struct fibers fibers;
    int r = 0;

    fibers_init(&fibers);
    for (size_t i = 0; i < n; i++) {
        all[i] = (struct killing){ ctx, container_ref(pod->members[i]), signo, ERR_INIT };
        fibers_go(&fibers, loop, kill_main, &all[i], "kill %s", container_id(all[i].c));
    }
    (void)fibers_wait(&bounded, &fibers, "containers of a pod to be killed", &none);
    for (size_t i = 0; i < n; i++) {
        if (r == 0 && all[i].err.code != ERR_NONE) {
            *err = all[i].err;
            r = err_wrap(err, "kill container %s of pod %s", container_id(all[i].c), pod->id);
        }
        container_unref(all[i].c);
    }
    pod_unref(pod);
    return r;
}
