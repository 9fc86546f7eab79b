/* NICs of the backend with a peer in QEMU's place: everything is real but the program in the
 * jail, which misbehaves as its name says. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "fixture/qemu_fixture.h"

#include <fcntl.h>

#define AMPLE (30 * NS_PER_S) /* for what succeeds, on a machine that has other things to do */
#define ENOUGH NS_PER_S       /* for what never comes, once all before it has */

struct fixture {
    struct qemu_fixture fixture;
    int tap, vhost;
    bool with_vhost;
};

static void start(struct ctx *ctx, struct fixture *f, const char *part)
{
    fixture_prepare(ctx, &f->fixture, part, "", 61200);
    f->fixture.doc.scsi_controllers = 1;
    fixture_start(&f->fixture);
    f->tap = open("/dev/null", O_RDWR | O_CLOEXEC);
    f->vhost = open("/dev/zero", O_RDWR | O_CLOEXEC);
    ASSERT(f->tap >= 0 && f->vhost >= 0);
    f->with_vhost = false;
}

static void finish(struct fixture *f)
{
    fixture_quit(&f->fixture);
    fd_close(f->tap);
    fd_close(f->vhost);
}

static int add(struct fixture *f, const char *id, uint64_t timeout, struct err *err)
{
    const int taps[] = { f->tap, f->tap }, vhost[] = { f->vhost, f->vhost };
    const struct vmm_nic n = { .id = id,
                               .taps = taps,
                               .vhost = f->with_vhost ? vhost : NULL,
                               .queues = f->with_vhost ? 2 : 1,
                               .mac = { 2 },
                               .mtu = 1500 };
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, timeout);

    return f->fixture.v->ops->nic_add(&limited, f->fixture.v, &n, err);
}

static int take(struct fixture *f, const char *id, uint64_t timeout, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, timeout);

    return f->fixture.v->ops->nic_remove(&limited, f->fixture.v, id, err);
}

static const char *const steps[] = { "getfd", "netdev_add", "device_add" };

TEST_FIBER(a_nic_that_qemu_refuses_at_any_step_leaves_nothing)
{
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        AUTO_FREE char *part = str_format("error.%s", steps[i]);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, "a", AMPLE, &err), err, ERR_UNKNOWN);
        ASSERT_HAS(err.msg, steps[i]);
        ASSERT_OK(add(&f, "a", AMPLE, &err), err);
        ASSERT_FAIL(add(&f, "a", AMPLE, &err), err, ERR_EXISTS);
        ASSERT_OK(add(&f, "b", AMPLE, &err), err);
        ASSERT_OK(take(&f, "a", AMPLE, &err), err);
        ASSERT_OK(take(&f, "a", AMPLE, &err), err); /* gone is gone */
        ASSERT_OK(take(&f, "b", AMPLE, &err), err);
        finish(&f);
    }
}

/* As above, with two queues and vhost-net: four descriptors; the peer looks at each. */
TEST_FIBER(each_queue_has_a_tap_and_a_vhost_net)
{
    for (size_t i = 0; i <= ARRAY_LEN(steps); i++) {
        bool fails = i < ARRAY_LEN(steps);
        AUTO_FREE char *part = fails ? str_format("error.%s", steps[i]) : str_dup("fine");
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        f.with_vhost = true;
        if (fails)
            ASSERT_FAIL(add(&f, "a", AMPLE, &err), err, ERR_UNKNOWN);
        ASSERT_OK(add(&f, "a", AMPLE, &err), err);
        f.with_vhost = false;
        ASSERT_OK(add(&f, "b", AMPLE, &err), err);
        ASSERT_OK(take(&f, "a", AMPLE, &err), err);
        ASSERT_OK(take(&f, "b", AMPLE, &err), err);
        finish(&f);
    }
}

TEST_FIBER(a_step_whose_answer_is_lost_is_undone_all_the_same)
{
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        AUTO_FREE char *part = str_format("lost.%s", steps[i]);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, "a", 200 * NS_PER_MS, &err), err, ERR_DEADLINE);
        finish(&f);
    }
}

TEST_FIBER(a_removal_that_fails_at_any_step_continues_there)
{
    static const char *const back[] = { "device_del", "netdev_del" };

    for (size_t i = 0; i < ARRAY_LEN(back); i++)
        for (int lost = 0; lost < 2; lost++) {
            AUTO_FREE char *part = str_format("%s.%s", lost ? "lost" : "error", back[i]);
            struct fixture f;
            struct err err = ERR_INIT;

            start(ctx, &f, part);
            ASSERT_OK(add(&f, "a", AMPLE, &err), err);
            ASSERT_FAIL(take(&f, "a", lost ? ENOUGH : AMPLE, &err), err,
                        lost ? ERR_DEADLINE : ERR_UNKNOWN);
            ASSERT_OK(take(&f, "a", AMPLE, &err), err);
            finish(&f);
        }
}

/* The event that frees the name may be on its way still. */
static int add_when_free(struct fixture *f, const char *id, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, AMPLE);

    while (add(f, id, AMPLE, err) < 0)
        if (err->code != ERR_EXISTS || fiber_sleep(&limited, NS_PER_MS, &(struct err){ 0 }) < 0)
            return -1;
    return 0;
}

TEST_FIBER(a_nic_that_the_guest_does_not_release_is_cut_off)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "deaf.device_del");
    ASSERT_OK(add(&f, "a", AMPLE, &err), err);
    ASSERT_OK(take(&f, "a", AMPLE, &err), err);
    /* The guest releases it later; the next call removes the rest, and the name is free again. */
    ASSERT_OK(take(&f, "a", AMPLE, &err), err);
    ASSERT_OK(add_when_free(&f, "a", &err), err);
    ASSERT_OK(add(&f, "b", AMPLE, &err), err);
    f.fixture.v->ops->terminate(f.fixture.v);
    struct vmm_exit e;
    ASSERT_OK(f.fixture.v->ops->wait(ctx, f.fixture.v, &e, &err), err);
    ASSERT_OK(take(&f, "b", AMPLE, &err), err); /* went with it */
    ASSERT_OK(f.fixture.v->ops->release(ctx, f.fixture.v, &err), err);
    fixture_free(&f.fixture);
    fd_close(f.tap);
    fd_close(f.vhost);
}

TEST_FIBER(invalid_names_and_sizes_are_refused)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct vmm_nic n = { .id = "a", .mtu = 60 };

    start(ctx, &f, "fine");
    ASSERT_FAIL(add(&f, "", AMPLE, &err), err, ERR_INVALID);
    ASSERT_FAIL(add(&f, "a,b", AMPLE, &err), err, ERR_INVALID);
    n.taps = &f.tap;
    n.queues = 1;
    ASSERT_FAIL(f.fixture.v->ops->nic_add(ctx, f.fixture.v, &n, &err), err, ERR_INVALID);
    finish(&f);
}
