#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/str.h"
#include "base/stream.h"
#include "harness/tap.h"
#include "host/vmm/qemu/qlink.h"
#include "proto/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/vhost.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t token[LINK_TOKEN_BYTES] = "this is the token of this link.";

/* --- a guest that dials from inside the namespace --- */

struct visit {
    int netns;
    int fd; /* connected */
    unsigned more;
    char interfaces[64], retries[16], forward[16];
};

static void visit_free(void *arg)
{
    struct visit *v = arg;

    fd_close(v->fd);
    fd_close(v->netns);
    free(v);
}

static void read_setting(const char *path, char *out, size_t size)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    if (file_read_all(path, 64, &text, &len) == 0)
        snprintf(out, size, "%.*s", (int)strcspn(text, "\n"), text);
}

/* In a thread: enters the namespace, where a test may also use lo, and dials. */
static int visit_in_thread(void *arg, struct err *err)
{
    struct visit *v = arg;
    struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(LINK_TCP_PORT) };

    if (setns(v->netns, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "setns");
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i && i->if_name; i++) {
        strcat(v->interfaces, i->if_name);
        strcat(v->interfaces, " ");
    }
    if_freenameindex(all);
    read_setting("/proc/sys/net/ipv4/tcp_retries2", v->retries, sizeof(v->retries));
    read_setting("/proc/sys/net/ipv4/ip_forward", v->forward, sizeof(v->forward));
    v->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (v->fd < 0 || ioctl(v->fd, SIOCSIFFLAGS, &lo) < 0)
        return err_sys(err, errno, "bring lo up");
    inet_pton(AF_INET, LINK_HOST_ADDR, &to.sin_addr);
    for (; v->more > 0; v->more--) { /* connections that are reset at once */
        AUTO_FD int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct linger at_once = { 1, 0 };

        if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0 ||
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) < 0)
            return err_sys(err, errno, "connect");
    }
    if (connect(v->fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        return err_sys(err, errno, "connect");
    return 0;
}

static struct visit *visit_often(struct ctx *ctx, struct qlink *l, unsigned more)
{
    struct visit *v = mem_new(struct visit);
    struct err err = ERR_INIT;

    v->more = more;
    v->fd = -1;
    v->netns = ioctl(qlink_device(l), TUNGETDEVNETNS, NULL);
    ASSERT(v->netns >= 0);
    ASSERT_OK(OFFLOAD(ctx, visit_in_thread, v, 0, NULL, "dial", &err), err);
    return v;
}

static struct visit *visit(struct ctx *ctx, struct qlink *l)
{
    return visit_often(ctx, l, 0);
}

static struct stream *dial_silent(struct ctx *ctx, struct qlink *l)
{
    struct visit *v = visit(ctx, l);
    struct stream *s = stream_from_fd(ctx->loop, TAKE_FD(v->fd));

    visit_free(v);
    return s;
}

static struct stream *dial(struct ctx *ctx, struct qlink *l, uint32_t port, uint8_t damage)
{
    struct stream *s = dial_silent(ctx, l);
    struct link_preface p = { .port = port };
    uint8_t raw[LINK_PREFACE_BYTES];
    struct err err = ERR_INIT;

    memcpy(p.token, token, sizeof(token));
    p.token[LINK_TOKEN_BYTES - 1] ^= damage;
    link_preface_encode(&p, raw);
    ASSERT_OK(stream_write_full(ctx, s, raw, sizeof(raw), &err), err);
    return s;
}

/* The other side closed it and sent nothing. */
static void assert_closed(struct ctx *ctx, struct stream *s)
{
    char byte;
    size_t n = 1;
    struct err err = ERR_INIT;

    int r = stream_read(ctx, s, &byte, 1, &n, &err);
    ASSERT(r == 0 ? n == 0 : err.code == ERR_UNAVAILABLE);
}

/* --- the host's side --- */

struct fixture {
    struct ctx life;
    struct qlink *l;
    uint32_t dialled;
};

static void on_dial(void *arg, uint32_t port)
{
    ((struct fixture *)arg)->dialled = port;
}

static void start(struct ctx *ctx, struct fixture *f, uint64_t preface_ns)
{
    struct err err = ERR_INIT;

    if (geteuid() != 0)
        tap_skip("a network namespace needs root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun here");
    *f = (struct fixture){ .life = ctx_root(ctx->loop) };
    ASSERT_OK(qlink_new(ctx,
                        &(struct qlink_opts){ .life = &f->life,
                                              .token = token,
                                              .preface_ns = preface_ns,
                                              .on_dial = on_dial,
                                              .arg = f },
                        &f->l, &err),
              err);
}

static void finish(struct ctx *ctx, struct fixture *f)
{
    struct err err = ERR_INIT;

    qlink_close(f->l, "the test is over");
    ASSERT_OK(qlink_join(ctx, f->l, &err), err);
    qlink_free(f->l);
}

static struct vmm_listener *open_port(struct fixture *f, uint32_t port)
{
    struct vmm_listener *v = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(qlink_listen(f->l, port, &v, &err), err);
    return v;
}

static struct stream *accept_port(struct ctx *ctx, struct vmm_listener *v)
{
    struct stream *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(qlink_accept(ctx, v, &s, &err), err);
    return s;
}

TEST_FIBER(the_namespace_holds_lo_and_the_tap_only)
{
    struct fixture f;

    start(ctx, &f, 0);
    struct visit *v = visit(ctx, f.l);
    ASSERT_STR(v->interfaces, "lo link0 ");
    ASSERT_STR(v->retries, "255");
    ASSERT_STR(v->forward, "0");
    visit_free(v);
    finish(ctx, &f);
}

TEST_FIBER(the_right_preface_becomes_a_stream)
{
    struct fixture f;
    struct err err = ERR_INIT;
    char buf[4];

    start(ctx, &f, 0);
    struct vmm_listener *v = open_port(&f, PORT_BRIDGE);
    AUTO(stream_free)
    struct stream *guest = dial(ctx, f.l, PORT_BRIDGE, 0), *host = accept_port(ctx, v);
    ASSERT_EQ(f.dialled, PORT_BRIDGE);
    ASSERT_OK(stream_write_full(ctx, guest, "ping", 4, &err), err);
    ASSERT_OK(stream_read_full(ctx, host, buf, 4, &err), err);
    ASSERT(memcmp(buf, "ping", 4) == 0);
    ASSERT_OK(stream_write_full(ctx, host, "pong", 4, &err), err);
    ASSERT_OK(stream_read_full(ctx, guest, buf, 4, &err), err);
    ASSERT(memcmp(buf, "pong", 4) == 0);
    finish(ctx, &f);
}

TEST_FIBER(a_wrong_token_or_port_or_rubbish_is_closed)
{
    struct fixture f;
    struct err err = ERR_INIT;
    char rubbish[LINK_PREFACE_BYTES] = "GET / HTTP/1.1\r\n";

    start(ctx, &f, 0);
    struct vmm_listener *v = open_port(&f, 7);
    AUTO(stream_free)
    struct stream *wrong_token = dial(ctx, f.l, 7, 1), *wrong_port = dial(ctx, f.l, 8, 0),
                  *other = dial_silent(ctx, f.l);
    ASSERT_OK(stream_write_full(ctx, other, rubbish, sizeof(rubbish), &err), err);
    assert_closed(ctx, wrong_token);
    assert_closed(ctx, wrong_port);
    assert_closed(ctx, other);
    ASSERT_EQ(f.dialled, 0);
    AUTO(stream_free) struct stream *right = dial(ctx, f.l, 7, 0), *host = accept_port(ctx, v);
    ASSERT(right && host);
    finish(ctx, &f);
}

TEST_FIBER(a_port_is_given_away_once_and_never_opened_again)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct vmm_listener *again;

    start(ctx, &f, 0);
    struct vmm_listener *v = open_port(&f, 7);
    AUTO(stream_free) struct stream *first = dial(ctx, f.l, 7, 0);
    while (first && f.dialled == 0)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    AUTO(stream_free) struct stream *second = dial(ctx, f.l, 7, 0);
    assert_closed(ctx, second);
    AUTO(stream_free) struct stream *host = accept_port(ctx, v);
    ASSERT(host);
    AUTO(stream_free) struct stream *third = dial(ctx, f.l, 7, 0);
    assert_closed(ctx, third);
    ASSERT_FAIL(qlink_listen(f.l, 7, &again, &err), err, ERR_EXISTS);
    for (uint32_t port = PORT_STDIO_FIRST; port < PORT_STDIO_FIRST + 1000; port++)
        qlink_unlisten(open_port(&f, port));
    qlink_unlisten(open_port(&f, PORT_BRIDGE));
    ASSERT_FAIL(qlink_listen(f.l, PORT_STDIO_FIRST + 500, &again, &err), err, ERR_EXISTS);
    ASSERT_FAIL(qlink_listen(f.l, PORT_BRIDGE, &again, &err), err, ERR_EXISTS);
    finish(ctx, &f);
}

TEST_FIBER(silent_connections_cannot_keep_others_out_for_long)
{
    struct fixture f;
    struct stream *silent[QLINK_UNSAID_MAX + 2];

    start(ctx, &f, 300 * NS_PER_MS);
    struct vmm_listener *v = open_port(&f, 7);
    for (size_t i = 0; i < ARRAY_LEN(silent); i++)
        silent[i] = dial_silent(ctx, f.l);
    AUTO(stream_free) struct stream *guest = dial(ctx, f.l, 7, 0), *host = accept_port(ctx, v);
    ASSERT(guest && host);
    for (size_t i = 0; i < ARRAY_LEN(silent); i++) {
        assert_closed(ctx, silent[i]);
        stream_free(silent[i]);
    }
    finish(ctx, &f);
}

/* Those that the kernel holds for us, and those without a preface, need no accept. */
TEST_FIBER(a_guest_that_connects_without_end_has_to_wait)
{
    unsigned held = 128 + QLINK_UNSAID_MAX + 1;
    uint64_t began = loop_now(ctx->loop);
    struct fixture f;

    start(ctx, &f, 300 * NS_PER_MS);
    visit_free(visit_often(ctx, f.l, QLINK_DIALS_BURST + held + 2 * QLINK_DIALS_PER_S));
    ASSERT(loop_now(ctx->loop) - began >= 2 * NS_PER_S);
    finish(ctx, &f);
}

TEST_FIBER(an_accept_ends_with_its_deadline_and_takes_the_listener)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct stream *s;
    struct ctx brief = ctx_with_timeout(ctx, 5 * NS_PER_MS);

    start(ctx, &f, 0);
    struct vmm_listener *v = open_port(&f, 7);
    ASSERT_FAIL(qlink_accept(&brief, v, &s, &err), err, ERR_DEADLINE);
    ASSERT_MSG_HAS(err.msg, "guest port 7");
    AUTO(stream_free) struct stream *late = dial(ctx, f.l, 7, 0);
    assert_closed(ctx, late);
    finish(ctx, &f);
}

struct waiting {
    struct fixture *f;
    struct ctx *ctx;
    struct vmm_listener *v;
    struct err err;
    int result;
};

static void wait_fiber(void *arg)
{
    struct waiting *w = arg;
    struct stream *s = NULL;

    w->result = qlink_accept(w->ctx, w->v, &s, &w->err);
    stream_free(s);
}

TEST_FIBER(close_wakes_waiters_and_ends_connections_after_what_has_arrived)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct waiting w = { .f = &f, .ctx = ctx };
    struct fibers g;
    char buf[8];
    size_t n;

    start(ctx, &f, 0);
    fibers_init(&g);
    struct vmm_listener *v = open_port(&f, 7), *orphan = open_port(&f, 9);
    w.v = open_port(&f, 8);
    fibers_go(&g, ctx->loop, wait_fiber, &w, "waiting");
    AUTO(stream_free) struct stream *guest = dial(ctx, f.l, 7, 0), *host = accept_port(ctx, v);
    ASSERT_OK(stream_write_full(ctx, guest, "last", 4, &err), err);
    ASSERT_OK(loop_wait_fd(ctx, host->fd, POLLIN, "the packet to cross lo", &err), err);
    qlink_close(f.l, "the VM has ended");
    ASSERT_OK(fibers_wait(ctx, &g, "waiter", &err), err);
    ASSERT_FAIL(w.result, w.err, ERR_UNAVAILABLE);
    ASSERT_HAS(w.err.msg, "the VM has ended");
    ASSERT_OK(stream_read_full(ctx, host, buf, 4, &err), err);
    ASSERT_OK(stream_read(ctx, host, buf, sizeof(buf), &n, &err), err);
    ASSERT_EQ(n, 0);
    finish(ctx, &f);
    struct stream *s;
    ASSERT_FAIL(qlink_accept(ctx, orphan, &s, &err), err, ERR_UNAVAILABLE);
}

/* QEMU gets it, and has the capability to change the mode of any file it can name. */
TEST_FIBER(the_host_s_tun_device_cannot_be_changed_through_the_tap)
{
    struct fixture f;
    struct stat st;

    start(ctx, &f, 0);
    ASSERT_EQ(fstat(qlink_device(f.l), &st), 0);
    int r = fchmod(qlink_device(f.l), st.st_mode & 07777), why = errno;
    finish(ctx, &f);
    ASSERT_EQ(r, -1);
    ASSERT_EQ(why, EROFS);
}

/* Heard in the very moment of the close: nobody would ever end that connection. */
TEST_FIBER(a_preface_that_comes_with_the_close_is_refused)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct waiting w = { .f = &f, .ctx = ctx };
    struct link_preface p = { .port = 7 };
    uint8_t raw[LINK_PREFACE_BYTES];
    struct fibers g;

    start(ctx, &f, 0);
    fibers_init(&g);
    w.v = open_port(&f, 7);
    fibers_go(&g, ctx->loop, wait_fiber, &w, "waiting");
    AUTO(stream_free) struct stream *guest = dial_silent(ctx, f.l);
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err); /* it is accepted and listened to */
    memcpy(p.token, token, sizeof(token));
    link_preface_encode(&p, raw);
    ASSERT_OK(stream_write_full(ctx, guest, raw, sizeof(raw), &err), err);
    fiber_yield(ctx->loop); /* its reader is woken, but we run first */
    qlink_close(f.l, "the VM has ended");
    ASSERT_OK(fibers_wait(ctx, &g, "waiter", &err), err);
    finish(ctx, &f);
    ASSERT_FAIL(w.result, w.err, ERR_UNAVAILABLE);
    ASSERT_EQ(f.dialled, 0);
}

/* --- vsock --- */

static void start_vsock(struct ctx *ctx, struct fixture *f)
{
    struct err err = ERR_INIT;

    *f = (struct fixture){ .life = ctx_root(ctx->loop) };
    ASSERT_OK(
        qlink_new(
            ctx,
            &(struct qlink_opts){
                .life = &f->life, .token = token, .vsock = true, .on_dial = on_dial, .arg = f },
            &f->l, &err),
        err);
}

TEST_FIBER(over_vsock_a_connection_from_another_cid_is_refused)
{
    struct sockaddr_vm to = { .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_LOCAL };
    struct fixture f;
    struct err err = ERR_INIT;
    uint8_t raw[LINK_PREFACE_BYTES];
    struct link_preface p = { .port = 7 };
    char byte;

    if (access("/sys/module/vsock_loopback", F_OK) < 0)
        tap_skip("no loopback for vsock: modprobe vsock_loopback");
    start_vsock(ctx, &f);
    struct vmm_listener *v = open_port(&f, 7);
    to.svm_port = qlink_port(f.l);
    ASSERT(to.svm_port != 0);
    AUTO_FD int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    memcpy(p.token, token, sizeof(token)); /* it knows even that */
    link_preface_encode(&p, raw);
    (void)send(fd, raw, sizeof(raw), MSG_NOSIGNAL); /* it may be refused already */
    ASSERT_OK(loop_wait_fd(ctx, fd, POLLIN, "the refusal", &err), err);
    ASSERT(recv(fd, &byte, 1, MSG_DONTWAIT) <= 0);
    ASSERT_EQ(f.dialled, 0);
    qlink_unlisten(v);
    finish(ctx, &f);
}

TEST_FIBER(over_vsock_each_vm_has_a_cid_and_a_port_of_its_own)
{
    struct fixture a, b;
    struct err err = ERR_INIT;

    if (access("/dev/vhost-vsock", R_OK | W_OK) < 0)
        tap_skip("no /dev/vhost-vsock here");
    start_vsock(ctx, &a);
    start_vsock(ctx, &b);
    ASSERT_OK(qlink_arm(ctx, a.l, &err), err);
    ASSERT_OK(qlink_arm(ctx, b.l, &err), err);
    uint64_t taken = qlink_cid(a.l);
    ASSERT(taken > 2 && qlink_cid(b.l) > 2 && qlink_cid(b.l) != taken);
    ASSERT(qlink_port(a.l) != qlink_port(b.l));
    ASSERT_EQ(ioctl(qlink_device(b.l), VHOST_VSOCK_SET_GUEST_CID, &taken), -1);
    ASSERT_EQ(errno, EADDRINUSE);
    finish(ctx, &a);
    finish(ctx, &b);
}

TEST_FIBER(without_vhost_vsock_the_link_names_the_module)
{
    struct fixture f;
    struct err err = ERR_INIT;

    if (access("/dev/vhost-vsock", F_OK) == 0)
        tap_skip("this host has /dev/vhost-vsock");
    AUTO_FD int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        tap_skip("no vsock sockets here");
    start_vsock(ctx, &f);
    ASSERT_FAIL(qlink_arm(ctx, f.l, &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_MODULE_MISSING);
    ASSERT_MSG_HAS(err.msg, "link = vsock");
    ASSERT_MSG_HAS(err.msg, "modprobe vhost_vsock");
    finish(ctx, &f);
}
