/* shims_test.c - the resources of pods, from a scripted shim. */
#include "api/cgroups_v2.pb-c.h"
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/log.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/rpc/rpc_server.h"
#include "host/rpc/rpc_sock.h"
#include "proto/pb.h"
#include "tool/lib/shims.h"
#include <unistd.h>

__attribute__((constructor)) static void quiet(void)
{
    log_init(2, LOG_OFF, LOG_LOGFMT);
}

struct fake {
    enum err_code holder; /* what Stats of "s1" is answered with */
    unsigned calls;
};

static int fake_stats(struct ctx *ctx, struct fake *f, const StatsRequest *req, StatsResponse *resp,
                      struct err *err)
{
    AUTO(pb_free) Cgroups2__Metrics *m = pb_new(&cgroups2__metrics__descriptor);

    (void)ctx;
    f->calls++;
    if (str_eq(req->id, "s1") && f->holder)
        return err_set(err, f->holder, "no container s1");
    m->memory = pb_new(&cgroups2__memory_stat__descriptor);
    m->memory->usage = 1000;
    m->cpu = pb_new(&cgroups2__cpustat__descriptor);
    m->cpu->usage_usec = 7;
    ASSERT_EQ(pb_set_any(&resp->stats, m), 0);
    return 0;
}

static const struct rpc_method methods[] = {
    RPC_METHOD("Stats", fake_stats, struct fake, StatsRequest, StatsResponse, .minor = true),
};
static const struct rpc_service task = { &task__descriptor, methods, ARRAY_LEN(methods) };

/* The cost of a pod of three, one of which has ended; s1 holds it. */
static struct cost measured(struct ctx *ctx, struct fake *f)
{
    static const char doc[] = "{\"containers\":[{\"id\":\"s1\"},{\"id\":\"c1\"},{\"id\":\"c2\"},"
                              "{\"id\":\"c3\",\"exited_ns\":1}]}";
    TEMPDIR(dir);
    AUTO_FREE char *address = str_format("unix://%s", tempdir_path(&dir, "s"));
    struct ctx soon = ctx_with_timeout(ctx, 10 * NS_PER_S);
    struct shim shim = { .ns = "n", .id = "s1", .address = address, .pid = getpid() };
    struct shims all = { .v = &shim, .n = 1 };
    struct rpc_server *server = rpc_server_new(ctx->loop);
    struct err err = ERR_INIT;
    int fd;

    rpc_server_add(server, task__descriptor.name, &task, f);
    ASSERT_OK(rpc_sock_listen(address, &fd, &err), err);
    rpc_server_listen(server, fd);
    ASSERT_OK(js_parse(doc, sizeof(doc) - 1, sizeof(doc), &shim.doc, &err), err);
    shims_cost(ctx, &all);
    json_decref(shim.doc);
    ASSERT_OK(rpc_server_shutdown(&soon, server, &err), err);
    rpc_server_free(server);
    return shim.cost;
}

TEST_FIBER(the_guests_values_are_the_sum_of_its_containers)
{
    struct fake f = { ERR_NONE };
    struct cost c = measured(ctx, &f);

    ASSERT_EQ(c.guest, 1);
    ASSERT_EQ(c.guest_memory, 3000);
    ASSERT_EQ(c.guest_cpu_ns, 3 * 7 * NS_PER_US);
    ASSERT(c.shim_pss > 0);
}

/* The container that holds a sandbox is listed, but clients do not see it. */
TEST_FIBER(a_container_that_the_shim_does_not_show_is_skipped)
{
    struct fake f = { ERR_NOT_FOUND };
    struct cost c = measured(ctx, &f);

    ASSERT_EQ(c.guest, 1);
    ASSERT_EQ(c.guest_memory, 2000);
    ASSERT_EQ(f.calls, 3);
}

TEST_FIBER(a_guest_that_does_not_answer_has_no_values)
{
    struct fake f = { ERR_DEADLINE };

    ASSERT_EQ(measured(ctx, &f).guest, 0);
}
