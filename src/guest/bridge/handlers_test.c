/* handlers_test.c - the real table behind the real server, driven as a host would. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "fixture/bridge_peer.h"
#include "fixture/dial_fixture.h"
#include "guest/bridge/handlers_priv.h"
#include "guest/net/nets.h"
#include "guest/runtime/container.h"
#include "guest/runtime/vm_process.h"
#include "harness/tap.h"
#include "proto/link.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define VM "\"ContainerId\":\"" BRIDGE_NULL_ID "\",\"ActivityId\":\"" BRIDGE_NULL_ID "\""
#define CONTAINER "\"ContainerId\":\"c7\",\"ActivityId\":\"" BRIDGE_NULL_ID "\""

struct world {
    struct dial_pair *host;
    struct handlers h;
    struct server *server;
    struct loop *loop;
    struct cancel stop;
    struct fibers run;
    struct stream *s;
    uint64_t next_id;
};

static unsigned power_offs;

static int count_power_off(struct err *err)
{
    power_offs++;
    return 0; /* the real one does not return */
}

static void run_fiber(void *arg)
{
    struct world *w = arg;
    struct ctx root = ctx_root(w->loop), ctx = ctx_with_cancel(&root, &w->stop);
    struct err err = ERR_INIT;

    (void)server_run(&ctx, w->server, &err);
}

static void world_init(struct world *w, struct ctx *ctx)
{
    log_init(2, LOG_OFF, LOG_LOGFMT);
    power_offs = 0;
    *w = (struct world){ .host = dial_pair_new(), .loop = ctx->loop, .next_id = 1 };
    cancel_init(&w->stop, NULL);
    fibers_init(&w->run);
    w->h.dialer = dial_pair_dialer(w->host);
    w->h.processes = vm_processes_new(ctx->loop, w->h.dialer);
    w->h.containers = containers_new(&(struct containers_opts){ .loop = ctx->loop });
    w->h.nets = nets_new();
    w->h.power_off = count_power_off;
    w->server = server_new(&(struct server_opts){ .dialer = dial_pair_dialer(w->host),
                                                  .port = PORT_BRIDGE,
                                                  .table = handlers_table,
                                                  .n_entries = handlers_table_len,
                                                  .arg = &w->h });
    fibers_go(&w->run, ctx->loop, run_fiber, w, "server");
    w->s = peer_accept(ctx, w->host);
    peer_negotiate(ctx, w->s);
}

static void world_release(struct world *w, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    cancel_fire(&w->stop, ERR_CANCELLED, "test is over");
    ASSERT_OK(fibers_wait(ctx, &w->run, "server to stop", &err), err);
    stream_free(w->s);
    server_free(w->server);
    vm_processes_free(w->h.processes);
    containers_free(w->h.containers);
    nets_free(w->h.nets);
    dial_pair_free(w->host);
}

/* Caller decrefs. */
static json_t *call(struct world *w, struct ctx *ctx, uint32_t type, const char *json)
{
    uint64_t id = w->next_id++;

    peer_send(ctx, w->s, type, id, json);
    return peer_expect_json(ctx, w->s, type, id);
}

static uint32_t result_of(json_t *r)
{
    return (uint32_t)json_integer_value(js_get(r, "Result"));
}

static uint32_t ask(struct world *w, struct ctx *ctx, uint32_t type, const char *json)
{
    AUTO(json_decref) json_t *r = call(w, ctx, type, json);

    return result_of(r);
}

/* parameters: JSON text without quoting. Caller decrefs. */
static json_t *exec_in(struct world *w, struct ctx *ctx, const char *base, const char *parameters,
                       const char *ports)
{
    AUTO(json_decref) json_t *text = json_string(parameters);
    AUTO_FREE char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    AUTO_FREE char *request = str_format("{%s,\"Settings\":{\"ProcessParameters\":%s,"
                                         "\"VsockStdioRelaySettings\":{%s}}}",
                                         base, quoted, ports);

    return call(w, ctx, BRIDGE_EXECUTE_PROCESS, request);
}

static uint32_t start(struct world *w, struct ctx *ctx, const char *parameters)
{
    AUTO(json_decref) json_t *r = exec_in(w, ctx, VM, parameters, "");

    ASSERT_EQ(result_of(r), 0);
    return (uint32_t)json_integer_value(js_get(r, "ProcessId"));
}

static json_t *wait_for(struct world *w, struct ctx *ctx, uint32_t pid, uint32_t ms)
{
    AUTO_FREE char *text = str_format("{" VM ",\"ProcessId\":%u,\"TimeoutInMs\":%u}", pid, ms);

    return call(w, ctx, BRIDGE_WAIT_FOR_PROCESS, text);
}

static void expect_code(struct world *w, struct ctx *ctx, uint32_t pid, long long code)
{
    AUTO(json_decref) json_t *r = wait_for(w, ctx, pid, UINT32_MAX);

    ASSERT_EQ(result_of(r), 0);
    ASSERT_EQ(json_integer_value(js_get(r, "ExitCode")), code);
}

TEST_FIBER(a_process_runs_and_its_exit_is_reported_once)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(&w, ctx, "{\"CommandArgs\":[\"sh\",\"-c\",\"exit 7\"]}");
    expect_code(&w, ctx, pid, 7);
    AUTO(json_decref) json_t *again = wait_for(&w, ctx, pid, UINT32_MAX);
    ASSERT_EQ(result_of(again), BRIDGE_HR_NOT_FOUND);
    world_release(&w, ctx);
}

TEST_FIBER(output_goes_to_the_port_named)
{
    struct world w;
    struct err err = ERR_INIT;
    char text[4] = "";
    int fd;

    world_init(&w, ctx);
    AUTO(json_decref)
    json_t *r = exec_in(&w, ctx, VM, "{\"CommandLine\":\"echo ok\",\"CreateStdOutPipe\":true}",
                        "\"StdIn\":5,\"StdOut\":1073741831");
    ASSERT_EQ(result_of(r), 0);
    ASSERT_OK(dial_pair_accept(ctx, w.host, 1073741831, &fd, &err), err);
    AUTO(stream_free) struct stream *out = stream_from_fd(ctx->loop, fd);
    ASSERT_OK(stream_read_full(ctx, out, text, 3, &err), err);
    ASSERT_STR(text, "ok\n");
    ASSERT_EQ(dial_pair_count(w.host), 2); /* a port alone is not dialled */
    world_release(&w, ctx);
}

TEST_FIBER(create_in_utility_vm_counts_for_any_container)
{
    struct world w;

    world_init(&w, ctx);
    AUTO(json_decref)
    json_t *r =
        exec_in(&w, ctx, CONTAINER, "{\"CommandArgs\":[\"true\"],\"CreateInUtilityVM\":true}", "");
    ASSERT_EQ(result_of(r), 0);
    expect_code(&w, ctx, (uint32_t)json_integer_value(js_get(r, "ProcessId")), 0);
    world_release(&w, ctx);
}

TEST_FIBER(bad_process_requests_get_their_codes)
{
    struct world w;

    world_init(&w, ctx);
    AUTO(json_decref) json_t *nothing = exec_in(&w, ctx, VM, "{}", "");
    ASSERT_EQ(result_of(nothing), BRIDGE_HR_INVALID_ARGUMENT);
    AUTO(json_decref) json_t *unknown = exec_in(&w, ctx, VM, "{\"CommandArgs\":[\"no-such\"]}", "");
    ASSERT_EQ(result_of(unknown), BRIDGE_HR_FAIL);
    ASSERT_HAS(json_string_value(js_get(unknown, "ErrorMessage")), "no-such");
    AUTO(json_decref) json_t *bad = exec_in(&w, ctx, VM, "{\"CommandArgs\":7}", "");
    ASSERT_EQ(result_of(bad), BRIDGE_HR_INVALID_JSON);
    AUTO(json_decref) json_t *nobody = exec_in(&w, ctx, CONTAINER, "{}", "");
    ASSERT_EQ(result_of(nobody), BRIDGE_HR_NO_CONTAINER);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_EXECUTE_PROCESS, "{" VM "}"), BRIDGE_HR_INVALID_JSON);
    world_release(&w, ctx);
}

TEST_FIBER(a_wait_times_out_with_its_code)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"]}");
    AUTO(json_decref) json_t *r = wait_for(&w, ctx, pid, 10);
    ASSERT_EQ(result_of(r), BRIDGE_HR_TIMEOUT);
    world_release(&w, ctx);
}

TEST_FIBER(valid_signals_are_sent_and_invalid_ones_are_refused)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"]}");
    AUTO_FREE char *bad = str_format("{" VM ",\"ProcessId\":%u,\"Options\":{\"Signal\":999}}", pid),
                   *term = str_format("{" VM ",\"ProcessId\":%u,\"Options\":{\"Signal\":15}}", pid);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_SIGNAL_PROCESS, bad), BRIDGE_HR_INVALID_ARGUMENT);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_SIGNAL_PROCESS, "{" VM ",\"ProcessId\":1}"), BRIDGE_HR_NOT_FOUND);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_SIGNAL_PROCESS, term), 0);
    expect_code(&w, ctx, pid, 128 + SIGTERM);
    uint32_t killed = start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"]}");
    AUTO_FREE char *plain = str_format("{" VM ",\"ProcessId\":%u}", killed);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_SIGNAL_PROCESS, plain), 0);
    expect_code(&w, ctx, killed, 137);
    world_release(&w, ctx);
}

TEST_FIBER(a_terminal_is_resized_and_other_processes_are_not)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t tty = start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"],\"EmulateConsole\":true}");
    uint32_t plain = start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"]}");
    AUTO_FREE char *good = str_format("{" VM ",\"ProcessId\":%u,\"Height\":40,\"Width\":9}", tty),
                   *bad = str_format("{" VM ",\"ProcessId\":%u,\"Height\":40,\"Width\":9}", plain);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_RESIZE_CONSOLE, good), 0);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_RESIZE_CONSOLE, bad), BRIDGE_HR_FAIL);
    world_release(&w, ctx);
}

TEST_FIBER(an_unknown_container_has_one_code_for_all)
{
    static const uint32_t types[] = { BRIDGE_WAIT_FOR_PROCESS,  BRIDGE_SIGNAL_PROCESS,
                                      BRIDGE_RESIZE_CONSOLE,    BRIDGE_GET_PROPERTIES,
                                      BRIDGE_SHUTDOWN_GRACEFUL, BRIDGE_SHUTDOWN_FORCED };
    struct world w;

    world_init(&w, ctx);
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        ASSERT_EQ(ask(&w, ctx, types[i], "{" CONTAINER "}"), BRIDGE_HR_NO_CONTAINER);
    ASSERT_EQ(power_offs, 0);
    world_release(&w, ctx);
}

/* A create that fails, but not at once: a thread finds that no file system accepts a name of that
 * length. */
struct create {
    struct handlers *h;
    struct ctx *ctx;
    int ret;
    struct err err;
};

static void create_main(void *arg)
{
    struct create *c = arg;
    static const char text[] =
        "{\"ociVersion\":\"1.0.2\",\"linux\":{},\"root\":{\"path\":\"/run/none\"},"
        "\"process\":{\"cwd\":\"/\",\"args\":[\"true\"]}}";
    AUTO(json_decref) json_t *spec = json_loads(text, 0, NULL);
    char bundle[400] = "/run/";
    const struct container_config config = {
        .id = "c7", .activity_id = "", .bundle_path = bundle, .scratch_path = "", .spec = spec
    };

    memset(bundle + strlen(bundle), 'x', 300);
    c->ret = container_create(c->ctx, c->h->containers, &config, &c->err);
}

/* A delete waits until the create has succeeded or failed. */
TEST_FIBER(a_delete_during_a_failing_create_finds_no_container)
{
    AUTO(containers_free)
    struct containers *containers = containers_new(&(struct containers_opts){ .loop = ctx->loop });
    struct handlers h = { .containers = containers };
    struct create creating = { .h = &h, .ctx = ctx };
    struct server_call call = { .req.container_id = "c7" };
    struct ctx bounded = ctx_with_timeout(ctx, 30 * NS_PER_S);
    struct fibers clients;
    struct err err = ERR_INIT;

    log_init(2, LOG_OFF, LOG_LOGFMT);
    fibers_init(&clients);
    fibers_go(&clients, ctx->loop, create_main, &creating, "create");
    fiber_yield(ctx->loop);
    ASSERT(!containers_get(containers, "c7", &err) &&
           err.code == ERR_ABORTED); /* it waits for its thread */

    ASSERT_EQ(handlers_delete(&bounded, &h, &call, &err), -1);
    ASSERT_EQ(bridge_hr(&err), BRIDGE_HR_NO_CONTAINER);
    ASSERT(!containers_get(containers, "c7", &err) && err.code == ERR_NOT_FOUND);
    ASSERT_OK(fibers_wait(ctx, &clients, "the create", &err), err);
    ASSERT_EQ(creating.ret, -1);
    ASSERT_HAS(creating.err.msg, "File name too long");
}

TEST_FIBER(start_does_nothing_and_succeeds)
{
    struct world w;

    world_init(&w, ctx);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_START, "{" CONTAINER "}"), 0);
    world_release(&w, ctx);
}

TEST_FIBER(properties_of_the_vm_are_refused_but_for_its_clock)
{
    struct world w;

    world_init(&w, ctx);
    uint64_t before = clock_mono();
    AUTO(json_decref)
    json_t *r = call(&w, ctx, BRIDGE_GET_PROPERTIES,
                     "{" VM ",\"Query\":\"{\\\"PropertyTypes\\\":[\\\"Clock\\\"]}\"}");
    unsigned long long told = 0;
    ASSERT_EQ(result_of(r), 0);
    ASSERT_EQ(sscanf(json_string_value(js_get(r, "Properties")), "{\"MonotonicNs\":%llu}", &told),
              1);
    ASSERT(told >= before && told <= clock_mono());
    ASSERT_EQ(ask(&w, ctx, BRIDGE_GET_PROPERTIES, "{" VM "}"), BRIDGE_HR_FAIL);
    ASSERT_EQ(ask(&w, ctx, BRIDGE_GET_PROPERTIES, "{" VM ",\"Query\":\"{bad\"}"),
              BRIDGE_HR_INVALID_JSON);
    world_release(&w, ctx);
}

TEST_FIBER(stacks_show_each_fiber_with_what_it_waits_for_and_always_fit)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"]}");
    for (int i = 0; i < 2000; i++) {
        AUTO_FREE char *wait =
            str_format("{" VM ",\"ProcessId\":%u,\"TimeoutInMs\":4294967295}", pid);
        peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, w.next_id++, wait);
    }
    AUTO(json_decref) json_t *r = call(&w, ctx, BRIDGE_DUMP_STACKS, "{" VM "}");
    const char *text = json_string_value(js_get(r, "GuestStacks"));
    ASSERT_HAS(text, "WaitForProcess #");
    ASSERT_HAS(text, "process to exit");
    ASSERT(strlen(text) > 30000 && strlen(text) < BRIDGE_MAX_RESPONSE);
    world_release(&w, ctx);
}

TEST_FIBER(a_forced_shutdown_powers_off_without_an_answer)
{
    struct world w;

    world_init(&w, ctx);
    start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"]}");
    peer_send(ctx, w.s, BRIDGE_SHUTDOWN_FORCED, 500, "{" VM "}");
    ASSERT_EQ(ask(&w, ctx, BRIDGE_START, "{" VM "}"), 0); /* the only answer */
    ASSERT_EQ(power_offs, 1);
    world_release(&w, ctx);
}

TEST_FIBER(a_graceful_shutdown_ends_processes_first)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx);
    uint32_t pid = start(&w, ctx, "{\"CommandArgs\":[\"sleep\",\"60\"]}");
    peer_send(ctx, w.s, BRIDGE_SHUTDOWN_GRACEFUL, 500, "{" VM "}");
    while (power_offs == 0)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    expect_code(&w, ctx, pid, 128 + SIGTERM);
    world_release(&w, ctx);
}
