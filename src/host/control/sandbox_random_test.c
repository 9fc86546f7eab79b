/* sandbox_random_test.c - a sandbox under many clients at once, while host, guest and VM fail at
 * random: every request is answered in bounded time, and nothing is left. A seed that fails is
 * printed; SEED=n runs only that seed. */
#include "fixture/registry_steps.h"
#include "host/control/sandbox_priv.h"
#include <stdio.h>

#define SEEDS 400
#define CLIENTS 6
#define CALLS 5

static struct {
    uint64_t state;
    unsigned fault_percent;
    struct fixture *r;
    uint64_t seed;
} world;

__attribute__((destructor)) static void say_seed(void)
{
    printf("# last seed: %llu\n", (unsigned long long)world.seed);
}

static unsigned roll(unsigned n)
{
    world.state = world.state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(world.state >> 33) % n;
}

static int step(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    if (roll(3) == 0 && fiber_sleep(ctx, roll(400) * NS_PER_MS, err) < 0)
        return -1;
    if (roll(100) < world.fault_percent)
        return err_set(err, ERR_EXHAUSTED, "%s fails", op);
    return 0;
}

static struct fake_answer answer(void *arg, const struct bridge_request *q)
{
    struct fake_answer a = { FAKE_ANSWER, roll(4) ? 0 : roll(300) * NS_PER_MS, BRIDGE_HR_FAIL };

    if (roll(100) < world.fault_percent)
        a.how = roll(3) == 0 ? FAKE_DISCONNECT : FAKE_REFUSE;
    return a;
}

static void one_call(struct fixture *r, struct ctx *ctx, unsigned what)
{
    struct registry *g = r->registry;
    const struct sandbox_create c = {
        .id = "s", .bundle = "/none", .netns = "/run/netns/1", .spec = "{}"
    };
    const char *id = roll(2) ? "c1" : "c2";
    struct sandbox_view started;
    struct sandbox_view x;
    struct sandbox_view v;
    struct err err = ERR_INIT;

    switch (what) {
    case 0:
        (void)sandbox_create(ctx, g, &c, &err);
        break;
    case 1:
    case 2:
        if (sandbox_start(ctx, g, "s", &started, &err) == 0)
            ASSERT(started.pid > 0);
        break;
    case 3:
        (void)sandbox_stop(ctx, g, "s", roll(2) * 3 * NS_PER_S, &err);
        break;
    case 4: {
        struct ctx brief = ctx_with_timeout(ctx, roll(5) * NS_PER_S);

        if (sandbox_wait(&brief, g, "s", &x, &err) == 0)
            ASSERT(x.exited_wall_ns > 0);
        break;
    }
    case 5:
        (void)sandbox_ping(ctx, g, "s", &err);
        break;
    case 6:
        (void)sandbox_shutdown(ctx, g, "s", &err);
        break;
    case 7:
        if (r->vms && roll(2) && g->vm && vm_state(g->vm) == VM_RUNNING)
            fake_vmm_die(r->vmm, roll(4));
        break;
    case 8:
    case 9:
        if (fixture_try_create(r, ctx, id, &err) == 0)
            (void)fixture_try_start(r, ctx, id, "", &err);
        break;
    case 10:
        (void)fixture_try_kill(r, ctx, id, "", 9, true, &err);
        break;
    case 11:
        (void)fixture_try_delete(r, ctx, id, "", &err);
        break;
    default:
        (void)sandbox_view(g, "s", &v, &err);
        break;
    }
}

static void client_main(void *arg)
{
    struct fixture *r = world.r;
    struct ctx root = ctx_root(r->loop);

    for (unsigned i = 0; i < CALLS; i++) {
        struct ctx limited = ctx_with_timeout(&root, 150 * NS_PER_S);
        struct err err = ERR_INIT;
        uint64_t before = loop_now(r->loop);

        (void)fiber_sleep(&root, roll(2000) * NS_PER_MS, &err);
        one_call(r, &limited, roll(13));
        if (loop_now(r->loop) - before > 160 * NS_PER_S)
            r->host.violation = "a call did not end in time";
    }
}

static void one_world(struct ctx *ctx, uint64_t seed)
{
    struct ctx root = ctx_root(ctx->loop);
    struct fixture r = { .guest_opts.process_ns = 20 * NS_PER_S,
                         .guest_opts.decide_request = answer };
    struct err err = ERR_INIT;

    world.seed = seed;
    world.state = seed * UINT64_C(0x9e3779b97f4a7c15);
    world.fault_percent = seed % 4 == 0 ? 0 : 1 + roll(8);
    world.r = &r;
    r.host.network = true;
    r.guest_opts.agent_ns = roll(1500) * NS_PER_MS;
    fixture_open(&r, &root);
    r.host.step = step;
    fixture_write_spec(&r, "c1",
                       ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"container\","
                       "\"io.kubernetes.cri.sandbox-id\":\"s\"}");
    fixture_write_spec(&r, "c2", "");
    one_call(&r, &root, 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        fibers_go(&r.clients, r.loop, client_main, NULL, "client %u", i);
    ASSERT_OK(fibers_wait(&root, &r.clients, "clients", &err), err);
    world.fault_percent = 0;
    fixture_close(&r, &root);
    ASSERT_EQ(r.host.net_plugged, 0);
}

TEST_VIRTUAL(whatever_fails_each_request_is_answered_and_nothing_is_left)
{
    const char *only = getenv("SEED");

    for (uint64_t seed = 1; seed <= SEEDS && !only; seed++)
        one_world(ctx, seed);
    if (only)
        one_world(ctx, strtoull(only, NULL, 10));
}
