#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/slots.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct client {
    struct ctx *ctx;
    const char *path;
    struct turn *turn;
    unsigned *order, at; /* when it came to its turn */
    int ret;
    struct err err;
};

static void client_main(void *arg)
{
    struct client *c = arg;

    c->ret = turn_take(c->ctx, c->path, 2, &c->turn, &c->err);
    c->at = ++*c->order;
}

TEST_FIBER(two_turns_are_given_the_third_waits_for_one_of_them)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct turn *a = NULL, *b = NULL;
    struct err err = ERR_INIT;
    unsigned order = 0;
    struct client c = { .ctx = ctx, .path = path, .order = &order };
    struct fibers clients;

    ASSERT_OK(turn_take(ctx, path, 2, &a, &err), err);
    ASSERT_OK(turn_take(ctx, path, 2, &b, &err), err);
    fibers_init(&clients);
    fibers_go(&clients, ctx->loop, client_main, &c, "third");
    ASSERT_OK(fiber_sleep(ctx, 30 * NS_PER_MS, &err), err);
    ASSERT_EQ(c.at, 0);
    turn_give(a);
    ASSERT_OK(fibers_wait(ctx, &clients, "the third", &err), err);
    ASSERT_OK(c.ret, c.err);
    turn_give(b);
    turn_give(c.turn);
}

/* Each client releases its turn: all get one, and never more than two at the same time. */
TEST_FIBER(many_take_turns_and_all_get_one)
{
    enum { N = 12 };
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct client c[N];
    struct turn *first[2] = { NULL };
    struct err err = ERR_INIT;
    unsigned order = 0, given = 0;
    struct fibers clients;

    for (int i = 0; i < 2; i++)
        ASSERT_OK(turn_take(ctx, path, 2, &first[i], &err), err);
    fibers_init(&clients);
    for (int i = 0; i < N; i++) {
        c[i] = (struct client){ .ctx = ctx, .path = path, .order = &order };
        fibers_go(&clients, ctx->loop, client_main, &c[i], "client");
    }
    turn_give(first[0]);
    turn_give(first[1]);
    while (given < N) {
        unsigned have = 0;

        for (int i = 0; i < N; i++)
            have += c[i].turn != NULL;
        ASSERT(have <= 2);
        for (int i = 0; i < N; i++)
            if (c[i].turn) {
                turn_give(TAKE_PTR(c[i].turn));
                given++;
                break;
            }
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    }
    ASSERT_OK(fibers_wait(ctx, &clients, "all", &err), err);
    for (int i = 0; i < N; i++)
        ASSERT_OK(c[i].ret, c[i].err);
}

TEST_FIBER(a_client_that_gives_up_delays_no_other)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct ctx limited = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct turn *a = NULL, *b = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(turn_take(ctx, path, 1, &a, &err), err);
    ASSERT_FAIL(turn_take(&limited, path, 1, &b, &err), err, ERR_DEADLINE);
    ASSERT_MSG_HAS(err.msg, "turn");
    ASSERT_EQ(err.reason, REASON_START_QUEUE_FULL);
    err_clear(&err);
    turn_give(a);
    ASSERT_OK(turn_take(ctx, path, 1, &b, &err), err); /* its thread releases the lock by now */
    turn_give(b);
}

/* A free turn is found even if another turn is never released. */
TEST_FIBER(a_holder_that_hangs_keeps_only_its_own_turn)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct turn *hangs = NULL, *other = NULL;
    struct err err = ERR_INIT;
    unsigned order = 0;

    ASSERT_OK(turn_take(ctx, path, 2, &hangs, &err), err);
    ASSERT_OK(turn_take(ctx, path, 2, &other, &err), err);
    for (int i = 0; i < 3; i++) {
        struct client c = { .ctx = ctx, .path = path, .order = &order };
        struct fibers clients;

        fibers_init(&clients);
        fibers_go(&clients, ctx->loop, client_main, &c, "next");
        ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err);
        turn_give(other);
        ASSERT_OK(fibers_wait(ctx, &clients, "the next", &err), err);
        ASSERT_OK(c.ret, c.err);
        other = c.turn;
    }
    turn_give(other);
    turn_give(hangs);
}

/* No turn becomes free: each client waits until its own deadline, not until that of the clients
 * before it. */
TEST_FIBER(the_first_of_the_queue_that_gives_up_lets_the_next_look)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct ctx little = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct turn *hangs = NULL, *b = NULL;
    struct err err = ERR_INIT;
    unsigned order = 0;
    struct client first = { .ctx = &little, .path = path, .order = &order };
    struct client second = { .ctx = ctx, .path = path, .order = &order };
    struct fibers clients;

    ASSERT_OK(turn_take(ctx, path, 2, &hangs, &err), err);
    ASSERT_OK(turn_take(ctx, path, 2, &b, &err), err);
    fibers_init(&clients);
    fibers_go(&clients, ctx->loop, client_main, &first, "first");
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err);
    fibers_go(&clients, ctx->loop, client_main, &second, "second");
    ASSERT_OK(fiber_sleep(ctx, 50 * NS_PER_MS, &err), err);
    turn_give(b);
    ASSERT_OK(fibers_wait(ctx, &clients, "both", &err), err);
    ASSERT_FAIL(first.ret, first.err, ERR_DEADLINE);
    ASSERT_OK(second.ret, second.err);
    turn_give(second.turn);
    turn_give(hangs);
}

/* Becomes the first of this queue and does nothing. -1: another one is the first. */
static int stand_in_queue(const char *path, unsigned queue)
{
    struct flock want = { .l_type = F_WRLCK, .l_start = TURN_QUEUE_BYTE + queue, .l_len = 1 };
    AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);

    ASSERT(fd >= 0);
    return fcntl(fd, F_OFD_SETLK, &want) < 0 ? -1 : TAKE_FD(fd);
}

TEST_FIBER(a_first_client_that_does_nothing_is_overtaken)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct ctx bounded = ctx_with_timeout(ctx, 40 * NS_PER_S);
    struct turn *a = NULL, *b = NULL;
    struct err err = ERR_INIT;
    unsigned order = 0;
    struct client one = { .ctx = &bounded, .path = path, .order = &order }, other = one;
    struct fibers clients;

    log_init(2, LOG_OFF, LOG_LOGFMT);
    ASSERT_OK(turn_take(ctx, path, 2, &a, &err), err);
    ASSERT_OK(turn_take(ctx, path, 2, &b, &err), err);

    AUTO_FD int stopped = stand_in_queue(path, 0);

    ASSERT(stopped >= 0);
    fibers_init(&clients);
    fibers_go(&clients, ctx->loop, client_main, &one, "one");
    fibers_go(&clients, ctx->loop, client_main, &other, "other");
    turn_give(a);
    while (order == 0)
        ASSERT_OK(fiber_sleep(&bounded, 10 * NS_PER_MS, &err), err);
    ASSERT_OK(fiber_sleep(ctx, 100 * NS_PER_MS, &err), err);
    ASSERT_EQ(order, 1); /* one turn is free: the second waits */
    turn_give(b);
    ASSERT_OK(fibers_wait(&bounded, &clients, "both", &err), err);
    ASSERT_OK(one.ret, one.err);
    ASSERT_OK(other.ret, other.err);
    turn_give(one.turn);
    turn_give(other.turn);
}

TEST_FIBER(a_first_client_that_looks_is_never_overtaken)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct turn *a = NULL, *b = NULL;
    struct err err = ERR_INIT;
    unsigned order = 0;
    struct client first = { .ctx = ctx, .path = path, .order = &order }, second = first;
    struct fibers clients;

    ASSERT_OK(turn_take(ctx, path, 2, &a, &err), err);
    ASSERT_OK(turn_take(ctx, path, 2, &b, &err), err);
    fibers_init(&clients);
    fibers_go(&clients, ctx->loop, client_main, &first, "first");
    fibers_go(&clients, ctx->loop, client_main, &second, "second");
    ASSERT_OK(fiber_sleep(ctx, (TURN_WATCH_LOOKS + 2) * TURN_WATCH_NS, &err), err);

    AUTO_FD int nobody = stand_in_queue(path, 1);

    ASSERT(nobody >= 0);
    turn_give(a);
    turn_give(b);
    ASSERT_OK(fibers_wait(ctx, &clients, "both", &err), err);
    ASSERT_OK(first.ret, first.err);
    ASSERT_OK(second.ret, second.err);
    ASSERT_EQ(first.at, 1);
    turn_give(first.turn);
    turn_give(second.turn);
}

TEST_FIBER(a_holder_that_dies_gives_its_turn_back)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "turns");
    struct turn *a = NULL, *b = NULL;
    struct err err = ERR_INIT;
    pid_t pid;
    int ready[2], go[2];
    char byte;

    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(go), 0);
    pid = fork();
    if (pid == 0) {
        close(go[1]);
        if (turn_take(ctx, path, 1, &a, &err) == 0 && write(ready[1], "", 1) == 1)
            (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    close(go[0]);
    ASSERT_EQ(read(ready[0], &byte, 1), 1);

    struct ctx limited = ctx_with_timeout(ctx, 20 * NS_PER_MS);

    ASSERT_FAIL(turn_take(&limited, path, 1, &b, &err), err, ERR_DEADLINE);
    err_clear(&err);
    close(go[1]);
    ASSERT_OK(turn_take(ctx, path, 1, &b, &err), err);
    turn_give(b);
    close(ready[0]);
    close(ready[1]);
}

TEST_FIBER(a_file_that_cannot_be_made_is_named)
{
    struct turn *t = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(turn_take(ctx, "/nonexistent/starts", 1, &t, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/nonexistent/starts");
    turn_give(NULL);
}
