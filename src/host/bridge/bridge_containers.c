/* bridge_containers.c - the calls for containers and their files. */
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "host/bridge/bridge_priv.h"
#include <stdlib.h>
#include <string.h>

#define COUNTS_NOT false
#define DOCUMENT_MAX_BYTES (12u << 20)
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

static int document_parse(const char *document, json_t **root, struct bridge_request *r,
                          struct err *err)
{
    const json_t *spec = NULL;

    if (js_parse(document, strlen(document), DOCUMENT_MAX_BYTES, root, err) < 0 ||
        js_obj(*root, "OciSpecification", &spec, err) < 0 ||
        js_str(*root, "OciBundlePath", &r->create.bundle_path, err) < 0 ||
        js_str(*root, "ScratchDirPath", &r->create.scratch_path, err) < 0 ||
        js_bool(*root, "Privileged", &r->create.privileged, err) < 0)
        return -1;
    if (!spec)
        return err_set(err, ERR_INVALID, "OciSpecification is missing");
    r->create.spec = spec;
    r->create.schema = (struct bridge_schema_version){ 2, 1 };
    return 0;
}

int bridge_create_container(struct ctx *ctx, struct guest *g, const char *container,
                            const char *document, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_CREATE, .container_id = container };
    AUTO(json_decref) json_t *root = NULL;

    if (document_parse(document, &root, &r, err) < 0)
        return err_wrap(err, "document of container %s", container);
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

    return gone_is_fine(bridge_plain_call(ctx, bridge_of(g), &r, err), err);
}

int bridge_update_container(struct ctx *ctx, struct guest *g, const char *container,
                            const char *resources, struct err *err)
{
    AUTO(json_decref) json_t *root = NULL;
    struct bridge_request r = { 0 };

    if (js_parse(resources, strlen(resources), DOCUMENT_MAX_BYTES, &root, err) < 0)
        return err_wrap(err, "resources of container %s", container);
    r.modify.constraints.linux_resources = root;
    return modify(ctx, g, container, BRIDGE_UPDATE, BRIDGE_RES_CONTAINER_CONSTRAINTS, &r, err);
}

int bridge_freeze_container(struct ctx *ctx, struct guest *g, const char *container, bool frozen,
                            struct err *err)
{
    struct bridge_request r = { .modify.freezer.frozen = frozen };

    return modify(ctx, g, container, BRIDGE_UPDATE, BRIDGE_RES_CONTAINER_FREEZER, &r, err);
}

/* One property of lcow's own. */
static int ask(struct ctx *ctx, struct guest *g, const char *container, const char *property,
               struct bridge_properties *ret, struct err *err)
{
    const char *const types[] = { property, NULL };
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = BRIDGE_GET_PROPERTIES,
                                .container_id = container,
                                .query.types = types };
    struct bridge_response resp = { 0 };

    if (bridge_need_connection(b, r.type, err) < 0 ||
        bridge_call(ctx, b, &r, 0, COUNTS_NOT, &resp, err) < 0)
        return -1;

    int result = bridge_properties_decode(resp.properties, ret, err);

    bridge_response_release(&resp);
    return result;
}

int bridge_wait_oom(struct ctx *ctx, struct guest *g, const char *container, bool *ret_oom,
                    struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    if (ask(ctx, g, container, BRIDGE_PROPERTY_OUT_OF_MEMORY, &p, err) < 0)
        return -1;
    *ret_oom = p.out_of_memory;
    return 0;
}

int bridge_read_clock(struct ctx *ctx, struct guest *g, uint64_t *ret_ns, struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    if (ask(ctx, g, BRIDGE_NULL_ID, BRIDGE_PROPERTY_CLOCK, &p, err) < 0)
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
