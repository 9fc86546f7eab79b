/* registry.c - what there is, by id. Its VM is in registry_vm.c. */
#include "host/control/registry.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/str.h"
#include "host/control/container.h"
#include "host/control/pod.h"
#include "host/control/sandbox.h"
#include "host/control/vm.h"
#include "host/io/io_hub.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

char *registry_guest_id(const struct registry *r, const char *id)
{
    return r->o.guest_id ? r->o.guest_id(r->o.arg, id) : str_dup(id);
}

struct registry *registry_new(const struct registry_opts *o)
{
    struct registry *r = mem_new(struct registry);

    r->o = *o;
    r->ns = str_dup(o->ns);
    r->id = str_dup(o->id);
    r->guest_id = registry_guest_id(r, r->id);
    waitq_init(&r->changed);
    fibers_init(&r->fibers);
    fibers_init(&r->drivers);
    r->hub = io_hub_new(o->loop, o->address);
    return r;
}

void registry_free(struct registry *r)
{
    if (!r)
        return;
    while (r->n_containers > 0)
        registry_drop(r, r->containers[0]);
    sandbox_free(r->sandbox);
    io_hub_free(r->hub);
    free(r->containers);
    free(r->ns);
    free(r->id);
    free(r->guest_id);
    free(r);
}

/* As containerd's own rule, with a limit of our own: it becomes a path in the guest. */
int registry_check_id(const char *what, const char *id, size_t max, struct err *err)
{
    size_t len = id ? strlen(id) : 0;
    bool separator = true;

    if (len == 0)
        return err_because(err, REASON_INVALID_ID, ERR_INVALID, "the %s is empty", what);
    if (len > max)
        return err_because(err, REASON_INVALID_ID, ERR_INVALID,
                           "%s \"%.40s…\" has %zu bytes: must be at most %zu", what, id, len, max);
    for (const char *c = id; *c; c++) {
        bool alnum = isalnum((unsigned char)*c) && (unsigned char)*c < 0x80;

        if (!alnum && (separator || !strchr("._-", *c) || !c[1]))
            return err_because(
                err, REASON_INVALID_ID, ERR_INVALID,
                "%s \"%.128s\" is invalid: use letters and digits, with single . _ - between them",
                what, id);
        separator = !alnum;
    }
    return 0;
}

struct container *registry_find(struct registry *r, const char *id, struct err *err)
{
    for (size_t i = 0; i < r->n_containers; i++)
        if (str_eq(container_id(r->containers[i]), id) &&
            !container_parts(r->containers[i])->hidden)
            return r->containers[i];
    err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no container %.*s", REGISTRY_ID_MAX,
                id ? id : "");
    return NULL;
}

struct pod *registry_find_pod(struct registry *r, const char *id, struct err *err)
{
    for (size_t i = 0; i < r->n_containers; i++) {
        struct pod *pod = container_pod(r->containers[i]);

        if (pod->takes_workloads && pod->holder && str_eq(pod->id, id))
            return pod;
    }
    err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no pod %s", id);
    return NULL;
}

void registry_add(struct registry *r, struct container *c)
{
    r->containers =
        mem_grow(r->containers, r->n_containers, &r->containers_cap, sizeof(struct container *));
    r->containers[r->n_containers++] = container_ref(c);
}

void registry_drop(struct registry *r, struct container *c)
{
    size_t i = 0;

    while (i < r->n_containers && r->containers[i] != c)
        i++;
    if (i == r->n_containers)
        return;
    r->n_containers--;
    memmove(&r->containers[i], &r->containers[i + 1],
            (r->n_containers - i) * sizeof(struct container *));
    registry_update_run_file(r);
    container_forget(c);
    container_unref(c);
    waitq_wake_all(&r->changed);
    if (r->vm && r->n_containers == 0)
        vm_close(r->vm);
}

struct container **registry_all(const struct registry *r)
{
    struct container **all = mem_zalloc((r->n_containers + 1) * sizeof(struct container *));

    for (size_t i = 0; i < r->n_containers; i++)
        all[i] = container_ref(r->containers[i]);
    return all;
}

void registry_release_all(struct container **all)
{
    for (struct container **c = all; c && *c; c++)
        container_unref(*c);
    free(all);
}

bool registry_idle(const struct registry *r)
{
    return r->n_containers == 0 && !sandbox_alive(r);
}

void registry_bundles(const struct registry *r, struct strv *ret)
{
    for (size_t i = 0; i < r->n_containers; i++)
        strv_add(ret, container_parts(r->containers[i])->bundle);
    if (r->sandbox)
        strv_add(ret, sandbox_bundle(r));
    if (r->o.bundle)
        strv_add(ret, r->o.bundle);
}

/* NULL if none is left that clients know of. */
static struct container *newest(struct registry *r)
{
    for (size_t i = r->n_containers; i > 0; i--)
        if (!container_parts(r->containers[i - 1])->hidden)
            return r->containers[i - 1];
    return NULL;
}

int registry_close(struct ctx *ctx, struct registry *r, struct err *err)
{
    r->closing = true;
    waitq_wake_all(&r->changed);
    /* Killing the VM ends every process, which is published; then nothing is left to wait for. */
    vm_kill(r->vm, VM_END_KILL, "the shim is shutting down");
    if (vm_wait(ctx, r->vm, NULL, err) < 0)
        return err_wrap(err, "end the VM of sandbox %s", r->id);
    for (struct container *c; (c = newest(r));) /* a pod's holder is its first */
        if (container_discard(ctx, c, err) < 0)
            return -1;
    if (sandbox_close(ctx, r, err) < 0)
        return -1;
    while (r->vm)
        if (waitq_wait(ctx, &r->changed, "the VM to be cleaned up", err) < 0)
            return -1;
    return fibers_wait(ctx, &r->fibers, "fibers of the registry", err);
}
