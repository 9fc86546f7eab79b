/* handlers_modify.c - ModifySettings: adds and removes what the VM and its containers use. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/span.h"
#include "base/str.h"
#include "base/stream.h"
#include "guest/bridge/handlers_priv.h"
#include "guest/bridge/seed.h"
#include "guest/net/nets.h"
#include "guest/runtime/cgroup.h"
#include "guest/stdio/dial.h"
#include "guest/storage/path.h"
#include "guest/storage/storage.h"
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>

#define CONNECT_NS (5 * NS_PER_S) /* it is all in one kernel */

static int network(struct ctx *ctx, struct handlers *h, const struct bridge_modify *m,
                   struct err *err)
{
    const struct bridge_network *b = &m->network;

    if (m->action == BRIDGE_REMOVE)
        return nets_remove(ctx, h->nets, b->namespace_id, b->id, err);
    /* Refuses what it cannot configure; wrong routes would be worse. */
    if (b->policy_routing || b->low_metric || b->vpci_assigned)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "NIC %.64s: policy based routing and assigned devices are unsupported",
                       b->id);
    return nets_add(ctx, h->nets, b, err);
}

/* --- ports --- */

struct forward {
    struct handlers *h;
    struct loop *loop;
    struct stream *pod, *host;
    unsigned running; /* directions */
};

struct direction {
    struct forward *f;
    struct stream *from, *to;
};

static void forward_free(struct forward *f)
{
    f->h->n_forwards--;
    stream_free(f->pod);
    stream_free(f->host);
    free(f);
}

/* Copies one direction until its end and closes the other side for writing. An error ends both
 * directions. */
static void copy_main(void *arg)
{
    struct direction *d = arg;
    struct forward *f = d->f;
    struct ctx ctx = ctx_root(f->loop);
    struct err err = ERR_INIT;
    char side = 0;

    if (stream_copy(&ctx, d->from, d->to, NULL, &side, &err) == 0) {
        (void)stream_shutdown(d->to, SHUT_WR); /* fails if the peer is gone */
    } else {
        (void)stream_shutdown(f->pod, SHUT_RDWR);
        (void)stream_shutdown(f->host, SHUT_RDWR);
    }
    free(d);
    if (--f->running == 0)
        forward_free(f);
}

static void go(struct forward *f, struct stream *from, struct stream *to, const char *name)
{
    struct direction *d = mem_new(struct direction);

    *d = (struct direction){ f, from, to };
    f->running++;
    fiber_go(f->loop, copy_main, d, "forward %s", name);
}

static int forward_port(struct ctx *ctx, struct handlers *h, const struct bridge_forward *b,
                        struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONNECT_NS);
    AUTO_FD int pod = -1, host = -1;

    if (h->n_forwards >= NETS_FORWARDS_MAX)
        return err_set(err, ERR_EXHAUSTED, "too many forwarded connections: at most %d",
                       NETS_FORWARDS_MAX);
    h->n_forwards++;
    if (nets_connect(&limited, h->nets, b->namespace_id, b->ipv6, b->port, &pod, err) < 0 ||
        dialer_dial(ctx, h->dialer, b->host_port, &host, err) < 0) {
        h->n_forwards--;
        return -1;
    }

    struct forward *f = mem_new(struct forward);

    *f = (struct forward){ .h = h,
                           .loop = ctx->loop,
                           .pod = stream_from_fd(ctx->loop, TAKE_FD(pod)),
                           .host = stream_from_fd(ctx->loop, TAKE_FD(host)) };
    go(f, f->host, f->pod, "in");
    go(f, f->pod, f->host, "out");
    return 0;
}

static int disk(struct ctx *ctx, struct handlers *h, const struct bridge_modify *m, struct err *err)
{
    const struct storage_disk d = {
        .mount_path = m->disk.mount_path,
        .controller = m->disk.controller,
        .lun = m->disk.lun,
        .partition = m->disk.partition,
        .read_only = m->disk.read_only,
        .block_device = m->disk.block_device,
        .ensure_filesystem = m->disk.ensure_filesystem,
        .encrypted = m->disk.encrypted,
        .verity = m->disk.verity || m->disk.root_hash[0],
        .root_hash = m->disk.root_hash,
        .filesystem = m->disk.filesystem,
        .options = m->disk.options,
        .fs_group = m->disk.fs_group,
        .fs_group_policy = m->disk.fs_group_policy,
    };

    return m->action == BRIDGE_ADD ? storage_add_disk(ctx, h->storage, &d, err)
                                   : storage_remove_disk(ctx, h->storage, &d, err);
}

static int share(struct ctx *ctx, struct handlers *h, const struct bridge_modify *m,
                 struct err *err)
{
    const struct guest_share *s = &m->share;

    if (m->action == BRIDGE_REMOVE)
        return storage_remove_share(ctx, h->storage, s->mount_path, err);
    return storage_add_share(ctx, h->storage, s->name, s->mount_path, s->read_only, err);
}

static int layers(struct ctx *ctx, struct handlers *h, const struct bridge_modify *m,
                  struct err *err)
{
    AUTO(strv_release) struct strv paths = { 0 };
    AUTO_FREE char *bundle = path_parent(m->layers.root_path);

    for (size_t i = 0; i < m->layers.n_layers; i++)
        strv_add(&paths, m->layers.layers[i].path);
    const struct storage_layers l = {
        .root_path = m->layers.root_path,
        .scratch_path = m->layers.scratch_path,
        .scratch_quota = m->layers.scratch_quota,
        .ids = { (char *)m->layers.uid_map, (char *)m->layers.gid_map },
        .map_layers = m->layers.map_layers,
        .layers = (const char *const *)paths.v,
    };
    bool used = false;

    if (m->action == BRIDGE_ADD)
        return storage_combine(ctx, h->storage, &l, err);
    if (containers_look_at_bundle(ctx, h->containers, bundle, &used, err) < 0)
        return -1;
    return storage_uncombine(ctx, h->storage, &l, used, err);
}

/* The guest enforces no policy, so it accepts only an empty one; like the original, once. */
static int policy(struct handlers *h, const struct bridge_policy *p, struct err *err)
{
    if (h->policy_set)
        return err_set(err, ERR_STATE, "the security policy is already set");
    if (p->policy[0])
        return err_set(err, ERR_UNIMPLEMENTED, "security policies are unsupported by this guest");
    h->policy_set = true;
    return 0;
}

static int container(struct ctx *ctx, struct handlers *h, const struct server_call *call,
                     struct err *err)
{
    const struct bridge_modify *m = &call->req.modify;
    AUTO(container_unref) struct container *c = handlers_container(h, call, err);

    if (!c)
        return -1;
    if (m->resource == BRIDGE_RES_CONTAINER_FREEZER)
        return container_freeze(ctx, c, m->freezer.frozen, err);
    if (!m->constraints.linux_resources)
        return 0; /* nothing to change */
    return container_update(ctx, c, m->constraints.linux_resources, err);
}

static int pods_limit(struct err *err)
{
    struct sysinfo si = { 0 };

    (void)sysinfo(&si); /* cannot fail */
    return cgroup_limit_pods(CGROUP_ROOT, (uint64_t)si.totalram * si.mem_unit, err);
}

static int change(struct ctx *ctx, struct handlers *h, const struct server_call *call,
                  struct err *err)
{
    const struct bridge_modify *m = &call->req.modify;

    switch (m->resource) {
    case BRIDGE_RES_MAPPED_VIRTUAL_DISK:
        return disk(ctx, h, m, err);
    case BRIDGE_RES_SCSI_DEVICE:
        return storage_eject_disk(ctx, h->storage, m->scsi_device.controller, m->scsi_device.lun,
                                  err);
    case BRIDGE_RES_MAPPED_DIRECTORY:
        return share(ctx, h, m, err);
    case BRIDGE_RES_COMBINED_LAYERS:
        return layers(ctx, h, m, err);
    case BRIDGE_RES_VPCI_DEVICE:
        return storage_add_device(ctx, h->storage, m->vpci.vmbus_guid, err);
    case BRIDGE_RES_NETWORK:
        return network(ctx, h, m, err);
    case BRIDGE_RES_PORT_FORWARD:
        return forward_port(ctx, h, &m->forward, err);
    case BRIDGE_RES_CONTAINER_CONSTRAINTS:
    case BRIDGE_RES_CONTAINER_FREEZER:
        return container(ctx, h, call, err);
    case BRIDGE_RES_POD_CGROUP_MEMORY_LIMIT:
        return pods_limit(err);
    case BRIDGE_RES_CLOCK:
        return seed_clock(m->clock.wall_ns, err);
    case BRIDGE_RES_SECURITY_POLICY:
        return policy(h, &m->policy, err);
    default:
        return bridge_err(err, BRIDGE_HR_NOT_IMPLEMENTED, "unsupported by this guest: %s",
                          bridge_resource_name(m->resource));
    }
}

int handlers_modify(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    enum bridge_resource r = call->req.modify.resource;

    SPAN(step, ctx, NULL, TRACK_GUEST, bridge_resource_name(r), err);
    if (change(step.ctx, h, call, err) == 0)
        return 0;
    if (err->sys < 0) /* it has its HRESULT already */
        return -1;
    if (err->code == ERR_INVALID)
        return handlers_fail_as(err, BRIDGE_HR_INVALID_ARGUMENT);
    if (err->code == ERR_UNIMPLEMENTED)
        return handlers_fail_as(err, BRIDGE_HR_NOT_IMPLEMENTED);
    if (err->code == ERR_STATE &&
        (r == BRIDGE_RES_CONTAINER_CONSTRAINTS || r == BRIDGE_RES_CONTAINER_FREEZER))
        return handlers_fail_as(err, BRIDGE_HR_INVALID_STATE);
    return handlers_fail_as(err, BRIDGE_HR_FAIL);
}
