/* cmd_boot_serve.c - a VM of `lcow boot --keep` answers lcow(1) as a shim's VM does: by a run file
 * beside its ledger and a socket with the services that look into a shim. Both are in the ledger,
 * which is the session's then, so that `lcow gc` removes them if we are killed. */
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
    struct registry *registry; /* with the VM, and never a container */
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
        log_warn(ctx, "the kept VM is not in lcow ps: it cannot be asked", F_ERR(&err));
}

/* What was running in the VM by `lcow exec` ends. Repeatable. */
void boot_unserve(struct boot_session *s)
{
    struct ctx ctx = ctx_limited(s->tool->loop, SHUTDOWN_LIMIT);
    struct boot_server *b = s->server;
    struct err err = ERR_INIT;

    if (!b)
        return;
    s->server = NULL;
    if (registry_yield(b->registry, s->ledger, &err) < 0)
        log_warn(&ctx, "the run file of the kept VM stays for lcow gc", F_ERR(&err));
    err_clear(&err);
    if (b->record &&
        ((unlink(b->path) < 0 && errno != ENOENT) || ledger_forget(s->ledger, b->record, &err) < 0))
        log_warn(&ctx, "the socket of the kept VM stays for lcow gc", F_ERR(&err));
    err_clear(&err);
    if (rpc_server_shutdown(&ctx, b->server, &err) < 0) {
        log_warn(&ctx, "a call to the kept VM does not end", F_ERR(&err));
        return; /* it uses what would be freed */
    }
    rpc_server_free(b->server);
    s->tool->backend->unserve(b->service);
    registry_free(b->registry);
    events_free(b->events);
    free(b->path);
    free(b);
}
