/* task_test.c - the Task service as containerd calls it: real frames, virtual time, a fake VM. */
#include "api/cgroups_v2.pb-c.h"
#include "api/process.pb-c.h"
#include "api/runc.pb-c.h"
#include "fixture/task_fixture.h"
#include "fixture/ttrpc_read.h"

#define PROCESS "{\"args\":[\"/bin/sh\"],\"cwd\":\"/\"}"
#define RESOURCES "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"
#define CODE(method, Type, id, exec) desk_code(&d, ctx, method, &Type##__descriptor, id, exec, &err)

static void whole_life(struct ctx *ctx, const char *name)
{
    struct desk d = { .name = name, .fixture.guest_opts.exit_code = 7 };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__CREATED);
    desk_start(&d, ctx, "c1", "");
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__RUNNING);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 7);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 7); /* it is not forgotten */

    AUTO(pb_free) StateResponse *s = desk_state(&d, ctx, "c1", "", &err);

    ASSERT_EQ(s->status, STATUS__STOPPED);
    ASSERT_EQ(s->exit_status, 7);
    ASSERT(pb_time(s->exited_at) > 0);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NOT_FOUND);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, true, &err), ERR_NONE);
    desk_delete(&d, ctx, "c1", "");
    ASSERT_EQ(CODE("Delete", delete_request, "c1", ""), ERR_NOT_FOUND);
    ASSERT(!desk_state(&d, ctx, "c1", "", &err));
    ASSERT_EQ(err.code, ERR_NOT_FOUND);
    ASSERT_STR(fixture_told(&d.fixture, ctx), "create c1;start c1;exit c1 7;delete c1 7");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(a_task_lives_and_ends_under_the_v2_name)
{
    whole_life(ctx, SERVICE_TASK_V2);
}

TEST_VIRTUAL(a_task_lives_and_ends_under_the_v3_name)
{
    whole_life(ctx, SERVICE_TASK_V3);
}

TEST_VIRTUAL(state_returns_the_settings_of_create)
{
    struct desk d = { 0 };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    fixture_write_spec(&d.fixture, "c1", "");

    AUTO(pb_free) CreateTaskRequest *req = desk_create_request(&d, "c1");
    AUTO(pb_free) CreateTaskResponse *created = NULL;

    pb_set_str(&req->stdin, "/fifo/in");
    pb_set_str(&req->stderr, "/fifo/err");
    ASSERT_OK(desk_call(&d, ctx, "Create", req, &create_task_response__descriptor,
                        (void **)&created, &err),
              err);
    ASSERT(created->pid > 0);
    ASSERT_EQ(d.created, 1);
    ASSERT_EQ(d.created_pid, created->pid);

    AUTO(pb_free) StateResponse *s = desk_state(&d, ctx, "c1", "", &err);

    ASSERT_STR(s->id, "c1");
    ASSERT_STR(s->exec_id, "");
    ASSERT_STR(s->bundle, req->bundle);
    ASSERT_STR(s->stdin, "/fifo/in");
    ASSERT_STR(s->stdout, "/fifo/out");
    ASSERT_STR(s->stderr, "/fifo/err");
    ASSERT_EQ(s->pid, created->pid);
    ASSERT(!s->exited_at); /* ws23: no made-up time */
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(ws36_wrong_states_and_names_have_their_codes)
{
    struct desk d = { .fixture.guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    ASSERT_EQ(CODE("Start", start_request, "nobody", ""), ERR_NOT_FOUND);
    ASSERT_EQ(CODE("Wait", wait_request, "nobody", ""), ERR_NOT_FOUND);
    ASSERT_EQ(CODE("Pids", pids_request, "nobody", ""), ERR_NOT_FOUND);
    ASSERT_EQ(CODE("Stats", stats_request, "nobody", ""), ERR_NOT_FOUND);
    ASSERT_EQ(desk_kill(&d, ctx, "nobody", "", 9, false, &err), ERR_NOT_FOUND);
    desk_create(&d, ctx, "c1");
    ASSERT_EQ(desk_try_create(&d, ctx, "c1", &err), ERR_EXISTS);
    ASSERT_HAS(err.msg, "c1");
    ASSERT_EQ(CODE("Pause", pause_request, "c1", ""), ERR_STATE);
    desk_start(&d, ctx, "c1", "");
    ASSERT_EQ(CODE("Start", start_request, "c1", ""), ERR_STATE);
    ASSERT_EQ(CODE("Resume", resume_request, "c1", ""), ERR_STATE);
    ASSERT_EQ(CODE("Delete", delete_request, "c1", ""), ERR_STATE);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__RUNNING); /* ws13: nothing was touched */
    ASSERT_EQ(CODE("Start", start_request, "c1", "e1"), ERR_NOT_FOUND);
    ASSERT_EQ(CODE("Checkpoint", checkpoint_task_request, "c1", ""), ERR_UNIMPLEMENTED);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 99, false, &err), ERR_INVALID);
    ASSERT_HAS(err.msg, "99");
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 0, false, &err), ERR_INVALID);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    ASSERT_EQ(CODE("Start", start_request, "c1", ""), ERR_STATE);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(invalid_ids_are_refused_and_named)
{
    static const char *const bad[] = { "", "a/b", "..", "a b", "\n" };
    struct desk d = { 0 };
    struct err err = ERR_INIT;
    AUTO_FREE char *huge = mem_zalloc(65537);

    desk_open(&d, ctx);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        ASSERT_EQ(desk_try_create(&d, ctx, bad[i], &err), ERR_INVALID);
        ASSERT_HAS(err.msg, "container id");
        ASSERT_EQ(CODE("State", state_request, bad[i], ""), ERR_INVALID);
        ASSERT_EQ(CODE("Delete", delete_request, bad[i], ""), ERR_INVALID);
        ASSERT_EQ(CODE("Connect", connect_request, bad[i], ""), ERR_NONE);
        ASSERT_EQ(CODE("Shutdown", shutdown_request, bad[i], ""), ERR_NONE);
    }
    memset(huge, 'a', 65536);
    ASSERT_EQ(desk_try_create(&d, ctx, huge, &err), ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "65536 bytes");
    desk_create(&d, ctx, "c1");
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e/1", PROCESS, &err), ERR_INVALID);
    ASSERT_HAS(err.msg, "exec id \"e/1\"");
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(create_refuses_invalid_requests)
{
    struct desk d = { 0 };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    fixture_write_spec(&d.fixture, "c1", "");

    AUTO(pb_free) CreateTaskRequest *relative = desk_create_request(&d, "c1");
    AUTO(pb_free) CreateTaskRequest *empty_mount = desk_create_request(&d, "c1");
    AUTO(pb_free) CreateTaskRequest *checkpoint = desk_create_request(&d, "c1");
    const ProtobufCMessageDescriptor *type = &create_task_response__descriptor;

    pb_set_str(&relative->bundle, "bundle");
    ASSERT_FAIL(desk_call(&d, ctx, "Create", relative, type, NULL, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "bundle \"bundle\"");
    pb_add(empty_mount->rootfs, empty_mount->n_rootfs, pb_new(&mount__descriptor));
    ASSERT_FAIL(desk_call(&d, ctx, "Create", empty_mount, type, NULL, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "rootfs mount 0");
    pb_set_str(&checkpoint->checkpoint, "/image");
    ASSERT_FAIL(desk_call(&d, ctx, "Create", checkpoint, type, NULL, &err), err, ERR_UNIMPLEMENTED);
    ASSERT(service_idle(d.service));
    ASSERT_STR(fixture_told(&d.fixture, ctx), "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(ws22_exec_without_a_spec_is_refused_and_leaves_nothing)
{
    struct desk d = { .fixture.guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    desk_start(&d, ctx, "c1", "");
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", NULL, &err), ERR_INVALID);
    ASSERT_HAS(err.msg, "e1");
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", "", &err), ERR_INVALID);
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", "{\"args\":7}", &err), ERR_INVALID);
    ASSERT_EQ(CODE("State", state_request, "c1", "e1"), ERR_NOT_FOUND);
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", PROCESS, &err), ERR_NONE);
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", PROCESS, &err), ERR_EXISTS);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(an_exec_is_started_killed_and_deleted_on_its_own)
{
    struct desk d = { .fixture.guest_opts.process_ns = 2 * NS_PER_S,
                      .fixture.guest_opts.container_ns = 100 * NS_PER_S,
                      .fixture.guest_opts.exit_code = 3 };
    struct err err = ERR_INIT;
    struct ctx root = ctx_root(ctx->loop), longer = ctx_with_timeout(&root, 300 * NS_PER_S);

    ctx = &longer;
    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    desk_start(&d, ctx, "c1", "");
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", PROCESS, &err), ERR_NONE);
    ASSERT_EQ(desk_status(&d, ctx, "c1", "e1"), STATUS__CREATED);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "e1", 9, false, &err), ERR_STATE); /* not started */
    desk_start(&d, ctx, "c1", "e1");

    AUTO(pb_free) StateResponse *s = desk_state(&d, ctx, "c1", "e1", &err);

    ASSERT_STR(s->id, "c1");
    ASSERT_STR(s->exec_id, "e1");
    ASSERT(s->pid > 0);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", "e1"), 3);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "e1", 9, false, &err), ERR_NOT_FOUND); /* as CRI does */
    ASSERT_EQ(desk_wait(&d, ctx, "c1", "e1"), 3);
    desk_delete(&d, ctx, "c1", "e1");
    ASSERT_EQ(CODE("State", state_request, "c1", "e1"), ERR_NOT_FOUND);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__RUNNING);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, true, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    ASSERT_STR(fixture_told(&d.fixture, ctx),
               "create c1;start c1;exec-added c1/e1;exec-started c1/e1;"
               "exit c1/e1 3;exit c1 137;delete c1 137");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(ws23_a_cancelled_wait_does_not_report_an_exit)
{
    struct desk d = { .fixture.guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    desk_start(&d, ctx, "c1", "");

    struct ctx brief = ctx_with_timeout(ctx, NS_PER_S);
    WaitRequest req = WAIT_REQUEST__INIT;
    WaitResponse *resp = NULL;

    req.id = "c1";
    ASSERT_FAIL(
        desk_call(&d, &brief, "Wait", &req, &wait_response__descriptor, (void **)&resp, &err), err,
        ERR_DEADLINE);
    ASSERT(!resp);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__RUNNING);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(ws44_kill_before_start_ends_the_task_and_is_reported)
{
    struct desk d = { 0 };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    ASSERT_STR(fixture_told(&d.fixture, ctx), "create c1;exit c1 137;delete c1 137");
    desk_close(&d, ctx);
}

static ConnectResponse *connect_to(struct desk *d, struct ctx *ctx, const char *id)
{
    ConnectRequest req = CONNECT_REQUEST__INIT;
    ConnectResponse *resp = NULL;
    struct err err = ERR_INIT;

    req.id = id;
    ASSERT_OK(
        desk_call(d, ctx, "Connect", &req, &connect_response__descriptor, (void **)&resp, &err),
        err);
    return resp;
}

TEST_VIRTUAL(connect_succeeds_for_unknown_ids)
{
    struct desk d = { 0 };

    desk_open(&d, ctx);

    AUTO(pb_free) ConnectResponse *before = connect_to(&d, ctx, "c1");

    desk_create(&d, ctx, "c1");

    AUTO(pb_free) ConnectResponse *after = connect_to(&d, ctx, "c1");

    ASSERT_EQ(before->shim_pid, getpid());
    ASSERT_EQ(before->task_pid, 0);
    ASSERT_EQ(after->task_pid, d.created_pid);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

static PidsResponse *pids_of(struct desk *d, struct ctx *ctx, const char *id)
{
    PidsRequest req = PIDS_REQUEST__INIT;
    PidsResponse *resp = NULL;
    struct err err = ERR_INIT;

    req.id = id;
    ASSERT_OK(desk_call(d, ctx, "Pids", &req, &pids_response__descriptor, (void **)&resp, &err),
              err);
    return resp;
}

TEST_VIRTUAL(pids_are_never_empty_while_the_task_exists)
{
    struct desk d = { .fixture.guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");

    AUTO(pb_free) PidsResponse *created = pids_of(&d, ctx, "c1");

    ASSERT_EQ(created->n_processes, 1);
    ASSERT_EQ(created->processes[0]->pid, d.created_pid);
    desk_start(&d, ctx, "c1", "");
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", PROCESS, &err), ERR_NONE);
    desk_start(&d, ctx, "c1", "e1");

    AUTO(pb_free) PidsResponse *running = pids_of(&d, ctx, "c1");
    AUTO(pb_free) Runc__ProcessDetails *details = NULL;

    ASSERT_EQ(running->n_processes, 4); /* a child of each, too */
    ASSERT_EQ(running->processes[0]->pid, d.created_pid);
    ASSERT_EQ(pb_any_unpack(running->processes[3]->info, &runc__process_details__descriptor,
                            (void **)&details),
              0);
    ASSERT_STR(details->exec_id, "e1");
    ASSERT_STR(details->image_name, "child");
    ASSERT(details->process_id > FAKE_GUEST_CHILD);
    ASSERT_EQ(running->processes[3]->pid, CONTAINER_PID_BASE + details->process_id);
    ASSERT_EQ(details->user_time_100_ns, 50000);
    ASSERT_EQ(details->memory_working_set_private_bytes, 65536);
    ASSERT(details->created_at && details->created_at->seconds > 0);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);

    AUTO(pb_free) PidsResponse *stopped = pids_of(&d, ctx, "c1");

    ASSERT(stopped->n_processes >= 1);
    ASSERT_EQ(stopped->processes[0]->pid, d.created_pid);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(stats_work_before_start_and_keep_their_last_values)
{
    struct desk d = { 0 };
    StatsRequest req = STATS_REQUEST__INIT;
    struct err err = ERR_INIT;

    req.id = "c1";
    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    for (int i = 0; i < 2; i++) {
        AUTO(pb_free) StatsResponse *resp = NULL;
        AUTO(pb_free) Cgroups2__Metrics *m = NULL;

        ASSERT_OK(
            desk_call(&d, ctx, "Stats", &req, &stats_response__descriptor, (void **)&resp, &err),
            err);
        ASSERT_EQ(pb_any_unpack(resp->stats, &cgroups2__metrics__descriptor, (void **)&m), 0);
        ASSERT_EQ(m->pids->current, 1);
        ASSERT(m->cpu && m->memory);
        if (i == 0) {
            desk_start(&d, ctx, "c1", "");
            ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 0);
        }
    }
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(update_accepts_only_linux_resources)
{
    struct desk d = { .fixture.guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;
    static const struct {
        const char *type, *json;
        enum err_code code;
    } tries[] = {
        { NULL, NULL, ERR_INVALID },
        { RESOURCES, "", ERR_INVALID },
        { "containerd.runc.v1.Options", "{}", ERR_INVALID },
        { RESOURCES, "nonsense", ERR_INVALID },
        { RESOURCES, "[1]", ERR_INVALID },
        { RESOURCES, "{\"memory\":{\"limit\":67108864}}", ERR_NONE },
    };

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    desk_start(&d, ctx, "c1", "");
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        AUTO(pb_free) UpdateTaskRequest *req = pb_new(&update_task_request__descriptor);

        pb_set_str(&req->id, "c1");
        if (tries[i].type)
            pb_set_any_raw(&req->resources, tries[i].type, tries[i].json, strlen(tries[i].json));
        err_clear(&err);
        (void)desk_call(&d, ctx, "Update", req, &empty__descriptor, NULL, &err);
        if (err.code != tries[i].code)
            tap_fail(__FILE__, __LINE__, "try %zu: code %d: %s", i, err.code, err.msg);
    }
    ASSERT_EQ(d.fixture.guest.updates, 1);

    AUTO(pb_free) UpdateTaskRequest *move = pb_new(&update_task_request__descriptor);
    UpdateTaskRequest__AnnotationsEntry *entry =
        pb_new(&update_task_request__annotations_entry__descriptor);

    pb_set_str(&move->id, "c1");
    pb_set_any_raw(&move->resources, RESOURCES, "{}", 2);
    pb_set_str(&entry->key, "io.microsoft.virtualmachine.cpugroup.id");
    pb_set_str(&entry->value, "fast");
    pb_add(move->annotations, move->n_annotations, entry);
    (void)desk_call(&d, ctx, "Update", move, &empty__descriptor, NULL, &err);
    ASSERT_EQ(err.code, ERR_PERMISSION);
    ASSERT_MSG_HAS(err.msg, "cpugroup.id is \"fast\", but allow_annotations does not allow it");
    ASSERT_EQ(d.fixture.guest.updates, 1);
    err_clear(&err);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(a_size_and_the_end_of_stdin_may_come_before_start)
{
    struct desk d = { 0 };
    ResizePtyRequest size = RESIZE_PTY_REQUEST__INIT, huge = RESIZE_PTY_REQUEST__INIT;
    CloseIORequest nothing = CLOSE_IOREQUEST__INIT, in = CLOSE_IOREQUEST__INIT;
    struct err err = ERR_INIT;
    const ProtobufCMessageDescriptor *type = &empty__descriptor;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    size.id = huge.id = nothing.id = in.id = "c1";
    size.width = 80;
    size.height = 25;
    huge.width = 65536;
    in.stdin = true;
    ASSERT_OK(desk_call(&d, ctx, "ResizePty", &size, type, NULL, &err), err);
    ASSERT_FAIL(desk_call(&d, ctx, "ResizePty", &huge, type, NULL, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "65536x0");
    ASSERT_OK(desk_call(&d, ctx, "CloseIO", &nothing, type, NULL, &err), err);
    ASSERT_OK(desk_call(&d, ctx, "CloseIO", &in, type, NULL, &err), err);
    ASSERT_OK(desk_call(&d, ctx, "CloseIO", &in, type, NULL, &err), err);
    desk_start(&d, ctx, "c1", "");
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 0);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(the_state_of_a_paused_task_is_paused)
{
    struct desk d = { .fixture.guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    desk_start(&d, ctx, "c1", "");
    ASSERT_EQ(CODE("Pause", pause_request, "c1", ""), ERR_NONE);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__PAUSED);
    ASSERT_EQ(desk_exec(&d, ctx, "c1", "e1", PROCESS, &err), ERR_STATE);
    ASSERT_EQ(CODE("Delete", delete_request, "c1", ""), ERR_STATE);
    ASSERT_EQ(CODE("Resume", resume_request, "c1", ""), ERR_NONE);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__RUNNING);
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    ASSERT_HAS(fixture_told(&d.fixture, ctx), "paused c1;resumed c1");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(shutdown_means_exit_if_idle)
{
    struct desk d = { 0 };
    struct err err = ERR_INIT;
    unsigned before;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    before = d.changes;
    ASSERT_EQ(CODE("Shutdown", shutdown_request, "c1", ""), ERR_NONE);
    ASSERT_EQ(d.changes, before + 1);
    ASSERT(!service_idle(d.service));
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__CREATED);
    desk_delete(&d, ctx, "c1", "");
    ASSERT(service_idle(d.service));
    ASSERT_EQ(d.changes, before + 2);
    ASSERT_EQ(service_asked_to_leave(d.service), 1);
    service_refuse(d.service);
    fixture_write_spec(&d.fixture, "c2", "");
    ASSERT_EQ(desk_try_create(&d, ctx, "c2", &err), ERR_UNAVAILABLE);
    ASSERT_EQ(err.reason, REASON_SHIM_LEAVING);
    ASSERT_MSG_HAS(err.msg, "shutting down");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(methods_and_services_that_do_not_exist_are_unimplemented)
{
    struct desk d = { 0 };
    Empty req = EMPTY__INIT;
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    ASSERT_FAIL(desk_call(&d, ctx, "Nope", &req, &empty__descriptor, NULL, &err), err,
                ERR_UNIMPLEMENTED);
    d.name = "containerd.task.v9.Task";
    ASSERT_FAIL(desk_call(&d, ctx, "Connect", &req, &empty__descriptor, NULL, &err), err,
                ERR_UNIMPLEMENTED);
    desk_close(&d, ctx);
}
