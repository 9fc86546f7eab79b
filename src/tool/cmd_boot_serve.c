/* cmd_boot_serve.c - lets a VM of `lcow boot --keep` answer lcow(1) like a shim's VM: by a run file
 * beside its ledger, and a socket with a shim's diagnostic services. The session's ledger records
 * both, so that `lcow gc` removes them if lcow is killed. */
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "host/control/events.h"
#include "host/control/registry.h"
#include "host/ledger/ledger.h"
#include "host/rpc/rpc_server.h"
#include "host/rpc/rpc_sock.h"
#include "tool/cmd_boot.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define SHUTDOWN_LIMIT (5 * NS_PER_S)

struct boot_server {
    char *path; /* of the socket */
    uint64_t record;
    struct events *events;
    struct registry *registry; /* has the VM, and no containers */
    struct rpc_server *server;
    struct service *service;
};

static int listen_on(struct boot_session *s, struct boot_server *b, struct err *err)
{
    int fd;

    if (ledger_add(s->ledger, LEDGER_FILE, b->path, &b->record, err) < 0 ||
        rpc_sock_listen(b->path, &fd, err) < 0)
        return -1;
    rpc_server_listen(b->server, fd);
    return 0;
}

void boot_serve(struct ctx *ctx, struct boot_session *s)
{
    struct loop *loop = s->tool->loop;
    struct err err = ERR_INIT;

    if (!s->ledger)
        return;
    struct boot_server *b = s->server = mem_new(struct boot_server);
    b->path = str_format("%s/lcow.sock", ledger_dir(s->ledger));
    b->events = events_new();
    b->registry = registry_new(&(struct registry_opts){ .loop = loop,
                                                        .ns = "boot",
                                                        .id = s->result->id,
                                                        .config = &s->tool->config,
                                                        .events = b->events,
                                                        .address = b->path });
    b->server = rpc_server_new(loop);
    b->service = s->tool->backend->serve(loop, b->registry, b->server);
    if (listen_on(s, b, &err) < 0 || registry_adopt(b->registry, s->vm, s->ledger, &err) < 0)
        log_warn(ctx, "lcow ps will not show the kept VM: could not start its services",
                 F_ERR(&err));
}

/* Ends the services and what `lcow exec` runs in the VM. Repeatable. */
void boot_unserve(struct boot_session *s)
{
    struct ctx ctx = ctx_limited(s->tool->loop, SHUTDOWN_LIMIT);
    struct boot_server *b = s->server;
    struct err err = ERR_INIT;

    if (!b)
        return;
    s->server = NULL;
    if (registry_yield(b->registry, s->ledger, &err) < 0)
        log_warn(&ctx, "could not remove the run file of the kept VM; run lcow gc", F_ERR(&err));
    err_clear(&err);
    if (b->record &&
        ((unlink(b->path) < 0 && errno != ENOENT) || ledger_forget(s->ledger, b->record, &err) < 0))
        log_warn(&ctx, "could not remove the socket of the kept VM; run lcow gc", F_ERR(&err));
    err_clear(&err);
    if (rpc_server_shutdown(&ctx, b->server, &err) < 0) {
        log_warn(&ctx, "a call to the kept VM did not end", F_ERR(&err));
        return; /* the call still uses what would be freed */
    }
    rpc_server_free(b->server);
    s->tool->backend->unserve(b->service);
    registry_free(b->registry);
    events_free(b->events);
    free(b->path);
    free(b);
}
