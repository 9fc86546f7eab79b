/* bridge_calls.c - one typed call per message. */
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/bridge/bridge_priv.h"
#include "host/vmm/vmm.h"
#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNTS true
#define LAYERS_MAX 512
#define MAC_TEXT 18
#define PER_NIC_MAX 256 /* of each kind: the message has room for that */

static const char *id_of(const char *container)
{
    return container ? container : BRIDGE_NULL_ID;
}

static int need_capability(const struct bridge *b, bool has, const char *name, struct err *err)
{
    if (has || !b->connected) /* a call on a lost bridge fails for that reason */
        return 0;
    return err_set(err, ERR_UNIMPLEMENTED, "the guest lacks the capability %s", name);
}

/* Calls of controllers need a negotiated bridge. */
static int need_connection(const struct bridge *b, uint32_t type, struct err *err)
{
    if (b->connected)
        return 0;
    return err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "%s: the guest is %s%s",
                       bridge_message_name(type), b->closed ? "gone: " : "not connected",
                       b->closed ? b->why : "");
}

/* Release *ret if 0. */
static int call(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                uint64_t limit_ns, bool counts, struct bridge_response *ret, struct err *err)
{
    if (need_connection(b, r->type, err) < 0)
        return -1;
    return bridge_call(ctx, b, r, limit_ns, counts, ret, err);
}

/* A call whose answer says nothing but yes. */
static int plain_call(struct ctx *ctx, struct guest *g, const struct bridge_request *r,
                      struct err *err)
{
    AUTO(bridge_response_release) struct bridge_response resp = { 0 };

    return call(ctx, bridge_of(g), r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err);
}

/* Removing what is gone is success. */
static int gone_is_fine(int r, struct err *err)
{
    if (r == 0 || err->code != ERR_NOT_FOUND)
        return r;
    err_clear(err);
    return 0;
}

static int modify(struct ctx *ctx, struct guest *g, const char *id, enum bridge_action action,
                  enum bridge_resource resource, struct bridge_request *r, struct err *err)
{
    int result;

    r->type = BRIDGE_MODIFY_SETTINGS;
    r->container_id = id;
    r->modify.action = action;
    r->modify.resource = resource;
    result = plain_call(ctx, g, r, err);
    return action == BRIDGE_REMOVE ? gone_is_fine(result, err) : result;
}

static int modify_vm(struct ctx *ctx, struct guest *g, enum bridge_action action,
                     enum bridge_resource resource, struct bridge_request *r, struct err *err)
{
    return modify(ctx, g, BRIDGE_NULL_ID, action, resource, r, err);
}

static int take_caps(struct bridge *b, const struct bridge_response *resp, struct err *err)
{
    char os[16] = "";

    if (resp->negotiate.version != BRIDGE_VERSION)
        return err_because(err, REASON_VERSION_MISMATCH, ERR_UNIMPLEMENTED,
                           "the agent speaks protocol version %u, this program version %u: use the "
                           "guest image that was built with it",
                           resp->negotiate.version, BRIDGE_VERSION);
    b->caps = resp->negotiate.caps;
    for (size_t n = 0; b->caps.os[n] && n + 1 < sizeof(os); n++)
        os[n] = isalnum((unsigned char)b->caps.os[n]) ? (char)tolower(b->caps.os[n]) : '?';
    b->caps.os = NULL;
    if (!str_eq(os, "linux"))
        return err_because(err, REASON_VERSION_MISMATCH, ERR_UNIMPLEMENTED,
                           "the agent runs on '%s', not on linux", os);
    return 0;
}

int bridge_negotiate_version(struct ctx *ctx, struct bridge *b, struct err *err)
{
    const struct bridge_request r = { .type = BRIDGE_NEGOTIATE_PROTOCOL,
                                      .container_id = "",
                                      .negotiate = { BRIDGE_VERSION, BRIDGE_VERSION } };
    AUTO(bridge_response_release) struct bridge_response resp = { 0 };

    if (bridge_call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) == 0)
        return take_caps(b, &resp, err);
    if (bridge_hr(err) == BRIDGE_HR_UNSUPPORTED_VERSION)
        err_wrap_because(err, REASON_VERSION_MISMATCH,
                         "the agent does not speak protocol version %u", BRIDGE_VERSION);
    return -1;
}

/* --- processes --- */

static int wait_process(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                        uint32_t timeout_ms, uint32_t *ret_exit_code, uint64_t *wait_id,
                        struct err *err)
{
    const struct bridge_request r = { .type = BRIDGE_WAIT_FOR_PROCESS,
                                      .container_id = id_of(container),
                                      .wait = { pid, timeout_ms } };
    AUTO(bridge_response_release) struct bridge_response resp = { 0 };
    /* A wait without end is ended by ctx or by the end of the guest. */
    uint64_t limit =
        timeout_ms == GUEST_WAIT_FOREVER ? 0 : timeout_ms * NS_PER_MS + BRIDGE_CALL_LIMIT;

    if (need_connection(bridge_of(g), r.type, err) < 0 ||
        bridge_wait(ctx, bridge_of(g), &r, limit, WAIT_GUEST_PROCESS, wait_id, &resp, err) < 0)
        return -1;
    *ret_exit_code = resp.exit_code;
    return 0;
}

static int signal_process(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          int signo, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = BRIDGE_SIGNAL_PROCESS,
                                .container_id = id_of(container),
                                .signal = { pid, signo } };

    if (signo <= 0 || signo > SIGRTMAX)
        return err_because(err, REASON_INVALID_REQUEST, ERR_INVALID,
                           "invalid signal %d: must be 1–%d", signo, SIGRTMAX);
    /* An older guest knows one way to end a process: a request without a signal. */
    if (!b->caps.signal_process && (signo == SIGTERM || signo == SIGKILL))
        r.signal.signal = 0;
    else if (need_capability(b, b->caps.signal_process, "SignalProcessSupported", err) < 0)
        return err_wrap(err, "send signal %d", signo);
    return plain_call(ctx, g, &r, err);
}

static int resize_console(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          uint16_t rows, uint16_t cols, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_RESIZE_CONSOLE,
                                .container_id = id_of(container),
                                .resize = { pid, rows, cols } };

    return plain_call(ctx, g, &r, err);
}

/* --- exec --- */

struct stdio {
    struct vmm_listener *listeners[3];
    struct stream *streams[3];
    uint32_t ports[3];
};

static void stdio_release(struct bridge *b, struct stdio *io)
{
    for (size_t i = 0; i < ARRAY_LEN(io->listeners); i++) {
        if (io->listeners[i])
            b->vmm->ops->unlisten(TAKE_PTR(io->listeners[i]));
        stream_free(TAKE_PTR(io->streams[i]));
    }
}

/* Before the request is sent: the guest dials before it answers. */
static int stdio_listen(struct bridge *b, const bool want[3], struct stdio *io, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(io->listeners); i++) {
        if (!want[i])
            continue;
        io->ports[i] = b->next_port++;
        if (b->vmm->ops->listen(b->vmm, io->ports[i], &io->listeners[i], err) < 0)
            return err_wrap(err, "listen on stdio port 0x%x", io->ports[i]);
    }
    return 0;
}

static int accept_port(struct ctx *ctx, struct bridge *b, struct vmm_listener *l,
                       struct stream **ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, BRIDGE_STDIO_LIMIT);
    struct bridge_user user;
    struct ctx inner = bridge_enter(&limited, b, &user);
    int r = b->vmm->ops->accept(&inner, l, ret, err);

    bridge_leave(&user);
    if (r < 0 && b->closed)
        return err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "the guest is gone: %s",
                           b->why);
    return r;
}

static int stdio_accept(struct ctx *ctx, struct bridge *b, struct stdio *io, struct err *err)
{
    static const char *const names[] = { "stdin", "stdout", "stderr" };
    struct ctx limited = ctx_with_timeout(ctx, BRIDGE_STDIO_LIMIT);

    for (size_t i = 0; i < ARRAY_LEN(io->listeners); i++) {
        if (!io->listeners[i])
            continue;
        if (accept_port(&limited, b, TAKE_PTR(io->listeners[i]), &io->streams[i], err) < 0)
            return err_wrap(err, "the guest did not open the process's %s", names[i]);
    }
    return 0;
}

static struct bridge_request exec_request(const struct guest_exec *e, const struct stdio *io)
{
    struct bridge_request r = {
        .type = BRIDGE_EXECUTE_PROCESS,
        .container_id = id_of(e->container),
        .exec = { .want_in = e->want_stdin,
                  .want_out = e->want_stdout,
                  .want_err = e->want_stderr,
                  .ports = { io->ports[0], io->ports[1], io->ports[2] } },
    };

    if (e->container) {
        r.exec.oci_process = e->oci_process;
    } else {
        r.exec.args = e->argv;
        r.exec.env = e->env;
        r.exec.cwd = e->cwd;
        r.exec.terminal = e->terminal;
    }
    return r;
}

/* The process runs, but its streams did not connect: its output would never be read. */
static void kill_orphan(struct bridge *b, const char *container, uint32_t pid)
{
    struct ctx limited = ctx_limited(b->loop, BRIDGE_KILL_LIMIT);
    struct err err = ERR_INIT;

    if (b->connected && signal_process(&limited, &b->guest, container, pid, SIGKILL, &err) < 0)
        log_warn(&limited, "a process whose streams failed still runs in the guest",
                 F_U(LK_PID, pid), F_ERR(&err));
}

static int exec_and_accept(struct ctx *ctx, struct bridge *b, const struct guest_exec *e,
                           struct stdio *io, uint32_t *ret_pid, struct err *err)
{
    const struct bridge_request r = exec_request(e, io);
    AUTO(bridge_response_release) struct bridge_response resp = { 0 };

    if (call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0)
        return -1;
    *ret_pid = resp.process_id;
    int ret = stdio_accept(ctx, b, io, err);
    if (ret < 0)
        kill_orphan(b, e->container, *ret_pid);
    return ret;
}

static int exec_process(struct ctx *ctx, struct guest *g, const struct guest_exec *e,
                        struct guest_process *ret, struct err *err)
{
    struct bridge *b = bridge_of(g);
    const bool want[3] = { e->want_stdin, e->want_stdout, e->want_stderr };
    struct stdio io = { 0 };
    uint32_t pid = 0;

    if (e->terminal && e->want_stderr)
        return err_set(err, ERR_INVALID, "a terminal has no separate stderr");
    if (need_connection(b, BRIDGE_EXECUTE_PROCESS, err) < 0)
        return -1;
    if (stdio_listen(b, want, &io, err) < 0 || exec_and_accept(ctx, b, e, &io, &pid, err) < 0) {
        stdio_release(b, &io);
        return -1;
    }
    *ret = (struct guest_process){ pid, io.streams[0], io.streams[1], io.streams[2] };
    return 0;
}

/* --- the VM --- */

static int dump_stacks(struct ctx *ctx, struct guest *g, char **ret_text, struct err *err)
{
    struct bridge *b = bridge_of(g);
    const struct bridge_request r = { .type = BRIDGE_DUMP_STACKS, .container_id = BRIDGE_NULL_ID };
    AUTO(bridge_response_release) struct bridge_response resp = { 0 };

    if (need_capability(b, b->caps.dump_stacks, "DumpStacksSupported", err) < 0 ||
        call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0)
        return -1;
    *ret_text = str_dup(resp.stacks);
    return 0;
}

static int shut_down(struct ctx *ctx, struct guest *g, const char *container, bool forced,
                     struct err *err)
{
    struct bridge *b = bridge_of(g);
    const struct bridge_request r = { .type = forced ? BRIDGE_SHUTDOWN_FORCED
                                                     : BRIDGE_SHUTDOWN_GRACEFUL,
                                      .container_id = id_of(container) };
    bool was_connected = b->connected;

    if (plain_call(ctx, g, &r, err) == 0)
        return 0;
    /* The VM itself does not answer: it goes away, and the bridge with it. */
    if (!was_connected || !str_eq(r.container_id, BRIDGE_NULL_ID) || err->code != ERR_UNAVAILABLE ||
        !b->closed)
        return -1;
    err_clear(err);
    return 0;
}

/* --- containers --- */

static bool has_holder(const struct guest *g)
{
    return bridge_of(g)->caps.holder;
}

static int create_container(struct ctx *ctx, struct guest *g, const struct guest_container *c,
                            struct err *err)
{
    const struct bridge_request r = { .type = BRIDGE_CREATE,
                                      .container_id = c->id,
                                      .create = { .schema = { 2, 1 },
                                                  .bundle_path = c->bundle_path,
                                                  .spec = c->spec,
                                                  .scratch_path = c->scratch_path,
                                                  .privileged = c->privileged,
                                                  .holder = c->holder } };

    return plain_call(ctx, g, &r, err);
}

static int start_container(struct ctx *ctx, struct guest *g, const char *container, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_START, .container_id = container };

    return plain_call(ctx, g, &r, err);
}

static int delete_container(struct ctx *ctx, struct guest *g, const char *container,
                            struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_DELETE_CONTAINER_STATE, .container_id = container };

    struct bridge *b = bridge_of(g);

    if (b->connected && !b->caps.delete_container_state)
        return 0; /* an older guest keeps a container's state until the VM ends */
    return gone_is_fine(plain_call(ctx, g, &r, err), err);
}

static int update_container(struct ctx *ctx, struct guest *g, const char *container,
                            json_t *resources, struct err *err)
{
    struct bridge_request r = { .modify.constraints.linux_resources = resources };

    return modify(ctx, g, container, BRIDGE_UPDATE, BRIDGE_RES_CONTAINER_CONSTRAINTS, &r, err);
}

static int freeze_container(struct ctx *ctx, struct guest *g, const char *container, bool frozen,
                            struct err *err)
{
    struct bridge_request r = { .modify.freezer.frozen = frozen };

    return modify(ctx, g, container, BRIDGE_UPDATE, BRIDGE_RES_CONTAINER_FREEZER, &r, err);
}

/* limit_ns 0: as long as ctx allows. */
static int ask_several(struct ctx *ctx, struct guest *g, const char *container,
                       const char *const *types, uint64_t limit_ns, struct bridge_properties *ret,
                       struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_GET_PROPERTIES,
                                .container_id = container,
                                .query.types = types };
    AUTO(bridge_response_release) struct bridge_response resp = { 0 };

    if (call(ctx, bridge_of(g), &r, limit_ns, limit_ns > 0, &resp, err) < 0)
        return -1;
    return bridge_properties_decode(resp.properties, ret, err);
}

static int ask(struct ctx *ctx, struct guest *g, const char *container, const char *property,
               uint64_t limit_ns, struct bridge_properties *ret, struct err *err)
{
    const char *const types[] = { property, NULL };

    return ask_several(ctx, g, container, types, limit_ns, ret, err);
}

static int wait_oom(struct ctx *ctx, struct guest *g, const char *container, bool *ret_oom,
                    uint64_t *wait_id, struct err *err)
{
    const char *const types[] = { BRIDGE_PROPERTY_OUT_OF_MEMORY, NULL };
    const struct bridge_request r = { .type = BRIDGE_GET_PROPERTIES,
                                      .container_id = container,
                                      .query.types = types };
    AUTO(bridge_response_release) struct bridge_response resp = { 0 };
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    if (need_connection(bridge_of(g), r.type, err) < 0 ||
        bridge_wait(ctx, bridge_of(g), &r, 0, WAIT_GUEST_OOM, wait_id, &resp, err) < 0 ||
        bridge_properties_decode(resp.properties, &p, err) < 0)
        return -1;
    *ret_oom = p.out_of_memory;
    return 0;
}

static int read_stats(struct ctx *ctx, struct guest *g, const char *container, json_t **ret_metrics,
                      uint64_t *ret_scratch_bytes, struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    const char *const types[] = { BRIDGE_PROPERTY_STATISTICS, BRIDGE_PROPERTY_SHORT,
                                  ret_scratch_bytes ? BRIDGE_PROPERTY_SCRATCH : NULL, NULL };

    if (ask_several(ctx, g, container, types, BRIDGE_CALL_LIMIT, &p, err) < 0)
        return -1;
    if (!p.metrics)
        return err_set(err, ERR_NOT_FOUND, "the guest has no metrics");
    *ret_metrics = json_incref(p.metrics);
    if (ret_scratch_bytes)
        *ret_scratch_bytes = p.scratch;
    return 0;
}

static int by_pid(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static struct guest_listed listed_from(const struct bridge_process *p, uint64_t now_ns)
{
    uint64_t age_ns = p->age_ms < now_ns / NS_PER_MS ? p->age_ms * NS_PER_MS : 0;
    struct guest_listed to = { .pid = p->pid,
                               .leader = p->leader,
                               .start_ns = age_ns ? now_ns - age_ns : 0,
                               .user_ms = p->user_ms,
                               .kernel_ms = p->kernel_ms,
                               .data_kib = p->data_kib,
                               .private_kib = p->private_kib,
                               .shared_kib = p->shared_kib };

    for (size_t i = 0; i < sizeof(to.name) - 1 && p->name[i]; i++)
        to.name[i] = p->name[i] >= ' ' && p->name[i] <= '~' ? p->name[i] : '?';
    return to;
}

/* The guest is hostile: an invalid pid, or one that was there already, is left out. */
static int list_processes(struct ctx *ctx, struct guest *g, const char *container,
                          struct guest_listed **ret, size_t *ret_n, struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };
    uint64_t now_ns;
    size_t n = 0;

    if (ask(ctx, g, container, BRIDGE_PROPERTY_PROCESS_LIST, BRIDGE_CALL_LIMIT, &p, err) < 0)
        return -1;
    if (p.n_processes > 0)
        qsort(p.processes, p.n_processes, sizeof(p.processes[0]), by_pid);
    now_ns = loop_wall(bridge_of(g)->loop);
    *ret = mem_zalloc((p.n_processes < GUEST_LIST_MAX ? p.n_processes + 1 : GUEST_LIST_MAX) *
                      sizeof(**ret));
    for (size_t i = 0; i < p.n_processes && n < GUEST_LIST_MAX; i++) {
        const struct bridge_process *from = &p.processes[i];
        bool seen = n > 0 && (*ret)[n - 1].pid == from->pid;
        if (from->pid > 0 && from->pid <= GUEST_PID_MAX && !seen)
            (*ret)[n++] = listed_from(from, now_ns);
    }
    *ret_n = n;
    return 0;
}

static int read_clock(struct ctx *ctx, struct guest *g, uint64_t *ret_ns, struct err *err)
{
    AUTO(bridge_properties_release) struct bridge_properties p = { 0 };

    if (ask(ctx, g, BRIDGE_NULL_ID, BRIDGE_PROPERTY_CLOCK, 0, &p, err) < 0)
        return -1;
    if (p.clock == 0)
        return err_set(err, ERR_UNIMPLEMENTED, "the guest did not report its clock");
    *ret_ns = p.clock;
    return 0;
}

static int limit_pods(struct ctx *ctx, struct guest *g, struct err *err)
{
    struct bridge_request r = { 0 };

    return modify_vm(ctx, g, BRIDGE_UPDATE, BRIDGE_RES_POD_CGROUP_MEMORY_LIMIT, &r, err);
}

static int set_clock(struct ctx *ctx, struct guest *g, uint64_t wall_ns, struct err *err)
{
    struct bridge_request r = { .modify.clock.wall_ns = wall_ns };

    return modify_vm(ctx, g, BRIDGE_UPDATE, BRIDGE_RES_CLOCK, &r, err);
}

/* --- files --- */

static int mount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d, struct err *err)
{
    struct bridge_request r = { .modify.disk = *d };

    return modify_vm(ctx, g, BRIDGE_ADD, BRIDGE_RES_MAPPED_VIRTUAL_DISK, &r, err);
}

static int unmount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                        struct err *err)
{
    struct bridge_request r = { .modify.disk = *d };

    return modify_vm(ctx, g, BRIDGE_REMOVE, BRIDGE_RES_MAPPED_VIRTUAL_DISK, &r, err);
}

static int eject_disk(struct ctx *ctx, struct guest *g, uint8_t controller, uint8_t lun,
                      struct err *err)
{
    struct bridge_request r = { .modify.scsi_device = { controller, lun } };

    return modify_vm(ctx, g, BRIDGE_REMOVE, BRIDGE_RES_SCSI_DEVICE, &r, err);
}

static int mount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                       struct err *err)
{
    struct bridge_request r = { .modify.share = *s };

    return modify_vm(ctx, g, BRIDGE_ADD, BRIDGE_RES_MAPPED_DIRECTORY, &r, err);
}

static int unmount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                         struct err *err)
{
    struct bridge_request r = { .modify.share = *s };

    return modify_vm(ctx, g, BRIDGE_REMOVE, BRIDGE_RES_MAPPED_DIRECTORY, &r, err);
}

static int add_device(struct ctx *ctx, struct guest *g, const char *place, struct err *err)
{
    struct bridge_request r = { .modify.vpci.vmbus_guid = place };

    return modify_vm(ctx, g, BRIDGE_ADD, BRIDGE_RES_VPCI_DEVICE, &r, err);
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
        layers[i] = (struct bridge_layer){ .path = l->layers[i] };

    struct bridge_request r = { .modify.layers = { .container_id = l->container,
                                                   .root_path = l->root_path,
                                                   .layers = layers,
                                                   .n_layers = n,
                                                   .scratch_path = l->scratch_path,
                                                   .scratch_quota = l->scratch_quota,
                                                   .uid_map = l->uid_map,
                                                   .gid_map = l->gid_map,
                                                   .map_layers = l->map_layers } };

    return modify_vm(ctx, g, action, BRIDGE_RES_COMBINED_LAYERS, &r, err);
}

static int combine_layers(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                          struct err *err)
{
    return layers_call(ctx, g, l, BRIDGE_ADD, err);
}

static int uncombine_layers(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                            struct err *err)
{
    return layers_call(ctx, g, l, BRIDGE_REMOVE, err);
}

/* --- networks of pods --- */

static void mac_text(const uint8_t mac[6], char ret[MAC_TEXT])
{
    snprintf(ret, MAC_TEXT, "%02X-%02X-%02X-%02X-%02X-%02X", mac[0], mac[1], mac[2], mac[3], mac[4],
             mac[5]);
}

/* Lists in the wire's own form. */
struct lists {
    struct bridge_neighbour *neighbours;
    char (*macs)[MAC_TEXT];
};

static void lists_release(struct lists *l)
{
    free(l->neighbours);
    free(l->macs);
}
AUTO_VALUE(struct lists, lists_release);

static void lists_fill(struct lists *l, const struct guest_nic *n)
{
    l->neighbours = mem_zalloc((n->n_neighbours + 1) * sizeof(*l->neighbours));
    l->macs = mem_zalloc((n->n_neighbours + 1) * sizeof(*l->macs));
    for (size_t i = 0; i < n->n_neighbours; i++) {
        mac_text(n->neighbours[i].mac, l->macs[i]);
        l->neighbours[i] = (struct bridge_neighbour){ n->neighbours[i].address, l->macs[i] };
    }
}

static int add_nic(struct ctx *ctx, struct guest *g, const struct guest_nic *n, struct err *err)
{
    AUTO(lists_release) struct lists l = { 0 };
    struct bridge *b = bridge_of(g);
    char mac[MAC_TEXT];

    if (need_capability(b, b->caps.namespace_add, "NamespaceAddRequestSupported", err) < 0)
        return err_wrap(err, "add interface %s", n->name);
    if (n->n_ips > PER_NIC_MAX || n->n_routes > PER_NIC_MAX || n->n_neighbours > PER_NIC_MAX ||
        n->n_rules > PER_NIC_MAX)
        return err_set(err, ERR_EXHAUSTED,
                       "interface %s: more than %d addresses, routes, neighbours or rules", n->name,
                       PER_NIC_MAX);
    lists_fill(&l, n);
    mac_text(n->mac, mac);

    struct bridge_request r = { .modify.network = { .namespace_id = n->ns,
                                                    .id = n->id,
                                                    .mac = mac,
                                                    .dns_search = n->dns_search,
                                                    .dns_servers = n->dns_servers,
                                                    .ips = n->ips,
                                                    .n_ips = n->n_ips,
                                                    .routes = n->routes,
                                                    .n_routes = n->n_routes,
                                                    .name = n->name,
                                                    .mtu = n->mtu,
                                                    .neighbours = l.neighbours,
                                                    .n_neighbours = n->n_neighbours,
                                                    .rules = n->rules,
                                                    .n_rules = n->n_rules,
                                                    .sysctls = n->sysctls } };

    return modify_vm(ctx, g, BRIDGE_ADD, BRIDGE_RES_NETWORK, &r, err);
}

static int remove_nic(struct ctx *ctx, struct guest *g, const char *ns, const char *id,
                      struct err *err)
{
    struct bridge_request r = { .modify.network = { .namespace_id = ns, .id = id } };

    return modify_vm(ctx, g, BRIDGE_REMOVE, BRIDGE_RES_NETWORK, &r, err);
}

/* Listening first: the guest dials before it answers. */
static int connect_port(struct ctx *ctx, struct guest *g, const char *ns, bool ipv6, uint16_t port,
                        struct stream **ret, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct vmm_listener *l = NULL;
    struct bridge_request r = { .modify.forward = { .namespace_id = ns,
                                                    .ipv6 = ipv6,
                                                    .port = port,
                                                    .host_port = b->next_port++ } };

    if (need_connection(b, BRIDGE_MODIFY_SETTINGS, err) < 0)
        return -1;
    if (b->vmm->ops->listen(b->vmm, r.modify.forward.host_port, &l, err) < 0)
        return err_wrap(err, "listen for port %u of a pod", port);
    if (modify_vm(ctx, g, BRIDGE_ADD, BRIDGE_RES_PORT_FORWARD, &r, err) < 0) {
        b->vmm->ops->unlisten(l);
        return -1;
    }
    return accept_port(ctx, b, l, ret, err);
}

const struct guest_ops bridge_ops = {
    .prepare = bridge_ops_prepare,
    .connect = bridge_ops_connect,
    .close = bridge_ops_close,
    .wait_closed = bridge_ops_wait_closed,
    .drain_log = bridge_ops_drain_log,
    .free = bridge_ops_free,
    .saved = bridge_ops_saved,
    .connected = bridge_ops_connected,
    .oldest_call = bridge_ops_oldest_call,
    .log_lost = bridge_ops_log_lost,
    .has_holder = has_holder,
    .exec = exec_process,
    .wait_process = wait_process,
    .signal_process = signal_process,
    .resize_console = resize_console,
    .read_stats = read_stats,
    .list_processes = list_processes,
    .dump_stacks = dump_stacks,
    .shutdown = shut_down,
    .create_container = create_container,
    .start_container = start_container,
    .delete_container = delete_container,
    .update_container = update_container,
    .freeze_container = freeze_container,
    .wait_oom = wait_oom,
    .limit_pods = limit_pods,
    .set_clock = set_clock,
    .read_clock = read_clock,
    .mount_disk = mount_disk,
    .unmount_disk = unmount_disk,
    .eject_disk = eject_disk,
    .mount_share = mount_share,
    .unmount_share = unmount_share,
    .combine_layers = combine_layers,
    .uncombine_layers = uncombine_layers,
    .add_nic = add_nic,
    .remove_nic = remove_nic,
    .add_device = add_device,
    .connect_port = connect_port,
};
