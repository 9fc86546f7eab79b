/* A link that is saved, and read into another object on another loop: what was connected stays,
 * what was open can be dialled, what was used is not used again. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/stream.h"
#define SAVED_TWO_PROGRAMS
#include "fixture/handover_fixture.h"
#include "host/vmm/qemu/qlink_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define USED 0x40000000u /* ports */
#define OPEN 0x40000001u
#define MORE 0x40000002u

static const uint8_t token[LINK_TOKEN_BYTES] = "this is the token of this link.";

struct world {
    struct ctx life[2];
    struct qlink *l[2];
    struct stream *guest; /* what was connected before; the host's end is in saved state, too */
    struct stream *host;
    struct saved *writer;
    void (*before)(struct ctx *ctx, struct world *w);
    int checked;
    struct err err;
    uint32_t dialled;
};

/* --- a guest that dials from inside the namespace --- */

struct visit {
    int netns, fd;
};

static int visit_in_thread(void *arg, struct err *err)
{
    struct visit *v = arg;
    struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(LINK_TCP_PORT) };

    inet_pton(AF_INET, LINK_HOST_ADDR, &to.sin_addr);
    if (setns(v->netns, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "setns");
    v->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (v->fd < 0 || ioctl(v->fd, SIOCSIFFLAGS, &lo) < 0 ||
        connect(v->fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        return err_sys(err, errno, "connect");
    return 0;
}

static struct stream *dial_silent(struct ctx *ctx, struct qlink *l)
{
    struct visit v = { ioctl(l->listener, SIOCGSKNS), -1 };
    struct err err = ERR_INIT;

    ASSERT(v.netns >= 0);
    ASSERT_OK(OFFLOAD(ctx, visit_in_thread, &v, 0, NULL, "dial", &err), err);
    fd_close(v.netns);
    return stream_from_fd(ctx->loop, v.fd);
}

static struct stream *dial(struct ctx *ctx, struct qlink *l, uint32_t port)
{
    struct stream *s = dial_silent(ctx, l);
    struct link_preface p = { .port = port };
    uint8_t raw[LINK_PREFACE_BYTES];
    struct err err = ERR_INIT;

    memcpy(p.token, token, sizeof(token));
    link_preface_encode(&p, raw);
    ASSERT_OK(stream_write_full(ctx, s, raw, sizeof(raw), &err), err);
    return s;
}

static struct vmm_listener *open_port(struct qlink *l, uint32_t port)
{
    struct vmm_listener *v = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(qlink_listen(l, port, &v, &err), err);
    return v;
}

static struct stream *connect_port(struct ctx *ctx, struct qlink *l, uint32_t port,
                                   struct stream **ret_guest)
{
    struct vmm_listener *v = open_port(l, port);
    struct stream *host = NULL;
    struct err err = ERR_INIT;

    *ret_guest = dial(ctx, l, port);
    ASSERT_OK(qlink_accept(ctx, v, &host, &err), err);
    return host;
}

static void exchange(struct ctx *ctx, struct stream *from, struct stream *to)
{
    struct err err = ERR_INIT;
    char buf[4];

    ASSERT_OK(stream_write_full(ctx, from, "ping", 4, &err), err);
    ASSERT_OK(stream_read_full(ctx, to, buf, 4, &err), err);
    ASSERT(memcmp(buf, "ping", 4) == 0);
}

/* --- the two programs --- */

static void on_dial(void *arg, uint32_t port)
{
    ((struct world *)arg)->dialled = port;
}

static struct qlink_opts opts(struct world *w, struct ctx *ctx, unsigned which)
{
    w->life[which] = ctx_root(ctx->loop);
    return (
        struct qlink_opts){ .life = &w->life[which], .token = token, .on_dial = on_dial, .arg = w };
}

static void first_half(struct ctx *ctx, void *arg)
{
    struct world *w = arg;
    const struct qlink_opts o = opts(w, ctx, 0);
    struct err err = ERR_INIT;

    ASSERT_OK(qlink_new(ctx, &o, &w->l[0], &err), err);
    w->host = connect_port(ctx, w->l[0], USED, &w->guest);
    (void)open_port(w->l[0], OPEN);
    w->l[0]->cid = 77;
    w->l[0]->port = 78;
    w->l[0]->dials.full_at_ns = 79;
    qlink_started(w->l[0]); /* the tap is QEMU's now */
    if (w->before)
        w->before(ctx, w);
    w->writer = saved_writer();
    qlink_saved(w->writer, 1, NULL, &w->l[0]);
    saved_stream(w->writer, 2, "host", ctx->loop, &w->host);
    saved_stream(w->writer, 3, "guest", ctx->loop, &w->guest);
    w->checked = saved_check(w->writer, &w->err);
}

static void begin(struct world *w, void (*before)(struct ctx *ctx, struct world *w))
{
    if (geteuid() != 0)
        tap_skip("a network namespace needs root");
    if (access("/dev/net/tun", R_OK | W_OK) < 0)
        tap_skip("no /dev/net/tun here");
    *w = (struct world){ .before = before };
    saved_first_half(false, first_half, w);
}

static void replace(struct ctx *ctx, struct world *w,
                    void (*before)(struct ctx *ctx, struct world *w))
{
    struct err err = ERR_INIT;

    begin(w, before);
    ASSERT_OK(w->checked, w->err);
    const struct qlink_opts o = opts(w, ctx, 1);
    AUTO(saved_free) struct saved *reader = saved_fixture_read(w->writer);
    saved_hand_over(reader, NULL); /* these have descriptors */
    qlink_saved(reader, 1, &o, &w->l[1]);
    saved_stream(reader, 2, "host", ctx->loop, &w->host);
    saved_stream(reader, 3, "guest", ctx->loop, &w->guest);
    ASSERT_OK(saved_check(reader, &err), err);
}

static void finish(struct ctx *ctx, struct world *w)
{
    struct err err = ERR_INIT;

    stream_free(w->host);
    stream_free(w->guest);
    qlink_close(w->l[1], "the test is over");
    ASSERT_OK(qlink_join(ctx, w->l[1], &err), err);
    qlink_free(w->l[1]);
    saved_free(w->writer);
}

TEST_FIBER(connections_stay_and_new_ones_come)
{
    struct world w;
    struct stream *guest, *host;

    replace(ctx, &w, NULL);
    exchange(ctx, w.guest, w.host);
    exchange(ctx, w.host, w.guest);
    host = connect_port(ctx, w.l[1], MORE, &guest);
    ASSERT_EQ(w.dialled, MORE);
    exchange(ctx, guest, host);
    stream_free(guest);
    stream_free(host);
    finish(ctx, &w);
}

TEST_FIBER(a_port_that_was_not_dialled_is_opened_again_once_and_a_used_one_never)
{
    struct world w;
    struct stream *guest, *host;
    struct vmm_listener *v = NULL;
    struct err err = ERR_INIT;

    replace(ctx, &w, NULL);
    ASSERT_FAIL(qlink_listen(w.l[1], USED, &v, &err), err, ERR_EXISTS);
    host = connect_port(ctx, w.l[1], OPEN, &guest);
    ASSERT_FAIL(qlink_listen(w.l[1], OPEN, &v, &err), err, ERR_EXISTS);
    stream_free(guest);
    stream_free(host);
    finish(ctx, &w);
}

TEST_FIBER(its_end_ends_connections_from_before)
{
    struct world w;
    struct err err = ERR_INIT;
    char byte;
    size_t n = 1;

    replace(ctx, &w, NULL);
    qlink_close(w.l[1], "the VM has ended");
    ASSERT_OK(stream_read(ctx, w.host, &byte, 1, &n, &err), err);
    ASSERT_EQ(n, 0);
    finish(ctx, &w);
}

TEST_FIBER(all_of_it_is_read)
{
    struct world w;

    replace(ctx, &w, NULL);
    ASSERT_EQ(w.l[1]->device, -1);
    ASSERT_EQ(w.l[1]->cid, 77);
    ASSERT_EQ(w.l[1]->port, 78);
    ASSERT_EQ(w.l[1]->dials.full_at_ns, 79);
    ASSERT(!w.l[1]->o.vsock);
    ASSERT_EQ(w.l[1]->n_used, 1);
    ASSERT_EQ(w.l[1]->used[0].first, USED);
    ASSERT_EQ(w.l[1]->used[0].last, OPEN);
    finish(ctx, &w);
}

static void by_vsock(struct ctx *ctx, struct world *w)
{
    (void)ctx;
    w->l[0]->o.vsock = true;
    w->l[0]->device = open("/dev/null", O_RDWR | O_CLOEXEC); /* in place of the vsock device */
}

TEST_FIBER(the_device_of_a_link_by_vsock_stays_open)
{
    struct world w;

    replace(ctx, &w, by_vsock);
    ASSERT(w.l[1]->o.vsock);
    ASSERT(w.l[0]->device >= 0);
    ASSERT_EQ(w.l[1]->device, w.l[0]->device);
    finish(ctx, &w);
}

static void dial_and_be_silent(struct ctx *ctx, struct world *w)
{
    (void)dial_silent(ctx, w->l[0]);
    while (w->l[0]->unsaid == 0)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &w->err), w->err);
}

static void dial_and_wait(struct ctx *ctx, struct world *w)
{
    (void)dial(ctx, w->l[0], OPEN);
    while (w->dialled != OPEN)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &w->err), w->err);
}

static void end_it(struct ctx *ctx, struct world *w)
{
    (void)ctx;
    qlink_close(w->l[0], "the VM has ended");
}

TEST_FIBER(a_connection_that_is_being_opened_is_not_saved)
{
    struct world w;

    begin(&w, dial_and_be_silent);
    ASSERT_EQ(w.checked, -1);
    ASSERT_EQ(w.err.reason, REASON_SAVED_STATE);
    ASSERT_MSG_HAS(w.err.msg, "the guest is opening a connection");
    begin(&w, dial_and_wait);
    ASSERT_EQ(w.checked, -1);
    ASSERT_EQ(w.err.reason, REASON_SAVED_STATE);
    ASSERT_MSG_HAS(w.err.msg, "is being opened");
    begin(&w, end_it);
    ASSERT_EQ(w.checked, -1);
    ASSERT_HAS(w.err.msg, "the VM has ended");
}
