/* handlers_modify.c - ModifySettings: what the VM and its containers are given and lose. */
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/bridge/handlers_priv.h"
#include "guest/bridge/seed.h"
#include "guest/runtime/cgroup.h"
#include "guest/storage/path.h"
#include "guest/storage/storage.h"
#include <sys/sysinfo.h>

static int disk(struct ctx *ctx, struct handlers *h, const struct bridge_modify *m, struct err *err)
{
    const struct storage_disk d = {
        .mount_path = m->disk.mount_path,
        .controller = m->disk.controller,
        .lun = m->disk.lun,
        .partition = m->disk.partition,
        .read_only = m->disk.read_only,
        .block_device = m->disk.block_dev,
        .ensure_filesystem = m->disk.ensure_filesystem,
        .encrypted = m->disk.encrypted,
        .verity = m->disk.verity.super_block || m->disk.verity.root_digest[0],
        .root_hash = m->disk.verity.root_digest,
        .filesystem = m->disk.filesystem,
        .options = m->disk.options,
    };

    return m->action == BRIDGE_ADD ? storage_add_disk(ctx, h->storage, &d, err)
                                   : storage_remove_disk(ctx, h->storage, &d, err);
}

static int directory(struct ctx *ctx, struct handlers *h, const struct bridge_modify *m,
                     struct err *err)
{
    const struct bridge_directory *d = &m->directory;

    if (m->action == BRIDGE_REMOVE)
        return storage_remove_share(ctx, h->storage, d->mount_path, err);
    return storage_add_share(ctx, h->storage, d->share_name, d->mount_path, d->read_only, err);
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
        .layers = (const char *const *)paths.v,
    };
    if (m->action == BRIDGE_ADD)
        return storage_combine(ctx, h->storage, &l, err);
    return storage_uncombine(ctx, h->storage, &l, containers_has_bundle(h->containers, bundle),
                             err);
}

/* We enforce no policy, so only none at all can be promised; and like the original only once. */
static int policy(struct handlers *h, const struct bridge_policy *p, struct err *err)
{
    if (h->policy_set)
        return err_set(err, ERR_STATE, "a security policy was set before");
    if (p->policy[0])
        return err_set(err, ERR_UNIMPLEMENTED, "this guest enforces no security policy");
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
        return directory(ctx, h, m, err);
    case BRIDGE_RES_COMBINED_LAYERS:
        return layers(ctx, h, m, err);
    case BRIDGE_RES_VPCI_DEVICE:
        return storage_add_device(ctx, h->storage, m->vpci.vmbus_guid, err);
    case BRIDGE_RES_NETWORK:
        return handlers_network(ctx, h, m, err);
    case BRIDGE_RES_PORT_FORWARD:
        return handlers_forward(ctx, h, &m->forward, err);
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
        return bridge_err(err, BRIDGE_HR_NOT_IMPLEMENTED, "%s is not supported by this guest",
                          bridge_resource_name(m->resource));
    }
}

int handlers_modify(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    enum bridge_resource r = call->req.modify.resource;

    if (change(ctx, h, call, err) == 0)
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
