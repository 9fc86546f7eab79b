/* container_hooks_test.c - when a container's hooks run, and what a failure means. */
#include "fixture/registry_steps.h"
#include "host/control/sandbox.h"

#define HOOKS                                                                                      \
    ",\"hooks\":{\"prestart\":[{\"path\":\"/pre\"}],\"createRuntime\":[{\"path\":\"/cr1\"},"       \
    "{\"path\":\"/cr2\"}],\"poststart\":[{\"path\":\"/ps1\"},{\"path\":\"/ps2\"}],"                \
    "\"poststop\":[{\"path\":\"/pp1\"},{\"path\":\"/pp2\"}]}"

static void open_fixture(struct fixture *r, struct ctx *ctx, struct sbuf *ran)
{
    refuse(r, (struct refusal){ 0 });
    fixture_open(r, ctx);
    r->host.hooks = ran;
    fixture_write_spec(r, "a", HOOKS);
}

TEST_VIRTUAL(hooks_run_on_the_host_each_in_its_time)
{
    struct fixture r = { .guest_opts.process_ns = NS_PER_S };
    AUTO(sbuf_release) struct sbuf ran = { 0 };
    struct err err = ERR_INIT;

    open_fixture(&r, ctx, &ran);
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_STR(ran.data, "/pre creating;/cr1 creating;/cr2 creating;");
    ran.len = 0;
    fixture_start(&r, ctx, "a", "");
    ASSERT_STR(ran.data, "/ps1 running;/ps2 running;");
    fixture_exec(&r, ctx, "a", "x"); /* execs have none */
    fixture_start(&r, ctx, "a", "x");
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
    ASSERT_STR(ran.data, "/ps1 running;/ps2 running;");
    ran.len = 0;
    fixture_delete(&r, ctx, "a", "");
    ASSERT_STR(ran.data, "/pp1 stopped;/pp2 stopped;");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_hook_of_create_that_fails_fails_it_and_what_it_made_is_cleaned_up)
{
    struct fixture r = { 0 };
    AUTO(sbuf_release) struct sbuf ran = { 0 };
    struct err err = ERR_INIT;

    open_fixture(&r, ctx, &ran);
    r.host.hook_fails = "/cr1";
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_STATE);
    ASSERT_MSG(err.msg, "create container a: hook createRuntime[0] (/cr1): exit status 3: broken");
    ASSERT_EQ(err.reason, REASON_HOOK_FAILED);
    ASSERT_STR(ran.data, "/pre creating;/cr1 creating;/pp1 stopped;/pp2 stopped;");
    expect_gone(&r, ctx, "a");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_later_hook_that_fails_changes_nothing)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };
    AUTO(sbuf_release) struct sbuf ran = { 0 };
    struct err err = ERR_INIT;

    open_fixture(&r, ctx, &ran);
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    r.host.hook_fails = "/ps1";
    fixture_start(&r, ctx, "a", "");
    r.host.hook_fails = "/pp1";
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 137);
    fixture_delete(&r, ctx, "a", "");
    ASSERT_HAS(ran.data, "/ps1 running;/ps2 running;/pp1 stopped;/pp2 stopped;");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(hooks_are_refused_before_anything_is_made)
{
    struct fixture r = { 0 };
    AUTO(sbuf_release) struct sbuf ran = { 0 };
    struct err err = ERR_INIT;

    open_fixture(&r, ctx, &ran);
    r.config.run_hooks = false;
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "create container a: hook prestart[0] (/pre) is refused by the config");
    r.config.run_hooks = true;
    fixture_write_spec(&r, "a", ",\"hooks\":{\"createContainer\":[{\"path\":\"/in\"}]}");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "create container a: hook createContainer[0] (/in) is unsupported");
    ASSERT_EQ(err.reason, REASON_UNSUPPORTED);
    ASSERT_EQ(r.vms, 0);
    ASSERT(!ran.data);
    fixture_close(&r, ctx);
}
