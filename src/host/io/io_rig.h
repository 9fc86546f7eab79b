/* io_rig.h - for tests of io: a directory with FIFOs, and socket pairs as the guest's streams. */
#pragma once
#include "base/child.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/stream.h"
#include "harness/place.h"
#include "harness/tap.h"
#include "host/io/io.h"
#include "host/io/io_priv.h"
#include "host/own/ledger.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#define RIG_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RIG_ASAN 1
#endif
#endif

struct rig {
    struct ctx *ctx;
    struct place place;
    struct io_spec spec;
    char *paths[3];
    struct io *io;
    struct stream *guest[3]; /* the far ends of the guest's streams */
    unsigned fds;            /* open before */
};

static inline unsigned rig_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static inline void rig_init(struct rig *r, struct ctx *ctx)
{
    static const char *const names[] = { "in", "out", "err" };

    memset(r, 0, sizeof(*r));
    r->ctx = ctx;
    r->fds = rig_fds();
    place_init(&r->place, "/tmp");
    for (int i = 0; i < 3; i++)
        r->paths[i] = str_dup(place_path(&r->place, names[i]));
    r->spec = (struct io_spec){ .container_id = "c1", .ns = "test" };
}

static inline void rig_release_auto(struct rig *r)
{
    io_free(TAKE_PTR(r->io));
    for (int i = 0; i < 3; i++) {
        stream_free(TAKE_PTR(r->guest[i]));
        free(r->paths[i]);
    }
    place_release_auto(&r->place);
    /* Fibers and threads let go of their descriptors a little later. */
    for (int i = 0; i < 20000 && rig_fds() > r->fds; i++)
        (void)fiber_sleep(r->ctx, NS_PER_MS, &(struct err)ERR_INIT);
    ASSERT_EQ(rig_fds(), r->fds);
}
#define RIG(r)                                                                                     \
    AUTO(rig_release) struct rig r;                                                                \
    rig_init(&r, ctx)

/* FIFOs where the mask says so: 1 stdin, 2 stdout, 4 stderr. */
static inline void rig_fifos(struct rig *r, unsigned mask)
{
    const char **const texts[] = { &r->spec.in, &r->spec.out, &r->spec.err };

    for (int i = 0; i < 3; i++)
        if (mask >> i & 1) {
            ASSERT_EQ(mkfifo(r->paths[i], 0600), 0);
            *texts[i] = r->paths[i];
        }
}

static inline void rig_open(struct rig *r)
{
    struct err err = ERR_INIT;

    ASSERT_OK(io_open(r->ctx, r->ctx->loop, &r->spec, &r->io, &err), err);
}

static inline void rig_attach(struct rig *r)
{
    struct stream *ours[3] = { NULL };
    int fds[2];

    for (int i = 0; i < 3; i++)
        if (io_wants(r->io, i)) {
            ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
            ours[i] = stream_from_fd(r->ctx->loop, fds[0]);
            r->guest[i] = stream_from_fd(r->ctx->loop, fds[1]);
        }
    io_attach(r->io, ours[0], ours[1], ours[2]);
}

/* The client's end of a FIFO. */
static inline struct stream *rig_client(struct rig *r, int which)
{
    int fd = open(r->paths[which], (which == 0 ? O_WRONLY : O_RDONLY) | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        tap_fail(__FILE__, __LINE__, "open %s: %m", r->paths[which]);
    return stream_from_fd(r->ctx->loop, fd);
}

static inline void rig_put(struct rig *r, struct stream *s, const char *text)
{
    struct err err = ERR_INIT;

    ASSERT_OK(stream_write_full(r->ctx, s, text, strlen(text), &err), err);
}

/* The next strlen(text) bytes are these. */
static inline void rig_get(struct rig *r, struct stream *s, const char *text)
{
    struct err err = ERR_INIT;
    AUTO_FREE char *buf = mem_zalloc(strlen(text) + 1);

    ASSERT_OK(stream_read_full(r->ctx, s, buf, strlen(text), &err), err);
    ASSERT_STR(buf, text);
}

static inline void rig_get_end(struct rig *r, struct stream *s)
{
    struct err err = ERR_INIT;
    size_t n;
    char c;

    ASSERT_OK(stream_read(r->ctx, s, &c, 1, &n, &err), err);
    ASSERT_EQ(n, 0);
}

/* Nothing comes for a moment, not even the end. */
static inline void rig_get_nothing(struct rig *r, struct stream *s)
{
    struct ctx brief = ctx_with_timeout(r->ctx, 30 * NS_PER_MS);
    struct err err = ERR_INIT;
    size_t n;
    char c;

    ASSERT_FAIL(stream_read(&brief, s, &c, 1, &n, &err), err, ERR_DEADLINE);
}

/* --- many bytes: each tells its place --- */

static inline void rig_fill(char *buf, size_t len, uint64_t at)
{
    for (size_t i = 0; i < len; i++, at++)
        buf[i] = (char)((at * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

struct rig_writer {
    struct rig *rig;
    struct stream *to; /* closed at the end */
    uint64_t bytes, written;
    bool done;
};

static inline void rig_write_main(void *arg)
{
    struct rig_writer *w = arg;
    struct ctx root = ctx_root(w->rig->ctx->loop), ctx = ctx_with_timeout(&root, 60 * NS_PER_S);
    struct err err = ERR_INIT;
    char buf[8192];

    while (w->written < w->bytes) {
        size_t n = w->bytes - w->written < sizeof(buf) ? w->bytes - w->written : sizeof(buf);

        rig_fill(buf, n, w->written);
        if (stream_write(&ctx, w->to, buf, n, &n, &err) < 0)
            break; /* the reader was cut; w->written tells how far we came */
        w->written += n;
    }
    stream_free(TAKE_PTR(w->to));
    w->done = true;
}

static inline void rig_write(struct rig *r, struct rig_writer *w, struct stream **to,
                             uint64_t bytes)
{
    *w = (struct rig_writer){ .rig = r, .to = TAKE_PTR(*to), .bytes = bytes };
    fiber_go(r->ctx->loop, rig_write_main, w, "test writer");
}

/* Reads from..to and compares. */
static inline void rig_expect(struct rig *r, struct stream *s, uint64_t from, uint64_t to)
{
    struct ctx root = ctx_root(r->ctx->loop), ctx = ctx_with_timeout(&root, 60 * NS_PER_S);
    struct err err = ERR_INIT;
    char got[8192], want[8192];

    for (size_t n; from < to; from += n) {
        n = to - from < sizeof(got) ? to - from : sizeof(got);
        ASSERT_OK(stream_read(&ctx, s, got, n, &n, &err), err);
        if (n == 0)
            tap_fail(__FILE__, __LINE__, "the end after %llu of %llu bytes",
                     (unsigned long long)from, (unsigned long long)to);
        rig_fill(want, n, from);
        ASSERT_EQ(memcmp(got, want, n), 0);
    }
}

/* A file that holds the bytes from..to, then ends. */
static inline void rig_expect_file(struct rig *r, const char *path, uint64_t bytes)
{
    AUTO(stream_free)
    struct stream *s = stream_from_fd(r->ctx->loop, open(path, O_RDONLY | O_CLOEXEC));

    rig_expect(r, s, 0, bytes);
    rig_get_end(r, s);
}

/* Nothing moves any more: back-pressure has reached the writer. */
static inline void rig_await_stuck(struct rig *r, struct rig_writer *w)
{
    for (uint64_t last = UINT64_MAX; last != w->written;) {
        last = w->written;
        (void)fiber_sleep(r->ctx, 30 * NS_PER_MS, &(struct err)ERR_INIT);
    }
    ASSERT(!w->done);
}

static inline size_t rig_rss_kib(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    ASSERT(f && fscanf(f, "%*u %lu", &pages) == 1);
    fclose(f);
    return pages * 4;
}
