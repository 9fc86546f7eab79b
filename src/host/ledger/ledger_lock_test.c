/* The holder of a ledger: its owner or a visitor. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/ledger/ledger_priv.h"

#include <stdlib.h>
#include <unistd.h>

static struct tempdir root;

/* A fresh directory; caller frees. */
static char *fresh(void)
{
    static unsigned n;

    if (n == 0)
        tempdir_init(&root, "/tmp");
    return str_format("%s/%u", root.dir, ++n);
}

__attribute__((destructor)) static void clean(void)
{
    tempdir_release_auto(&root);
}

static void add_record(struct ledger *l, enum ledger_kind kind, const char *what)
{
    struct err err = ERR_INIT;
    uint64_t id;

    ASSERT_OK(ledger_add(l, kind, what, &id, &err), err);
}

TEST_FIBER(a_reader_is_not_mistaken_for_the_owner)
{
    AUTO_FREE char *dir = fresh(), *thing = str_format("%s/thing", dir);
    AUTO(ledger_close) struct ledger *l = NULL, *next = NULL;
    AUTO_FD int visitor = -1;
    enum ledger_holder holder;
    struct err err = ERR_INIT;
    bool alive = true;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_FILE, thing);
    ledger_close(TAKE_PTR(l));
    ASSERT_EQ(ledger_lock(dir, 0, LEDGER_VISITOR, &visitor, &holder), 0);
    ASSERT_OK(ledger_owner_alive(dir, &alive, &err), err);
    ASSERT(!alive);
    ASSERT_OK(ledger_reclaim(ctx, dir, true, NULL, NULL, &err), err);
    ASSERT_FAIL(ledger_create(dir, &next, &err), err, ERR_UNAVAILABLE);
}

struct second {
    struct ctx *ctx;
    const char *dir;
    int ret;
    struct err err;
    bool done;
};

static void second_main(void *arg)
{
    struct second *s = arg;

    s->ret = ledger_reclaim(s->ctx, s->dir, false, NULL, NULL, &s->err);
    s->done = true;
}

/* `lcow gc` and containerd's `delete` at the same time: the second waits, then cleans up what the
 * first has left. */
TEST_FIBER(a_clean_up_waits_for_another_one)
{
    AUTO_FREE char *dir = fresh(), *thing = str_format("%s.thing", dir);
    AUTO(ledger_close) struct ledger *l = NULL;
    enum ledger_holder holder;
    struct second s = { .ctx = ctx, .dir = dir };
    struct err err = ERR_INIT;
    struct fibers clients;
    int first = -1;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_FILE, thing);
    ASSERT_EQ(file_write(thing, "", 0, 0600), 0);
    ledger_close(TAKE_PTR(l));
    ASSERT_EQ(ledger_lock(dir, 0, LEDGER_VISITOR, &first, &holder), 0);
    fibers_init(&clients);
    fibers_go(&clients, ctx->loop, second_main, &s, "second");
    ASSERT_OK(fiber_sleep(ctx, 50 * NS_PER_MS, &err), err);
    ASSERT(!s.done);
    fd_close(first); /* it is killed before it is done */
    ASSERT_OK(fibers_wait(ctx, &clients, "the second", &err), err);
    ASSERT_OK(s.ret, s.err);
    ASSERT_EQ(access(thing, F_OK), -1);
    ASSERT_EQ(access(dir, F_OK), -1);
}

TEST_FIBER(a_clean_up_waits_only_until_its_deadline)
{
    AUTO_FREE char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL;
    struct ctx limited = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    AUTO_FD int first = -1;
    enum ledger_holder holder;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_DIR, "/a");
    ledger_close(TAKE_PTR(l));
    ASSERT_EQ(ledger_lock(dir, 0, LEDGER_VISITOR, &first, &holder), 0);
    ASSERT_FAIL(ledger_reclaim(&limited, dir, false, NULL, NULL, &err), err, ERR_DEADLINE);
    ASSERT_MSG_HAS(err.msg, "cleaning up");
}
