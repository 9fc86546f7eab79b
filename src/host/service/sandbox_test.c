/* sandbox_test.c - the Sandbox service with real frames: containerd's sequences (contract §10.5),
 * repeated calls, refused calls. */
#include "api/cgroups_v2.pb-c.h"
#include "api/cri.pb-c.h"
#include "api/sandbox.pb-c.h"
#include "fixture/task_fixture.h"
#include "fixture/ttrpc_read.h"
#include <sys/mman.h>
#include <unistd.h>

static int call(struct desk *d, struct ctx *ctx, const char *method, const void *req, void **ret,
                struct err *err)
{
    const ProtobufCMethodDescriptor *m =
        protobuf_c_service_descriptor_get_method_by_name(&sandbox__descriptor, method);

    err_clear(err);
    return rpc_client_call(ctx, d->client, SERVICE_SANDBOX, method, req, m->output, ret, err);
}

/* The code of a request that has only the id. */
static enum err_code code_of(struct desk *d, struct ctx *ctx, const char *method, const char *id)
{
    const ProtobufCMethodDescriptor *m =
        protobuf_c_service_descriptor_get_method_by_name(&sandbox__descriptor, method);
    AUTO(pb_free) void *req = pb_new(m->input);
    struct err err = ERR_INIT;

    pb_set_str((const char **)((char *)req + m->input->fields[0].offset), id);
    return call(d, ctx, method, req, NULL, &err) == 0 ? ERR_NONE : err.code;
}

static CreateSandboxRequest *create_request(struct desk *d, const char *id)
{
    CreateSandboxRequest *req = pb_new(&create_sandbox_request__descriptor);
    AUTO_FREE char *bundle = str_format("%s/%s", d->fixture.dir, id);

    pb_set_str(&req->sandbox_id, id);
    pb_set_str(&req->bundle_path, bundle);
    return req;
}

static Cri__PodSandboxConfig *pod_config(void)
{
    Cri__PodSandboxConfig *c = pb_new(&cri__pod_sandbox_config__descriptor);

    pb_set_str(&c->hostname, "web-0");
    c->linux_config = pb_new(&cri__linux_pod_sandbox_config__descriptor);
    pb_set_str(&c->linux_config->cgroup_parent, "/kubepods/pod1");
    c->linux_config->resources = pb_new(&cri__linux_container_resources__descriptor);
    c->linux_config->resources->memory_limit_in_bytes = 300 << 20;
    return c;
}

static void create(struct desk *d, struct ctx *ctx)
{
    AUTO(pb_free) CreateSandboxRequest *req = create_request(d, "s");
    AUTO(pb_free) Cri__PodSandboxConfig *c = pod_config();
    struct err err = ERR_INIT;

    ASSERT_EQ(pb_set_any(&req->options, c), 0);
    ASSERT_OK(call(d, ctx, "CreateSandbox", req, NULL, &err), err);
}

static uint32_t start(struct desk *d, struct ctx *ctx)
{
    StartSandboxRequest req = START_SANDBOX_REQUEST__INIT;
    AUTO(pb_free) StartSandboxResponse *resp = NULL;
    struct err err = ERR_INIT;

    req.sandbox_id = "s";
    ASSERT_OK(call(d, ctx, "StartSandbox", &req, (void **)&resp, &err), err);
    ASSERT(pb_time(resp->created_at) > 0);
    return resp->pid;
}

static SandboxStatusResponse *status(struct desk *d, struct ctx *ctx, bool verbose)
{
    SandboxStatusRequest req = SANDBOX_STATUS_REQUEST__INIT;
    SandboxStatusResponse *resp = NULL;
    struct err err = ERR_INIT;

    req.sandbox_id = "s";
    req.verbose = verbose;
    ASSERT_OK(call(d, ctx, "SandboxStatus", &req, (void **)&resp, &err), err);
    ASSERT_STR(resp->sandbox_id, "s");
    return resp;
}

TEST_VIRTUAL(a_pod_as_cri_runs_it)
{
    struct desk d = { .fixture.guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    PlatformRequest preq = PLATFORM_REQUEST__INIT;
    AUTO(pb_free) PlatformResponse *platform = NULL;
    AUTO(pb_free) SandboxStatusResponse *ready = NULL, *stopped = NULL;
    struct err err = ERR_INIT;
    uint32_t pid;

    desk_open(&d, &root);
    create(&d, &root);
    pid = start(&d, &root);
    ASSERT(pid > 0);
    ready = status(&d, &root, false);
    ASSERT_STR(ready->state, "SANDBOX_READY");
    ASSERT_EQ(ready->pid, pid); /* ws21 */
    ASSERT(pb_time(ready->created_at) > 0);
    ASSERT(ready->exited_at == NULL);
    preq.sandbox_id = "s";
    ASSERT_OK(call(&d, &root, "Platform", &preq, (void **)&platform, &err), err);
    ASSERT_STR(platform->platform->os, "linux");
    ASSERT(platform->platform->architecture[0]);

    fixture_write_spec(&d.fixture, "c",
                       ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"container\","
                       "\"io.kubernetes.cri.sandbox-id\":\"s\"}");
    ASSERT_EQ(desk_try_create(&d, &root, "c", &err), ERR_NONE);
    desk_start(&d, &root, "c", "");
    ASSERT_EQ(desk_code(&d, &root, "Pids", &pids_request__descriptor, "s", "", &err),
              ERR_NOT_FOUND); /* containerd tolerates it */
    ASSERT_EQ(desk_kill(&d, &root, "c", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, &root, "c", ""), 137);
    desk_delete(&d, &root, "c", "");

    ASSERT_EQ(code_of(&d, &root, "StopSandbox", "s"), ERR_NONE);
    ASSERT_EQ(code_of(&d, &root, "StopSandbox", "s"), ERR_NONE);
    stopped = status(&d, &root, false);
    ASSERT_STR(stopped->state, "SANDBOX_NOTREADY");
    ASSERT(pb_time(stopped->exited_at) > 0);
    ASSERT(!service_idle(d.service));
    ASSERT_EQ(code_of(&d, &root, "ShutdownSandbox", "s"), ERR_NONE);
    ASSERT_EQ(code_of(&d, &root, "ShutdownSandbox", "s"), ERR_NONE);
    ASSERT(service_idle(d.service));
    ASSERT(service_asked_to_leave(d.service) > 0);
    desk_close(&d, &root);
}

TEST_VIRTUAL(everything_before_create_is_not_found)
{
    static const char *const methods[] = { "StartSandbox",  "Platform",      "StopSandbox",
                                           "WaitSandbox",   "SandboxStatus", "PingSandbox",
                                           "SandboxMetrics" };
    struct desk d = { 0 };

    desk_open(&d, ctx);
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        ASSERT_EQ(code_of(&d, ctx, methods[i], "s"), ERR_NOT_FOUND);
    /* An error here would keep containerd from removing the pod. */
    ASSERT_EQ(code_of(&d, ctx, "ShutdownSandbox", "s"), ERR_NONE);
    create(&d, ctx);
    create(&d, ctx); /* repeated */
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        ASSERT_EQ(code_of(&d, ctx, methods[i], "other"), ERR_NOT_FOUND);
    desk_close(&d, ctx);
}

TEST_VIRTUAL(unsupported_settings_are_refused_before_the_vm_starts)
{
    struct desk d = { 0 };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    for (int i = 0; i < 5; i++) {
        AUTO(pb_free) CreateSandboxRequest *req = create_request(&d, "s");
        AUTO(pb_free) Cri__PodSandboxConfig *c = pod_config();
        Cri__NamespaceOption *o = pb_new(&cri__namespace_option__descriptor);

        c->linux_config->security_context =
            pb_new(&cri__linux_sandbox_security_context__descriptor);
        c->linux_config->security_context->namespace_options = o;
        if (i == 0)
            o->network = CRI__NAMESPACE_MODE__NODE;
        if (i == 1)
            o->pid = CRI__NAMESPACE_MODE__NODE;
        if (i == 2)
            o->ipc = CRI__NAMESPACE_MODE__NODE;
        ASSERT_EQ(pb_set_any(&req->options, c), 0);
        if (i == 3)
            pb_set_any_raw(&req->options, "runtime.v1.PodSandboxConfig", "\xff\xff", 2);
        if (i == 4)
            pb_set_any_raw(&req->options, "some.Thing", "", 0);
        ASSERT_FAIL(call(&d, ctx, "CreateSandbox", req, NULL, &err), err, ERR_INVALID);
    }
    create(&d, ctx);
    desk_close(&d, ctx);
}

TEST_VIRTUAL(ws21_verbose_status_describes_the_vm)
{
    struct desk d = { .fixture.guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    AUTO(json_decref) json_t *info = NULL;
    AUTO_FREE char *manifest = NULL;
    struct err err = ERR_INIT;
    const json_t *vm;

    desk_open(&d, &root);
    manifest = str_format("%s/manifest.json", d.fixture.dir);
    ASSERT_EQ(file_write(manifest, "{\"kernel_release\":\"6.1.0\"}", 26, 0600), 0);
    free(d.fixture.config.image_dir);
    d.fixture.config.image_dir = str_dup(d.fixture.dir);
    create(&d, &root);
    (void)start(&d, &root);

    AUTO(pb_free) SandboxStatusResponse *resp = status(&d, &root, true);

    ASSERT_EQ(resp->n_info, 1);
    ASSERT_STR(resp->info[0]->key, "info");
    ASSERT_OK(js_parse(resp->info[0]->value, strlen(resp->info[0]->value), 1 << 20, &info, &err),
              err);
    vm = js_get(info, "vm");
    ASSERT(json_integer_value(js_get(vm, "memory_mib")) > 300);
    ASSERT(json_is_boolean(js_get(vm, "emulated")));
    ASSERT_STR(json_string_value(js_get(vm, "kernel")), "6.1.0");
    ASSERT(json_array_size(js_get(vm, "boot")) > 3);
    ASSERT(json_integer_value(js_get(vm, "started_ns")) > 0);
    desk_close(&d, &root);
}

TEST_VIRTUAL(metrics_are_those_of_the_whole_vm)
{
    struct desk d = { .fixture.guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    SandboxMetricsRequest req = SANDBOX_METRICS_REQUEST__INIT;
    AUTO(pb_free) SandboxMetricsResponse *resp = NULL;
    AUTO(pb_free) Cgroups2__Metrics *m = NULL;
    struct err err = ERR_INIT;

    desk_open(&d, &root);
    create(&d, &root);
    ASSERT_EQ(code_of(&d, &root, "SandboxMetrics", "s"), ERR_STATE);
    (void)start(&d, &root);
    req.sandbox_id = "s";
    ASSERT_OK(call(&d, &root, "SandboxMetrics", &req, (void **)&resp, &err), err);
    ASSERT_STR(resp->metrics->id, "s");
    ASSERT(pb_time(resp->metrics->timestamp) > 0);
    ASSERT_EQ(pb_any_unpack(resp->metrics->data, &cgroups2__metrics__descriptor, (void **)&m), 0);
    ASSERT(m->cpu && m->memory);
    ASSERT_EQ(m->pids->current, 1); /* the guest's, of the pod alone */
    ASSERT_EQ(code_of(&d, &root, "PingSandbox", "s"), ERR_NONE);
    desk_close(&d, &root);
}

/* An error in the log keeps the journal after the shim's exit, and clients repeat queries about
 * stopped sandboxes. */
TEST_VIRTUAL(queries_about_a_stopped_sandbox_log_no_errors)
{
    static const char *const questions[] = { "SandboxStatus", "PingSandbox", "SandboxMetrics",
                                             "Platform", "WaitSandbox" };
    struct desk d = { .fixture.guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    AUTO_FD int fd = memfd_create("log", MFD_CLOEXEC);
    char text[8192] = "";

    desk_open(&d, &root);
    create(&d, &root);
    (void)start(&d, &root);
    ASSERT_EQ(code_of(&d, &root, "StopSandbox", "s"), ERR_NONE);
    log_init(fd, LOG_WARN, LOG_LOGFMT);
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < ARRAY_LEN(questions); k++) {
            (void)code_of(&d, &root, questions[k], "s");
            ASSERT_EQ(code_of(&d, &root, questions[k], "other"), ERR_NOT_FOUND);
        }
    log_init(2, LOG_OFF, LOG_LOGFMT);
    ASSERT(pread(fd, text, sizeof(text) - 1, 0) > 0);
    ASSERT(!strstr(text, "level=error"));
    ASSERT_HAS(text, "operation=SandboxMetrics");
    ASSERT(!strstr(text, "sandbox-id=other"));
    desk_close(&d, &root);
}

struct waiting {
    struct desk *d;
    struct ctx *ctx;
    uint32_t status;
    bool done;
};

static void wait_for_end(void *arg)
{
    struct waiting *w = arg;
    WaitSandboxRequest req = WAIT_SANDBOX_REQUEST__INIT;
    AUTO(pb_free) WaitSandboxResponse *resp = NULL;
    struct err err = ERR_INIT;

    req.sandbox_id = "s";
    ASSERT_OK(call(w->d, w->ctx, "WaitSandbox", &req, (void **)&resp, &err), err);
    ASSERT(pb_time(resp->exited_at) > 0);
    w->status = resp->exit_status;
    w->done = true;
}

TEST_VIRTUAL(waits_are_answered_when_the_sandbox_stops_and_not_before)
{
    struct desk d = { .fixture.guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct waiting w[2] = { { .d = &d, .ctx = &root }, { .d = &d, .ctx = &root } };
    struct err err = ERR_INIT;

    desk_open(&d, &root);
    create(&d, &root);
    fibers_go(&d.fixture.clients, d.fixture.loop, wait_for_end, &w[0], "wait");
    (void)start(&d, &root);
    fibers_go(&d.fixture.clients, d.fixture.loop, wait_for_end, &w[1], "wait");
    ASSERT_OK(fiber_sleep(&root, 10 * NS_PER_S, &err), err);
    ASSERT(!w[0].done && !w[1].done);
    fake_vmm_die(d.fixture.vmm, FAKE_KILLED);
    ASSERT_OK(fibers_wait(&root, &d.fixture.clients, "waits", &err), err);
    ASSERT_EQ(w[0].status, 137);
    ASSERT_EQ(w[1].status, 137);
    desk_close(&d, &root);
}
