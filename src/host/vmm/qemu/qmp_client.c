#include "host/vmm/qemu/qmp_client.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/saved.h"
#include "base/stream.h"
#include "base/waits.h"
#include "proto/qmp.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES 4096
#define UNSENT_MAX (1u << 20) /* QEMU does not read: later commands fail at once */

struct call {
    struct list node;
    uint64_t id;
    const char *name;
    bool answered;
    struct qmp_message reply;
    struct waitq q;
};

struct qmp_client {
    struct ctx ctx;
    struct cancel cancel;
    struct qmp_client_opts o;
    struct fibers fibers;
    struct list calls;
    struct qmp_reader reader; /* has half a message, at most, between two reads */
    uint64_t last_id;
    struct sbuf unsent;
    size_t sending; /* bytes the writer has taken */
    struct waitq to_send;
    int fd; /* to be sent in front of unsent[fd_at]; -1: none */
    size_t fd_at;
    uint64_t fd_call; /* the command with an fd that is not answered yet; 0: none */
    struct waitq fd_q;
    bool greeted;
    char version[64];
    struct waitq greeting;
    bool broken;
    struct err why; /* if broken */
};

static void fail_all(struct qmp_client *c, const struct err *why)
{
    if (c->broken)
        return;
    c->broken = true;
    c->why = *why;
    c->why.code = ERR_UNAVAILABLE;
    LIST_EACH (&c->calls, n)
        waitq_wake_all(&LIST_ENTRY(n, struct call, node)->q);
    waitq_wake_all(&c->greeting);
    waitq_wake_all(&c->fd_q);
    cancel_fire(&c->cancel, ERR_UNAVAILABLE, "qmp has ended"); /* the writer */
}

/* --- reading --- */

static void take_answer(struct qmp_client *c, struct qmp_message *m)
{
    if (m->has_id && c->fd_call && m->id == c->fd_call) {
        c->fd_call = 0;
        waitq_wake_all(&c->fd_q);
    }
    LIST_FOR (struct call, call, &c->calls, node) {
        if (!m->has_id || call->id != m->id)
            continue;
        call->answered = true;
        call->reply = *m;
        *m = (struct qmp_message){ 0 };
        list_remove(&call->node); /* a second answer matches no call */
        waitq_wake_all(&call->q);
        return;
    }
    /* Its caller's time was over, or QEMU could not read what we sent. */
    log_debug(&c->ctx, "qmp: unexpected reply", F_U("id", m->id), F_BOOL("has-id", m->has_id),
              F_STR(LK_ERROR, m->error_desc ? m->error_desc : ""));
}

static void take_message(struct qmp_client *c, struct qmp_message *m)
{
    switch (m->kind) {
    case QMP_GREETING:
        snprintf(c->version, sizeof(c->version), "%u.%u.%u", m->major, m->minor, m->micro);
        c->greeted = true;
        waitq_wake_all(&c->greeting);
        break;
    case QMP_EVENT:
        log_debug(&c->ctx, "qmp event", F_STR("event", m->event));
        if (c->o.on_event)
            c->o.on_event(c->o.arg, m);
        break;
    case QMP_RETURN:
    case QMP_ERROR:
        take_answer(c, m);
        break;
    case QMP_KIND_COUNT:
        break;
    }
}

static int read_some(struct qmp_client *c, char *buf, struct err *err)
{
    struct qmp_reader *r = &c->reader;
    size_t n;
    bool have = true;

    if (stream_read(&c->ctx, c->o.stream, buf, READ_BYTES, &n, err) < 0)
        return -1;
    if (n == 0)
        return err_because(err, REASON_QEMU_GONE, ERR_UNAVAILABLE,
                           qmp_reader_at_boundary(r) ? "qemu closed its monitor"
                                                     : "qemu closed its monitor in a message");
    if (qmp_reader_feed(r, buf, n, err) < 0)
        return -1;
    while (have) {
        AUTO(qmp_message_release) struct qmp_message m = { 0 };
        if (qmp_reader_next(r, &have, &m, err) < 0) {
            m = (struct qmp_message){ 0 };
            return -1;
        }
        if (have)
            take_message(c, &m);
    }
    return 0;
}

static void read_loop(void *arg)
{
    struct qmp_client *c = arg;
    AUTO_FREE char *buf = mem_alloc(READ_BYTES);
    struct err err = ERR_INIT;

    while (!c->broken && read_some(c, buf, &err) == 0)
        ;
    err_wrap(&err, "qmp");
    fail_all(c, &err);
}

/* --- writing --- */

/* The descriptor travels with a blank, which QEMU skips: so the command behind it may be written
 * in any number of pieces. */
static int write_fd(struct qmp_client *c, struct err *err)
{
    AUTO_FD_LATER int fd = TAKE_FD(c->fd); /* a client's image */
    int r;

    while ((r = fd_send(c->o.stream->fd, fd)) == -EAGAIN) {
        /* The stream has its own place in epoll. */
        AUTO_FD int again = fcntl(c->o.stream->fd, F_DUPFD_CLOEXEC, 3);

        if (again < 0)
            return err_sys(err, errno, "send a file descriptor");
        if (loop_wait_fd(&c->ctx, again, POLLOUT, "qmp: room for a file descriptor", err) < 0)
            return -1;
    }
    return r < 0 ? err_sys(err, -r, "send a file descriptor") : 0;
}

static void write_loop(void *arg)
{
    struct qmp_client *c = arg;
    struct err err = ERR_INIT;
    int r = 0;

    while (r == 0 && !c->broken) {
        if (c->unsent.len == 0) {
            r = waitq_wait(&c->ctx, &c->to_send, WAIT_QMP_COMMANDS, &err);
            continue;
        }
        if (c->fd >= 0 && c->fd_at == 0) {
            r = write_fd(c, &err);
            continue;
        }
        /* Taken out: callers go on adding while this is on its way. */
        c->sending = c->fd >= 0 ? c->fd_at : c->unsent.len;
        AUTO_FREE char *text = NULL;
        if (c->fd >= 0) {
            text = mem_dup(c->unsent.data, c->sending);
            sbuf_consume(&c->unsent, c->sending);
            c->fd_at = 0;
        } else {
            text = sbuf_take(&c->unsent);
        }
        r = stream_write_full(&c->ctx, c->o.stream, text, c->sending, &err);
        c->sending = 0;
    }
    /* When QEMU has gone, the reader still gets what it said last, then the end, which fails the
     * calls. Of another failure QEMU knows nothing, so the calls would wait without limit. */
    if (r < 0 && err.sys != EPIPE && err.sys != ECONNRESET) {
        err_wrap(&err, "qmp");
        fail_all(c, &err);
    }
}

/* --- calls --- */

static int check_usable(const struct qmp_client *c, const char *name, struct err *err)
{
    if (!c->broken)
        return 0;
    *err = c->why;
    return err_wrap(err, "%s", name);
}

int qmp_client_connect(struct ctx *ctx, struct qmp_client *c, char ret[64], struct err *err)
{
    while (!c->greeted) {
        if (check_usable(c, "greeting", err) < 0)
            return -1;
        if (waitq_wait(ctx, &c->greeting, "qmp: greeting", err) < 0)
            return err_wrap_because(err, REASON_QEMU_SILENT, "qemu did not greet on its monitor");
    }
    memcpy(ret, c->version, sizeof(c->version));
    return qmp_client_call(ctx, c, "qmp_capabilities", NULL, NULL, err);
}

/* Copies fd when the one before it was answered. */
static int take_turn(struct ctx *ctx, struct qmp_client *c, const char *name, int fd, int *ret,
                     struct err *err)
{
    if (c->o.stream->fd < 0)
        return err_set(err, ERR_UNIMPLEMENTED, "qmp %s: this monitor is not a socket", name);
    while (c->fd_call && !c->broken)
        if (waitq_wait(ctx, &c->fd_q, "qmp: the descriptor before this one", err) < 0)
            return err_wrap(err, "qmp %s", name);
    *ret = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return *ret < 0 ? err_sys(err, errno, "qmp %s: file descriptor %d", name, fd) : 0;
}

int qmp_client_call_fd(struct ctx *ctx, struct qmp_client *c, const char *name, int fd,
                       json_t *args, struct qmp_message *ret, struct err *err)
{
    AUTO(json_decref) json_t *taken = args;
    AUTO_FD_LATER int copy = -1;

    if (fd >= 0 && take_turn(ctx, c, name, fd, &copy, err) < 0)
        return -1;
    struct call call = { .id = ++c->last_id, .name = name };
    int r = check_usable(c, name, err);
    if (r < 0)
        return -1;
    if (c->unsent.len + c->sending > UNSENT_MAX)
        return err_set(err, ERR_EXHAUSTED, "%s: qemu does not read its monitor", name);
    waitq_init(&call.q);
    list_append(&c->calls, &call.node);
    if (copy >= 0) {
        c->fd = TAKE_FD(copy);
        c->fd_at = c->unsent.len;
        c->fd_call = call.id;
    }
    qmp_command(name, taken, call.id, &c->unsent);
    waitq_wake_all(&c->to_send);
    while (r == 0 && !call.answered && !c->broken)
        r = waitq_wait(ctx, &call.q, name, err);
    list_remove(&call.node);
    if (!call.answered)
        return r < 0 ? err_wrap(err, "qmp %s", name) : check_usable(c, name, err);
    r = qmp_message_check(&call.reply, name, err);
    if (r == 0 && ret)
        *ret = call.reply;
    else
        qmp_message_release(&call.reply);
    return r;
}

int qmp_client_call(struct ctx *ctx, struct qmp_client *c, const char *name, json_t *args,
                    struct qmp_message *ret, struct err *err)
{
    return qmp_client_call_fd(ctx, c, name, -1, args, ret, err);
}

/* --- life --- */

static struct qmp_client *make(const struct qmp_client_opts *opts)
{
    struct qmp_client *c = mem_new(struct qmp_client);

    cancel_init(&c->cancel, NULL);
    c->ctx = ctx_with_cancel(opts->life, &c->cancel);
    c->o = *opts;
    c->fd = -1;
    waitq_init(&c->fd_q);
    list_init(&c->calls);
    waitq_init(&c->to_send);
    waitq_init(&c->greeting);
    fibers_init(&c->fibers);
    qmp_reader_init(&c->reader, QMP_MAX_MESSAGE);
    return c;
}

static void run(struct qmp_client *c)
{
    fibers_go(&c->fibers, c->ctx.loop, read_loop, c, FIBER_QMP_READ);
    fibers_go(&c->fibers, c->ctx.loop, write_loop, c, FIBER_QMP_WRITE);
}

struct qmp_client *qmp_client_new(const struct qmp_client_opts *opts)
{
    struct qmp_client *c = make(opts);

    run(c);
    return c;
}

static void check_idle(const struct qmp_client *c, struct saved *s)
{
    if (c->broken)
        saved_fail(s, "QEMU's monitor: %s", c->why.msg);
    else if (!c->greeted || !list_empty(&c->calls) || c->unsent.len > 0 || c->sending > 0)
        saved_fail(s, "a command to QEMU is under way");
}

/* Not saved: QEMU's version, which the caller has from connect, and commands whose callers gave up.
 * QEMU has these; their answers are dropped. */
void qmp_client_saved(struct saved *s, uint32_t field, const struct qmp_client_opts *opts,
                      struct qmp_client **client)
{
    bool reads = saved_reads(s);
    struct qmp_client *c = reads ? NULL : *client;
    AUTO(sbuf_release) struct sbuf half = { 0 };
    struct err err = ERR_INIT;

    if (!saved_open(s, field))
        return;
    if (reads) {
        *client = c = make(opts);
        c->greeted = true;
    } else {
        check_idle(c, s);
        sbuf_add(&half, c->reader.buf.data, c->reader.buf.len);
    }
    saved_stream(s, 1, "QEMU's monitor", c->ctx.loop, &c->o.stream);
    saved_u64(s, 2, &c->last_id);
    saved_u64(s, 3, &c->fd_call); /* QEMU keeps one descriptor: the next waits for this answer */
    saved_sbuf(s, 4, &half);
    saved_close(s);
    if (!reads)
        return;
    if (half.len > 0 && qmp_reader_feed(&c->reader, half.data, half.len, &err) < 0)
        saved_fail(s, "QEMU's monitor: %s", err.msg);
    if (!c->o.stream)
        saved_fail(s, "QEMU's monitor is missing");
    if (saved_check(s, &err) == 0)
        run(c);
}

void qmp_client_close(struct qmp_client *c, const char *why)
{
    struct err err = ERR_INIT;

    if (!c)
        return;
    err_set(&err, ERR_UNAVAILABLE, "%s", why);
    fail_all(c, &err);
}

int qmp_client_join(struct ctx *ctx, struct qmp_client *c, struct err *err)
{
    return fibers_wait(ctx, &c->fibers, "qmp's fibers", err);
}

void qmp_client_free(struct qmp_client *c)
{
    if (!c)
        return;
    stream_free(c->o.stream);
    qmp_reader_release(&c->reader);
    sbuf_release(&c->unsent);
    fd_close_later(c->fd);
    cancel_release(&c->cancel);
    free(c);
}
