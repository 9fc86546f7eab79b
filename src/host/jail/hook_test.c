#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "fixture/ledger_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/hook.h"
#include <string.h>

struct fixture {
    struct tempdir temp;
    struct ledger *ledger;
};

static void fixture_init(struct fixture *r)
{
    struct err err = ERR_INIT;

    tempdir_init(&r->temp, "/tmp");
    ASSERT_OK(ledger_create(tempdir_path(&r->temp, "ns/vm"), &r->ledger, &err), err);
}

static void fixture_release(struct fixture *r)
{
    ASSERT_EQ(ledger_fixture_open(r->ledger), 0);
    ledger_close(r->ledger);
    tempdir_release_auto(&r->temp);
}

static int run_script(struct fixture *r, struct ctx *ctx, const char *script, uint64_t limit_ns,
                      struct err *err)
{
    const char *const argv[] = { "hook", "-c", script, "argument", NULL };
    const char *const env[] = { "NAME=value", NULL };

    return hook_run(ctx,
                    &(struct hook_opts){ .path = "/bin/sh",
                                         .cwd = r->temp.dir,
                                         .argv = argv,
                                         .env = env,
                                         .input = "{\"id\":\"c1\"}",
                                         .limit_ns = limit_ns,
                                         .ledger = r->ledger },
                    err);
}

TEST_FIBER(a_hook_reads_the_state_in_its_bundle_with_its_environment)
{
    struct fixture r;
    struct err err = ERR_INIT;
    AUTO_FREE char *text = NULL;

    fixture_init(&r);
    ASSERT_OK(run_script(&r, ctx, "{ while read -r l; do :; done; echo $l $NAME $0; } >out",
                         30 * NS_PER_S, &err),
              err);
    text = file_text(4096, "%s/out", r.temp.dir);
    ASSERT_STR(text, "{\"id\":\"c1\"} value argument\n");
    fixture_release(&r);
}

TEST_FIBER(the_error_of_a_failed_hook_has_the_cause)
{
    struct fixture r;
    struct err err = ERR_INIT;

    fixture_init(&r);
    ASSERT_FAIL(run_script(&r, ctx, "echo first; echo no network >&2; exit 3", 30 * NS_PER_S, &err),
                err, ERR_STATE);
    ASSERT_STR(err.msg, "exit status 3: first no network");
    ASSERT_FAIL(run_script(&r, ctx, "kill -9 $$", 30 * NS_PER_S, &err), err, ERR_STATE);
    ASSERT_STR(err.msg, "killed by signal 9");
    fixture_release(&r);
}

TEST_FIBER(a_hook_that_hangs_is_killed)
{
    struct fixture r;
    struct err err = ERR_INIT;
    uint64_t before = loop_now(ctx->loop);

    fixture_init(&r);
    ASSERT_FAIL(run_script(&r, ctx, "exec sleep 1000", 50 * NS_PER_MS, &err), err, ERR_DEADLINE);
    ASSERT(loop_now(ctx->loop) - before < 30 * NS_PER_S);
    fixture_release(&r);
}

/* To a client "not found" would mean its container. */
TEST_FIBER(a_program_that_is_not_there_is_an_invalid_hook)
{
    struct fixture r;
    struct err err = ERR_INIT;
    const char *const argv[] = { "x", NULL };

    fixture_init(&r);
    ASSERT_FAIL(hook_run(ctx,
                         &(struct hook_opts){ .path = "/none/such",
                                              .cwd = "/",
                                              .argv = argv,
                                              .input = "",
                                              .limit_ns = 30 * NS_PER_S,
                                              .ledger = r.ledger },
                         &err),
                err, ERR_INVALID);
    ASSERT_HAS(err.msg, "/none/such");
    fixture_release(&r);
}
