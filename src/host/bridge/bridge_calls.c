/* bridge_calls.c - one typed call per message. */
#include "base/err.h"
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

int bridge_need_capability(const struct bridge *b, bool has, const char *name, struct err *err)
{
    if (has || !b->connected) /* a call on a lost bridge fails for that reason */
        return 0;
    return err_set(err, ERR_UNIMPLEMENTED, "the guest lacks the capability %s", name);
}

static int take_caps(struct bridge *b, const struct bridge_response *resp, struct err *err)
{
    char os[16] = "";

    if (resp->negotiate.version != BRIDGE_VERSION)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "the agent speaks protocol version %u, this program version %u: use the "
                       "guest image that was built with it",
                       resp->negotiate.version, BRIDGE_VERSION);
    b->caps = resp->negotiate.caps;
    for (size_t n = 0; b->caps.os[n] && n + 1 < sizeof(os); n++)
        os[n] = isalnum((unsigned char)b->caps.os[n]) ? (char)tolower(b->caps.os[n]) : '?';
    b->caps.os = NULL;
    if (!str_eq(os, "linux"))
        return err_set(err, ERR_UNIMPLEMENTED, "the agent runs on '%s', not on linux", os);
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
    const struct bridge_request r = exec_request(e, io);
    struct bridge_response resp = { 0 };
    struct bridge_user user;
    int ret;

    if (bridge_call(ctx, b, &r, BRIDGE_CALL_LIMIT, COUNTS, &resp, err) < 0)
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
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = BRIDGE_SIGNAL_PROCESS,
                                .container_id = id_of(container),
                                .signal = { pid, signo } };

    if (signo <= 0 || signo > SIGRTMAX)
        return err_set(err, ERR_INVALID, "invalid signal %d: must be 1–%d", signo, SIGRTMAX);
    /* An older guest knows one way to end a process: a request without a signal. */
    if (!b->caps.signal_process && (signo == SIGTERM || signo == SIGKILL))
        r.signal.signal = 0;
    else if (bridge_need_capability(b, b->caps.signal_process, "SignalProcessSupported", err) < 0)
        return err_wrap(err, "send signal %d", signo);
    return bridge_plain_call(ctx, b, &r, err);
}

int bridge_resize_console(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          uint16_t rows, uint16_t cols, struct err *err)
{
    struct bridge_request r = { .type = BRIDGE_RESIZE_CONSOLE,
                                .container_id = id_of(container),
                                .resize = { pid, rows, cols } };

    return bridge_plain_call(ctx, bridge_of(g), &r, err);
}

int bridge_dump_stacks(struct ctx *ctx, struct guest *g, char **ret_text, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct bridge_request r = { .type = BRIDGE_DUMP_STACKS, .container_id = BRIDGE_NULL_ID };
    struct bridge_response resp = { 0 };

    if (bridge_need_connection(b, r.type, err) < 0 ||
        bridge_need_capability(b, b->caps.dump_stacks, "DumpStacksSupported", err) < 0 ||
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
