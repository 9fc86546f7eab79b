/* bridge_calls.c - one typed call per message. */
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/bridge/bridge_priv.h"
#include "host/vmm/vmm.h"
#include <ctype.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define COUNTS true
#define COUNTS_NOT false
#define QUERY_MAX_BYTES (64 * 1024)
#define PROCESS_MAX_BYTES (1024 * 1024)

static const char *id_of(const char *container)
{
    return container ? container : BRIDGE_NULL_ID;
}

int bridge_need_connection(const struct bridge *b, uint32_t type, struct err *err)
{
    if (b->connected)
        return 0;
    return err_set(err, ERR_UNAVAILABLE, "%s: the guest is %s%s", bridge_message_name(type),
                   b->closed ? "gone: " : "not connected", b->closed ? b->why : "");
}

int bridge_plain_call(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                      struct err *err)
{
    struct bridge_response resp = { 0 };

    if (bridge_need_connection(b, r->type, err) < 0 ||
        bridge_call(ctx, b, r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0)
        return -1;
    bridge_response_release(&resp);
    return 0;
}

static int take_caps(struct bridge *b, const struct bridge_response *resp, struct err *err)
{
    const struct bridge_caps *c = &resp->negotiate.caps;
    size_t n = 0;

    if (resp->negotiate.version != BRIDGE_VERSION)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "the agent speaks protocol version %u, this program version %u: use the "
                       "guest image that was built with it",
                       resp->negotiate.version, BRIDGE_VERSION);
    b->caps = (struct guest_caps){ .namespace_add = c->namespace_add,
                                   .signal_process = c->signal_process,
                                   .dump_stacks = c->dump_stacks,
                                   .delete_container_state = c->delete_container_state };
    for (; c->os[n] && n + 1 < sizeof(b->caps.os); n++)
        b->caps.os[n] = isalnum((unsigned char)c->os[n]) ? (char)tolower(c->os[n]) : '?';
    if (!str_eq(b->caps.os, "linux"))
        return err_set(err, ERR_UNIMPLEMENTED, "the agent runs on '%s', not on linux", b->caps.os);
    return 0;
}

int bridge_negotiate_version(struct ctx *ctx, struct bridge *b, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_NEGOTIATE_PROTOCOL,
                                .container_id = "",
                                .negotiate = { BRIDGE_VERSION, BRIDGE_VERSION } };
    struct bridge_response resp = { 0 };

    if (bridge_call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0) {
        if (bridge_hr(err) == BRIDGE_HR_UNSUPPORTED_VERSION)
            err_wrap(err, "the agent does not speak protocol version %u", BRIDGE_VERSION);
        return -1;
    }

    int ret = take_caps(b, &resp, err);

    bridge_response_release(&resp);
    return ret;
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

static int stdio_accept(struct ctx *ctx, struct bridge *b, struct stdio *io, struct err *err)
{
    static const char *const names[] = { "stdin", "stdout", "stderr" };
    struct ctx limited = ctx_with_timeout(ctx, BRIDGE_STDIO_LIMIT);

    for (size_t i = 0; i < ARRAY_LEN(io->listeners); i++) {
        if (!io->listeners[i])
            continue;
        if (b->vmm->ops->accept(&limited, TAKE_PTR(io->listeners[i]), &io->streams[i], err) < 0)
            return err_wrap(err, "the guest did not open the process's %s", names[i]);
    }
    return 0;
}

static int exec_request(const struct guest_exec *e, const struct stdio *io, json_t **process,
                        struct bridge_request *r, struct err *err)
{
    *r = (struct bridge_request){
        .type = BRIDGE_EXECUTE_PROCESS,
        .container_id = id_of(e->container),
        .exec = { .want_in = e->want_stdin,
                  .want_out = e->want_stdout,
                  .want_err = e->want_stderr,
                  .ports = { io->ports[0], io->ports[1], io->ports[2] } },
    };
    if (!e->container) {
        r->exec.args = e->argv;
        r->exec.env = e->env;
        r->exec.cwd = e->cwd;
        r->exec.terminal = e->terminal;
        return 0;
    }
    if (!e->oci_process)
        return 0;
    if (js_parse(e->oci_process, strlen(e->oci_process), PROCESS_MAX_BYTES, process, err) < 0)
        return err_wrap(err, "process for container %s", e->container);
    r->exec.oci_process = *process;
    return 0;
}

/* It runs, but its streams did not come: nobody would ever read it. */
static void kill_orphan(struct bridge *b, const char *container, uint32_t pid)
{
    struct ctx root = ctx_root(b->loop), limited = ctx_with_timeout(&root, BRIDGE_KILL_LIMIT);
    struct err err = ERR_INIT;

    if (b->connected &&
        bridge_signal_process(&limited, &b->guest, container, pid, SIGKILL, &err) < 0)
        log_warn(&root, "a process without streams runs on in the guest", F_U("pid", pid),
                 F_ERR(&err));
}

static int exec_and_accept(struct ctx *ctx, struct bridge *b, const struct guest_exec *e,
                           struct stdio *io, uint32_t *ret_pid, struct err *err)
{
    AUTO(json_decref) json_t *process = NULL;
    struct bridge_response resp = { 0 };
    struct bridge_request r;
    struct bridge_user user;
    int ret;

    if (exec_request(e, io, &process, &r, err) < 0 ||
        bridge_call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0)
        return -1;
    *ret_pid = resp.process_id;
    bridge_response_release(&resp);

    struct ctx inner = bridge_enter(ctx, b, &user);

    ret = stdio_accept(&inner, b, io, err);
    bridge_leave(&user);
    if (ret < 0 && b->closed)
        return err_set(err, ERR_UNAVAILABLE, "the guest is gone: %s", b->why);
    if (ret < 0)
        kill_orphan(b, e->container, *ret_pid);
    return ret;
}

int bridge_exec_process(struct ctx *ctx, struct guest *g, const struct guest_exec *e,
                        struct guest_process *ret, struct err *err)
{
    struct bridge *b = bridge_of(g);
    const bool want[3] = { e->want_stdin, e->want_stdout, e->want_stderr };
    struct stdio io = { 0 };
    uint32_t pid = 0;

    if (e->terminal && e->want_stderr)
        return err_set(err, ERR_INVALID, "a terminal has no separate stderr");
    if (bridge_need_connection(b, BRIDGE_EXECUTE_PROCESS, err) < 0)
        return -1;
    if (stdio_listen(b, want, &io, err) < 0 || exec_and_accept(ctx, b, e, &io, &pid, err) < 0) {
        stdio_release(b, &io);
        return -1;
    }
    *ret = (struct guest_process){ pid, io.streams[0], io.streams[1], io.streams[2] };
    return 0;
}

/* --- the others --- */

int bridge_wait_process(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                        uint32_t timeout_ms, uint32_t *ret_exit_code, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = BRIDGE_WAIT_FOR_PROCESS,
                                .container_id = id_of(container),
                                .wait = { pid, timeout_ms } };
    struct bridge_response resp = { 0 };
    /* A wait without end is ended by ctx or by the end of the guest. */
    uint64_t limit =
        timeout_ms == GUEST_WAIT_FOREVER ? 0 : timeout_ms * NS_PER_MS + BRIDGE_CALL_LIMIT;

    if (bridge_need_connection(b, r.type, err) < 0 ||
        bridge_call(ctx, b, &r, limit, COUNTS_NOT, &resp, err) < 0)
        return -1;
    *ret_exit_code = resp.exit_code;
    bridge_response_release(&resp);
    return 0;
}

int bridge_signal_process(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          int signo, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_SIGNAL_PROCESS,
                                .container_id = id_of(container),
                                .signal = { pid, signo } };

    if (signo <= 0 || signo > SIGRTMAX)
        return err_set(err, ERR_INVALID, "%d is no signal", signo);
    return bridge_plain_call(ctx, bridge_of(g), &r, err);
}

int bridge_resize_console(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          uint16_t rows, uint16_t cols, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_RESIZE_CONSOLE,
                                .container_id = id_of(container),
                                .resize = { pid, rows, cols } };

    return bridge_plain_call(ctx, bridge_of(g), &r, err);
}

/* {"PropertyTypes":["ProcessList"]} into a NULL-terminated list that borrows from root. */
static int query_types(const char *query, json_t **ret_root, const char ***ret_types,
                       struct err *err)
{
    const json_t *list = NULL;

    if (!query || !query[0])
        return 0;
    if (js_parse(query, strlen(query), QUERY_MAX_BYTES, ret_root, err) < 0 ||
        js_arr(*ret_root, "PropertyTypes", &list, err) < 0)
        return err_wrap(err, "property query");

    size_t n = list ? json_array_size(list) : 0;

    *ret_types = mem_zalloc((n + 1) * sizeof(**ret_types));
    for (size_t i = 0; i < n; i++) {
        (*ret_types)[i] = json_string_value(json_array_get(list, i));
        if (!(*ret_types)[i])
            return err_set(err, ERR_INVALID, "property query: PropertyTypes has no string at %zu",
                           i);
    }
    return 0;
}

int bridge_get_properties(struct ctx *ctx, struct guest *g, const char *container,
                          const char *query, char **ret_properties, struct err *err)
{
    struct bridge *b = bridge_of(g);
    AUTO(json_decref) json_t *root = NULL;
    AUTO_FREE const char **types = NULL;
    struct bridge_request r = { .type = BRIDGE_GET_PROPERTIES, .container_id = id_of(container) };
    struct bridge_response resp = { 0 };

    if (query_types(query, &root, &types, err) < 0)
        return -1;
    r.query.types = types;
    if (bridge_need_connection(b, r.type, err) < 0 ||
        bridge_call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0)
        return -1;
    *ret_properties = str_dup(resp.properties);
    bridge_response_release(&resp);
    return 0;
}

int bridge_dump_stacks(struct ctx *ctx, struct guest *g, char **ret_text, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = BRIDGE_DUMP_STACKS, .container_id = BRIDGE_NULL_ID };
    struct bridge_response resp = { 0 };

    if (bridge_need_connection(b, r.type, err) < 0 ||
        bridge_call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0)
        return -1;
    *ret_text = str_dup(resp.stacks);
    bridge_response_release(&resp);
    return 0;
}

int bridge_shutdown(struct ctx *ctx, struct guest *g, const char *container, bool forced,
                    struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = forced ? BRIDGE_SHUTDOWN_FORCED : BRIDGE_SHUTDOWN_GRACEFUL,
                                .container_id = id_of(container) };

    if (bridge_need_connection(b, r.type, err) < 0)
        return -1;
    if (bridge_plain_call(ctx, b, &r, err) == 0)
        return 0;
    /* The VM itself does not answer: it goes away, and the bridge with it. */
    if (str_eq(r.container_id, BRIDGE_NULL_ID) && err->code == ERR_UNAVAILABLE && b->closed) {
        err_clear(err);
        return 0;
    }
    return -1;
}
