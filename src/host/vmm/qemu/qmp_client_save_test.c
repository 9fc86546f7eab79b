/* A client of QEMU's monitor is saved while QEMU has not answered all, and read on another loop. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/saved.h"
#include "base/stream.h"
#include "host/vmm/qemu/qmp_client.h"
#define SAVED_TWO_PROGRAMS
#include "fixture/handover_fixture.h"
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct world {
    int peer; /* QEMU's end */
    struct stream *ours;
    struct ctx life[2];
    struct saved *writer;
    struct qmp_client *c;
    int result;
    bool done;
};

static void on_event(void *arg, const struct qmp_message *event)
{
    (void)arg, (void)event;
}

static struct qmp_client_opts opts(struct world *w, struct ctx *ctx, unsigned which)
{
    w->life[which] = ctx_root(ctx->loop);
    return (struct qmp_client_opts){ .life = &w->life[which], .on_event = on_event, .arg = w };
}

/* What QEMU has got. "": nothing. */
static const char *got(struct ctx *ctx, struct world *w, uint64_t wait_ns)
{
    static char text[512];
    struct err err = ERR_INIT;
    size_t n = 0;

    ASSERT_OK(fiber_sleep(ctx, wait_ns, &err), err);
    for (ssize_t r; (r = recv(w->peer, text + n, sizeof(text) - 1 - n, MSG_DONTWAIT)) > 0;)
        n += (size_t)r;
    text[n] = '\0';
    return text;
}

static void answer(struct world *w, const char *text)
{
    ASSERT_EQ(send(w->peer, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void first_half(struct ctx *ctx, void *arg)
{
    struct world *w = arg;
    struct ctx limited = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct qmp_client_opts o = opts(w, ctx, 0);
    struct err err = ERR_INIT;
    int ends[2];

    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    w->peer = ends[1];
    o.stream = stream_from_fd(ctx->loop, ends[0]);
    w->c = qmp_client_new(&o);
    answer(w, "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 1, \"minor\": 0, \"major\": 10}, "
              "\"package\": \"\"}, \"capabilities\": []}}\r\n");
    ASSERT_FAIL(qmp_client_call_fd(&limited, w->c, "getfd", 0, NULL, NULL, &err), err,
                ERR_DEADLINE);
    ASSERT_HAS(got(ctx, w, NS_PER_MS), "\"id\":1");
    w->writer = saved_writer();
    qmp_client_saved(w->writer, 1, NULL, &w->c);
}

static void call_main(void *arg)
{
    struct world *w = arg;
    struct ctx limited = ctx_with_timeout(&w->life[1], 60 * NS_PER_S);
    struct err err = ERR_INIT;

    w->result = qmp_client_call_fd(&limited, w->c, "getfd", 0, NULL, NULL, &err);
    w->done = true;
}

TEST_FIBER(a_descriptor_waits_for_the_answer_to_the_one_before_and_ids_are_counted_on)
{
    struct world w = { .result = -1 };
    struct fibers fibers;
    struct err err = ERR_INIT;

    saved_first_half(false, first_half, &w);

    const struct qmp_client_opts o = opts(&w, ctx, 1);
    AUTO(saved_free) struct saved *reader = saved_fixture_read(w.writer);

    saved_hand_over(reader, NULL);
    qmp_client_saved(reader, 1, &o, &w.c);
    ASSERT_OK(saved_check(reader, &err), err);
    fibers_init(&fibers);
    fibers_go(&fibers, ctx->loop, call_main, &w, "call");
    ASSERT_STR(got(ctx, &w, 50 * NS_PER_MS), "");
    answer(&w, "{\"return\": {}, \"id\": 1}\r\n");
    ASSERT_HAS(got(ctx, &w, 50 * NS_PER_MS), "\"id\":2");
    answer(&w, "{\"return\": {}, \"id\": 2}\r\n");
    ASSERT_OK(fibers_wait(ctx, &fibers, "the call", &err), err);
    ASSERT_EQ(w.result, 0);
    qmp_client_close(w.c, "the test is over");
    ASSERT_OK(qmp_client_join(ctx, w.c, &err), err);
    qmp_client_free(w.c);
    saved_free(w.writer);
    close(w.peer);
}
