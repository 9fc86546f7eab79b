/* container_list_test.c - the processes of a container, and a guest that does not list them. */
#include "fixture/registry_steps.h"

struct listing {
    size_t n;
    struct container_listed v[64];
};

static void add(void *arg, const struct container_listed *l)
{
    struct listing *to = arg;

    ASSERT(to->n < ARRAY_LEN(to->v));
    to->v[to->n++] = *l;
}

static struct listing list_of(struct fixture *r, struct ctx *ctx, const char *id)
{
    struct listing l = { 0 };

    container_list(ctx, fixture_find(r, id), add, &l);
    ASSERT(l.n > 0);
    ASSERT_EQ(l.v[0].pid, container_parts(fixture_find(r, id))->pid);
    ASSERT_STR(l.v[0].exec_id, "");
    return l;
}

static void open_with_exec(struct fixture *r, struct ctx *ctx)
{
    refuse(r, (struct refusal){ 0 });
    fixture_open(r, ctx);
    fixture_create(r, ctx, "a");
    fixture_start(r, ctx, "a", "");
    fixture_exec(r, ctx, "a", "x");
    fixture_start(r, ctx, "a", "x");
}

TEST_VIRTUAL(children_are_listed_with_the_exec_that_they_come_from)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };

    open_with_exec(&r, ctx);

    struct listing l = list_of(&r, ctx, "a");
    uint32_t init = l.v[0].guest_pid;

    ASSERT_EQ(l.n, 4); /* init, the exec, and a child of each */
    ASSERT(init > 0);
    for (size_t i = 1; i < l.n; i++) {
        bool child = l.v[i].guest_pid > FAKE_GUEST_CHILD;
        bool of_init = l.v[i].guest_pid == init + FAKE_GUEST_CHILD;
        ASSERT_EQ(l.v[i].pid, CONTAINER_PID_BASE + l.v[i].guest_pid);
        ASSERT_STR(l.v[i].exec_id, of_init ? "" : "x");
        ASSERT_EQ(l.v[i].user_ns, child ? 5 * NS_PER_MS : 0);
        ASSERT_EQ(l.v[i].private_bytes, child ? 64 * 1024 : 0);
        ASSERT_EQ(l.v[i].start_ns, child ? loop_wall(r.loop) - NS_PER_S : 0);
    }
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(before_the_start_and_after_the_end_there_is_init_alone)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    refuse(&r, (struct refusal){ 0 });
    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    ASSERT_EQ(list_of(&r, ctx, "a").n, 1);
    fixture_start(&r, ctx, "a", "");
    ASSERT_EQ(list_of(&r, ctx, "a").n, 2);
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 137);

    uint64_t before = loop_now(r.loop);

    refusal = (struct refusal){ BRIDGE_GET_PROPERTIES, -1, -1, 100, FAKE_SILENT };
    ASSERT_EQ(list_of(&r, ctx, "a").n, 1);
    ASSERT_EQ(loop_now(r.loop), before); /* nobody was asked */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_guest_that_never_listed_them_gives_what_the_host_knows_soon)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };

    open_with_exec(&r, ctx);
    refusal = (struct refusal){ BRIDGE_GET_PROPERTIES, -1, -1, 100, FAKE_SILENT };

    uint64_t before = loop_now(r.loop);
    struct listing l = list_of(&r, ctx, "a");

    ASSERT_EQ(loop_now(r.loop) - before, CONTAINER_LIST_LIMIT);
    ASSERT_EQ(l.n, 2);
    ASSERT_STR(l.v[1].exec_id, "x");
    ASSERT_EQ(l.v[1].pid, CONTAINER_PID_BASE + l.v[1].guest_pid);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_guest_that_lists_them_no_more_gives_its_last_list)
{
    static const enum fake_answer_how hows[] = { FAKE_SILENT, FAKE_REFUSE };

    for (size_t i = 0; i < ARRAY_LEN(hows); i++) {
        struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };

        open_with_exec(&r, ctx);
        ASSERT_EQ(list_of(&r, ctx, "a").n, 4);
        refusal = (struct refusal){ BRIDGE_GET_PROPERTIES, -1, -1, 100, hows[i] };

        uint64_t before = loop_now(r.loop);

        ASSERT_EQ(list_of(&r, ctx, "a").n, 4);
        ASSERT(loop_now(r.loop) - before <= CONTAINER_LIST_LIMIT);
        ASSERT_EQ(list_of(&r, ctx, "a").n, 4);
        refusal = (struct refusal){ 0 }; /* and again */
        ASSERT_EQ(list_of(&r, ctx, "a").n, 4);
        fixture_close(&r, ctx);
    }
}

/* Whatever has the gate: a freeze that the guest does not answer. */
static void freeze_main(void *arg)
{
    struct client *c = arg;

    c->ret = container_freeze(c->ctx, fixture_find(c->r, c->id), true, &c->err);
    c->done = true;
}

TEST_VIRTUAL(a_list_does_not_wait_for_the_gate)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };
    struct client stuck;

    open_with_exec(&r, ctx);
    refusal = (struct refusal){ BRIDGE_MODIFY_SETTINGS, -1, -1, 1, FAKE_SILENT };
    go(&stuck, &r, ctx, "a", freeze_main);
    pass(ctx, NS_PER_S);
    ASSERT(!stuck.done);

    uint64_t before = loop_now(r.loop);

    ASSERT_EQ(list_of(&r, ctx, "a").n, 4);
    ASSERT_EQ(loop_now(r.loop), before);
    fixture_close(&r, ctx);
}

struct lister {
    struct fixture *r;
    struct ctx *ctx;
    struct listing l;
    bool done;
};

static void list_main(void *arg)
{
    struct lister *l = arg;

    l->l = list_of(l->r, l->ctx, "a");
    l->done = true;
}

TEST_VIRTUAL(a_vm_that_dies_meanwhile_ends_the_wait)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };
    struct lister l = { &r, ctx };

    open_with_exec(&r, ctx);
    refusal = (struct refusal){ BRIDGE_GET_PROPERTIES, -1, -1, 100, FAKE_SILENT };
    fibers_go(&r.clients, r.loop, list_main, &l, "list");
    pass(ctx, NS_PER_S);
    ASSERT(!l.done);
    fake_vmm_die(r.vmm, FAKE_KILLED);
    pass(ctx, NS_PER_S / 2);
    ASSERT(l.done);
    ASSERT(l.l.n >= 1);
    fixture_close(&r, ctx);
}
