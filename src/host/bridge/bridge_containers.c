/* bridge_containers.c - the calls for containers and their files. */
#include "base/err.h"
#include "base/str.h"
#include "host/bridge/bridge_priv.h"
#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 512
#define PORT_9P 564 /* hcsshim sends it; a virtio device needs none */

static int modify(struct ctx *ctx, struct guest *g, const char *id, enum bridge_action action,
                  enum bridge_resource resource, struct bridge_request *r, struct err *err)
{
    r->type = BRIDGE_MODIFY_SETTINGS;
    r->container_id = id;
    r->modify.action = action;
    r->modify.resource = resource;
    return bridge_plain_call(ctx, bridge_of(g), r, err);
}

/* Removing what is gone is success. */
static int gone_is_fine(int r, struct err *err)
{
    if (r == 0 || err->code != ERR_NOT_FOUND)
        return r;
    err_clear(err);
    return 0;
}

/* --- containers --- */

int bridge_create_container(struct ctx *ctx, struct guest *g, const struct guest_container *c,
                            struct err *err)
{
    const struct bridge_request r = { .type = BRIDGE_CREATE,
                                      .container_id = c->id,
                                      .create = { .schema = { 2, 1 },
                                                  .bundle_path = c->bundle_path,
                                                  .spec = c->spec,
                                                  .scratch_path = c->scratch_path,
                                                  .privileged = c->privileged } };

    return bridge_plain_call(ctx, bridge_of(g), &r, err);
}

int bridge_start_container(struct ctx *ctx, struct guest *g, const char *container, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_START, .container_id = container };

    return bridge_plain_call(ctx, bridge_of(g), &r, err);
}

int bridge_delete_container(struct ctx *ctx, struct guest *g, const char *container,
                            struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_DELETE_CONTAINER_STATE, .container_id = container };

    struct bridge *b = bridge_of(g);

    if (b->connected && !b->caps.delete_container_state)
        return 0; /* an older guest keeps a container's state until the VM ends */
    return gone_is_fine(bridge_plain_call(ctx, b, &r, err), err);
}

int bridge_update_container(struct ctx *ctx, struct guest *g, const char *container,
                            json_t *resources, struct err *err)
{
    struct bridge_request r = { .modify.constraints.linux_resources = resources };

    return modify(ctx, g, container, BRIDGE_UPDATE, BRIDGE_RES_CONTAINER_CONSTRAINTS, &r, err);
}

int bridge_freeze_container(struct ctx *ctx, struct guest *g, const char *container, bool frozen,
                            struct err *err)
{
    struct bridge_request r = { .modify.freezer.frozen = frozen };

    return modify(ctx, g, container, BRIDGE_UPDATE, BRIDGE_RES_CONTAINER_FREEZER, &r, err);
}

/* One property. limit_ns 0: as long as ctx allows. */
static int ask(struct ctx *ctx, struct guest *g, const char *container, const char *property,
               uint64_t limit_ns, struct bridge_properties *ret, struct err *err)
{
    const char *const types[] = { property, NULL };
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = BRIDGE_GET_PROPERTIES,
                                .container_id = container,
                                .query.types = types };
    struct bridge_response resp = { 0 };

    if (bridge_need_connection(b, r.type, err) < 0 ||
        bridge_call(ctx, b, &r, limit_ns, limit_ns > 0, &resp, err) < 0)
        return -1;

    int result = bridge_properties_decode(resp.properties, ret, err);

    bridge_response_release(&resp);
    return result;
}

int bridge_wait_oom(struct ctx *ctx, struct guest *g, const char *container, bool *ret_oom,
                    struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    if (ask(ctx, g, container, BRIDGE_PROPERTY_OUT_OF_MEMORY, 0, &p, err) < 0)
        return -1;
    *ret_oom = p.out_of_memory;
    return 0;
}

int bridge_read_stats(struct ctx *ctx, struct guest *g, const char *container, json_t **ret_metrics,
                      uint64_t *ret_scratch_bytes, struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    if (ask(ctx, g, container, BRIDGE_PROPERTY_STATISTICS, BRIDGE_CALL_LIMIT, &p, err) < 0)
        return -1;
    if (!p.metrics)
        return err_set(err, ERR_NOT_FOUND, "the guest has no metrics");
    *ret_metrics = json_incref(p.metrics);
    *ret_scratch_bytes = p.scratch;
    return 0;
}

int bridge_read_clock(struct ctx *ctx, struct guest *g, uint64_t *ret_ns, struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    if (ask(ctx, g, BRIDGE_NULL_ID, BRIDGE_PROPERTY_CLOCK, 0, &p, err) < 0)
        return -1;
    if (p.clock == 0)
        return err_set(err, ERR_UNIMPLEMENTED, "the guest did not report its clock");
    *ret_ns = p.clock;
    return 0;
}

int bridge_limit_pods(struct ctx *ctx, struct guest *g, struct err *err)
{
    struct bridge_request r = { 0 };

    return modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_UPDATE, BRIDGE_RES_POD_CGROUP_MEMORY_LIMIT, &r,
                  err);
}

int bridge_set_clock(struct ctx *ctx, struct guest *g, uint64_t wall_ns, struct err *err)
{
    struct bridge_request r = { .modify.clock.wall_ns = wall_ns };

    return modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_UPDATE, BRIDGE_RES_CLOCK, &r, err);
}

/* --- files --- */

static struct bridge_request disk_request(const struct guest_disk *d)
{
    return (struct bridge_request){ .modify.disk = { .mount_path = d->mount_path,
                                                     .lun = d->lun,
                                                     .controller = d->controller,
                                                     .partition = d->partition,
                                                     .read_only = d->read_only,
                                                     .encrypted = d->encrypted,
                                                     .options = d->options,
                                                     .block_dev = d->block_device,
                                                     .verity = { d->verity, d->root_hash },
                                                     .ensure_filesystem = d->ensure_filesystem,
                                                     .filesystem = d->filesystem } };
}

int bridge_mount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d, struct err *err)
{
    struct bridge_request r = disk_request(d);

    return modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_ADD, BRIDGE_RES_MAPPED_VIRTUAL_DISK, &r, err);
}

int bridge_unmount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                        struct err *err)
{
    struct bridge_request r = disk_request(d);

    return gone_is_fine(
        modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_REMOVE, BRIDGE_RES_MAPPED_VIRTUAL_DISK, &r, err),
        err);
}

int bridge_eject_disk(struct ctx *ctx, struct guest *g, uint8_t controller, uint8_t lun,
                      struct err *err)
{
    struct bridge_request r = { .modify.scsi_device = { controller, lun } };

    return gone_is_fine(
        modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_REMOVE, BRIDGE_RES_SCSI_DEVICE, &r, err), err);
}

static struct bridge_request share_request(const struct guest_share *s)
{
    return (struct bridge_request){ .modify.directory = { .mount_path = s->mount_path,
                                                          .port = PORT_9P,
                                                          .share_name = s->name,
                                                          .read_only = s->read_only } };
}

int bridge_mount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                       struct err *err)
{
    struct bridge_request r = share_request(s);

    return modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_ADD, BRIDGE_RES_MAPPED_DIRECTORY, &r, err);
}

int bridge_unmount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                         struct err *err)
{
    struct bridge_request r = share_request(s);

    return gone_is_fine(
        modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_REMOVE, BRIDGE_RES_MAPPED_DIRECTORY, &r, err), err);
}

int bridge_add_device(struct ctx *ctx, struct guest *g, const char *place, struct err *err)
{
    struct bridge_request r = { .modify.vpci.vmbus_guid = place };

    return modify(ctx, g, BRIDGE_NULL_ID, BRIDGE_ADD, BRIDGE_RES_VPCI_DEVICE, &r, err);
}

static int layers_call(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                       enum bridge_action action, struct err *err)
{
    AUTO_FREE struct bridge_layer *layers = NULL;
    size_t n = 0;

    while (l->layers && l->layers[n])
        n++;
    if (n > LAYERS_MAX)
        return err_set(err, ERR_INVALID, "%zu layers for %s, at most %d", n, l->root_path,
                       LAYERS_MAX);
    layers = mem_zalloc((n + 1) * sizeof(*layers));
    for (size_t i = 0; i < n; i++)
        layers[i] = (struct bridge_layer){ .id = "", .path = l->layers[i] };

    struct bridge_request r = { .modify.layers = { .container_id = l->container,
                                                   .root_path = l->root_path,
                                                   .layers = layers,
                                                   .n_layers = n,
                                                   .scratch_path = l->scratch_path,
                                                   .scratch_quota = l->scratch_quota } };

    return modify(ctx, g, BRIDGE_NULL_ID, action, BRIDGE_RES_COMBINED_LAYERS, &r, err);
}

int bridge_combine_layers(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                          struct err *err)
{
    return layers_call(ctx, g, l, BRIDGE_ADD, err);
}

int bridge_uncombine_layers(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                            struct err *err)
{
    return gone_is_fine(layers_call(ctx, g, l, BRIDGE_REMOVE, err), err);
}
