/* registry_save_test.c - a shim that is saved and continued by another program: nothing that it
 * knows is lost, nothing that happens meanwhile is missed or reported twice. */
#include "base/exit_code.h"
#include "fixture/registry_steps.h"
#include "fixture/replace_fixture.h"
#include "host/control/container_priv.h"
#include "host/control/pod_priv.h"
#include "host/control/process_priv.h"
#include "host/control/sandbox_priv.h"
#include "host/control/vm_priv.h"
#include <stdio.h>

#define OF_POD                                                                                     \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"%s\","                               \
    "\"io.kubernetes.cri.sandbox-id\":\"%s\"}"

#define IMAGE                                                                                      \
    ",\"mounts\":[{\"destination\":\"/d\",\"type\":\"virtual-disk\",\"source\":\"/a.img\","        \
    "\"options\":[\"ro\"]}]"

static void add(struct fixture *r, struct ctx *ctx, const char *id, const char *kind,
                const char *pod)
{
    AUTO_FREE char *more = kind ? str_format(OF_POD IMAGE, kind, pod) : str_dup("");
    struct err err = ERR_INIT;

    fixture_write_spec(r, id, more);
    ASSERT_OK(fixture_try_create(r, ctx, id, &err), err);
}

/* Of pod p, with a network namespace of its own and hooks. */
static void add_holder(struct fixture *r, struct ctx *ctx)
{
    AUTO_FREE char *dir = str_format("%s/p", r->dir), *path = str_format("%s/config.json", dir);
    AUTO_FREE char *pod = str_format(OF_POD, "sandbox", "p");
    AUTO_FREE char *text =
        str_format("{\"process\":{\"args\":[\"/x\"],\"cwd\":\"/\"},\"root\":{\"path\":\"rootfs\"},"
                   "\"hooks\":{\"poststop\":[{\"path\":\"/bin/hook\"}]},"
                   "\"linux\":{\"namespaces\":[{\"type\":\"pid\"},{\"type\":\"network\"}]}%s}",
                   pod);
    struct err err = ERR_INIT;

    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
    r->config.run_hooks = true;
    ASSERT_OK(fixture_try_create(r, ctx, "p", &err), err);
}

static void kill_one(struct fixture *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fixture_try_kill(r, ctx, id, exec, 9, false, &err), err);
}

static void freeze(struct fixture *r, struct ctx *ctx, const char *id, bool frozen)
{
    struct err err = ERR_INIT;

    ASSERT_OK(container_freeze(ctx, fixture_find(r, id), frozen, &err), err);
}

static struct process_view view(struct fixture *r, const char *id, const char *exec)
{
    struct process_view v = { 0 };
    struct err err = ERR_INIT;
    struct process *p = container_process(fixture_find(r, id), exec, &err);

    ASSERT(p != NULL);
    process_view(p, &v);
    return v;
}

/* Pod p with its pause container, one that is paused and has an exec and a registered exec, one
 * that has ended, and one that was not started. */
static void open_pod(struct fixture *r, struct ctx *ctx)
{
    r->guest_opts.process_ns = 900 * NS_PER_S;
    r->host.network = true;
    r->address = "unix:///run/lcow/box.sock";
    fixture_open(r, ctx);
    add_holder(r, ctx);
    fixture_start(r, ctx, "p", "");
    add(r, ctx, "a", "container", "p");
    fixture_start(r, ctx, "a", "");
    fixture_exec(r, ctx, "a", "runs");
    fixture_start(r, ctx, "a", "runs");
    fixture_exec(r, ctx, "a", "waits");
    add(r, ctx, "b", "container", "p");
    fixture_start(r, ctx, "b", "");
    kill_one(r, ctx, "b", "");
    ASSERT_EQ(fixture_wait(r, ctx, "b", ""), 137);
    add(r, ctx, "c", "container", "p");
    freeze(r, ctx, "a", true);
}

static void expect_pod(struct fixture *r)
{
    ASSERT_EQ(view(r, "p", "").status, PROCESS_RUNNING);
    ASSERT_EQ(view(r, "a", "").status, PROCESS_PAUSED);
    ASSERT_EQ(view(r, "a", "runs").status, PROCESS_PAUSED);
    ASSERT_EQ(view(r, "a", "waits").status, PROCESS_CREATED);
    ASSERT_EQ(view(r, "b", "").status, PROCESS_STOPPED);
    ASSERT_EQ(view(r, "b", "").exit_status, 137);
    ASSERT(view(r, "b", "").exited_wall_ns > 0);
    ASSERT_EQ(view(r, "c", "").status, PROCESS_CREATED);
    ASSERT(view(r, "a", "").pid > 0);
    ASSERT_STR(view(r, "a", "runs").stdio.out, "/fifo/out");
    ASSERT(container_pod(fixture_find(r, "a")) == container_pod(fixture_find(r, "p")));
    ASSERT(container_pod(fixture_find(r, "a"))->holder == fixture_find(r, "p"));
    ASSERT_EQ(r->vms, 1);
}

TEST_VIRTUAL(a_pod_is_continued_as_it_was_and_lives_to_its_end)
{
    AUTO(sbuf_release) struct sbuf hooks = { 0 };
    /* Those of before were not delivered then. */
    AUTO_FREE char *events = str_format(
        "%s;%s;%s;%s", "create p;start p;create a;start a;exec-added a/runs;exec-started a/runs",
        "exec-added a/waits;create b;start b;exit b 137;create c;paused a",
        "resumed a;exit a/runs 137;exec-started a/waits;start c;exit c 137",
        "exit a/waits 137;exit a 137;delete c 137;delete a 137;delete b 137;"
        "exit p 137;delete p 137");
    struct fixture r = { .host.hooks = &hooks };
    struct ctx root = ctx_root(ctx->loop);
    unsigned shares;

    saved_begin();
    open_pod(&r, &root);
    expect_pod(&r);
    replace(&r, &root);
    saved_end();
    r.vms = 1; /* the other is the object in its stead */
    expect_pod(&r);
    freeze(&r, &root, "a", false);
    kill_one(&r, &root, "a", "runs");
    ASSERT_EQ(fixture_wait(&r, &root, "a", "runs"), 137);
    fixture_start(&r, &root, "a", "waits"); /* its OCI process was kept */
    fixture_start(&r, &root, "c", "");
    kill_one(&r, &root, "c", "");
    ASSERT_EQ(fixture_wait(&r, &root, "c", ""), 137);
    kill_one(&r, &root, "a", "");
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    ASSERT_EQ(view(&r, "a", "waits").status, PROCESS_STOPPED);
    shares = r.guest.shares;
    ASSERT_EQ(r.guest.disks, 2);
    ASSERT_EQ(r.guest.layers, 4);
    fixture_delete(&r, &root, "c", "");
    fixture_delete(&r, &root, "a", "");
    fixture_delete(&r, &root, "b", "");
    ASSERT_EQ(r.guest.containers, 1);
    ASSERT_EQ(r.guest.layers, 1);
    ASSERT(r.guest.shares < shares);
    ASSERT_EQ(r.guest.disks, 1); /* scratch; their image is gone */
    kill_one(&r, &root, "p", "");
    ASSERT_EQ(fixture_wait(&r, &root, "p", ""), 137);
    ASSERT_EQ(r.host.net_plugged, 1);
    fixture_delete(&r, &root, "p", "");
    ASSERT_EQ(r.host.net_plugged, 0);
    ASSERT_STR(hooks.data, "/bin/hook stopped;");
    ASSERT_STR(fixture_told(&r, &root), events);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(an_exit_that_comes_while_the_program_is_replaced_is_published_once)
{
    struct fixture r = { .guest_opts.process_ns = 2 * NS_PER_S, .guest_opts.exit_code = 7 };
    struct ctx root = ctx_root(ctx->loop);

    saved_begin();
    fixture_open(&r, ctx);
    add(&r, &root, "a", NULL, NULL);
    fixture_start(&r, &root, "a", "");
    for (int i = 0; i < 3; i++) { /* as often as one likes */
        pass(&root, 300 * NS_PER_MS);
        replace(&r, &root);
    }
    replace_slowly(&r, &root, 5 * NS_PER_S); /* the guest reports it meanwhile */
    saved_end();
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 7);
    fixture_delete(&r, &root, "a", "");
    ASSERT_STR(fixture_told(&r, &root), "create a;start a;exit a 7;delete a 7");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(the_end_of_the_vm_and_a_killed_anchor_are_seen_by_the_new_program)
{
    for (int anchor = 0; anchor < 2; anchor++) {
        struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
        struct ctx root = ctx_root(ctx->loop);

        saved_begin();
        fixture_open(&r, ctx);
        add(&r, &root, "a", NULL, NULL);
        fixture_start(&r, &root, "a", "");
        replace(&r, &root);
        saved_end();
        if (anchor)
            fake_anchor_kill(r.host.last_anchor);
        else
            fake_vmm_die(r.vmm, FAKE_KILLED);
        ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
        ASSERT_STR(fixture_told(&r, &root), "create a;start a;exit a 137");
        fixture_close(&r, ctx);
    }
}

TEST_VIRTUAL(out_of_memory_is_published_by_the_new_program)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.oom_ns = 20 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);

    saved_begin();
    fixture_open(&r, ctx);
    add(&r, &root, "a", NULL, NULL);
    fixture_start(&r, &root, "a", "");
    replace(&r, &root);
    saved_end();
    pass(&root, 30 * NS_PER_S);
    ASSERT_STR(fixture_told(&r, &root), "create a;start a;oom a");
    kill_one(&r, &root, "a", "");
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    fixture_close(&r, ctx);
}

static unsigned judged(struct fixture *r)
{
    struct fake_facts f;

    fake_vmm_facts(r->vmm, &f);
    return f.judged;
}

TEST_VIRTUAL(the_guest_s_clock_is_compared_once_also_if_that_was_under_way)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);

    saved_begin();
    fixture_open(&r, ctx);
    add(&r, &root, "a", NULL, NULL);
    fixture_start(&r, &root, "a", "");
    ASSERT_EQ(judged(&r), 0);
    replace(&r, &root);
    pass(&root, 60 * NS_PER_S);
    ASSERT_EQ(judged(&r), 1);
    replace(&r, &root);
    saved_end();
    fixture_exec(&r, &root, "a", "x");
    fixture_start(&r, &root, "a", "x");
    pass(&root, 60 * NS_PER_S);
    ASSERT_EQ(judged(&r), 1);
    fixture_close(&r, ctx);
}

/* The guest acted on SIGKILL and reports no end: the limit counts from the kill. */
TEST_VIRTUAL(a_kill_that_has_no_effect_ends_the_vm_at_its_time)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    uint64_t began;

    saved_begin();
    refuse(&r, (struct refusal){ BRIDGE_WAIT_FOR_PROCESS, -1, -1, 9, FAKE_SILENT });
    fixture_open(&r, ctx);
    add(&r, &root, "a", NULL, NULL);
    fixture_start(&r, &root, "a", "");
    kill_one(&r, &root, "a", "");
    began = loop_now(ctx->loop);
    pass(&root, 40 * NS_PER_S);
    replace(&r, &root);
    saved_end();
    ASSERT(fixture_wait(&r, &root, "a", "") != 0);
    ASSERT(loop_now(ctx->loop) - began >= 60 * NS_PER_S);
    ASSERT(loop_now(ctx->loop) - began < 62 * NS_PER_S);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(events_that_are_not_delivered_yet_are_delivered_by_the_new_program)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    static const char *const options[] = { "ro", "upperdir=/u", NULL };
    const struct event_mount mount = { "overlay", "src", "/t", options };
    const struct event *e;
    struct err err = ERR_INIT;

    saved_begin();
    fixture_open(&r, ctx);
    events_push(r.events, &(struct event){ .kind = EVENT_OOM, .container_id = "a" });
    events_give_up(r.events);
    events_push(r.events, &(struct event){ .kind = EVENT_CREATE,
                                           .wall_ns = 5,
                                           .container_id = "a",
                                           .exec_id = "",
                                           .pid = 4,
                                           .bundle = "/b",
                                           .in = "i",
                                           .out = "o",
                                           .err = "e",
                                           .terminal = true,
                                           .rootfs = &mount,
                                           .n_rootfs = 1 });
    events_push(r.events, &(struct event){ .kind = EVENT_EXIT,
                                           .container_id = "a",
                                           .exec_id = "x",
                                           .exit_status = 9,
                                           .exited_wall_ns = 8 });
    replace(&r, ctx);
    saved_end();
    ASSERT_EQ(events_dropped(r.events), 1);
    ASSERT_EQ(events_pending(r.events), 2);
    ASSERT_OK(events_next(ctx, r.events, &e, &err), err);
    ASSERT(e->kind == EVENT_CREATE && e->wall_ns == 5 && e->pid == 4 && e->terminal);
    ASSERT_STR(e->bundle, "/b");
    ASSERT_STR(e->in, "i");
    ASSERT_STR(e->out, "o");
    ASSERT_STR(e->err, "e");
    ASSERT_EQ(e->n_rootfs, 1);
    ASSERT_STR(e->rootfs[0].type, "overlay");
    ASSERT_STR(e->rootfs[0].source, "src");
    ASSERT_STR(e->rootfs[0].target, "/t");
    ASSERT_STR(e->rootfs[0].options[1], "upperdir=/u");
    ASSERT(e->rootfs[0].options[2] == NULL);
    ASSERT_STR(fixture_told(&r, ctx), "create a;exit a/x 9");
    fixture_close(&r, ctx);
}

/* --- each field, also those that nothing above depends on --- */

#define CONTAINER_FIELDS(X)                                                                        \
    X(c->p.limits.memory_bytes)                                                                    \
    X(c->p.limits.cpu_period)                                                                      \
    X(c->p.limits.cpu_quota)                                                                       \
    X(c->p.limits.cpu_shares)                                                                      \
    X(c->p.in_guest)                                                                               \
    X(c->p.writes_host)                                                                            \
    X(c->no_writable_shares)                                                                       \
    X(c->privileged)                                                                               \
    X(c->own_pids)                                                                                 \
    X(c->ending)                                                                                   \
    X(c->end_ask)                                                                                  \
    X(c->end_status)                                                                               \
    X(c->scratch_bytes)                                                                            \
    X(c->scratch_quota_mib)                                                                        \
    X(c->root_writes)                                                                              \
    X(c->oom_rate.full_at_ns)                                                                      \
    X(c->oom_untold)                                                                               \
    X(c->anchor_lost)                                                                              \
    X(c->p.init->terminal)                                                                         \
    X(c->p.init->stdin_closed)                                                                     \
    X(c->p.init->rows)                                                                             \
    X(c->p.init->cols)                                                                             \
    X(c->p.init->exited_wall_ns)                                                                   \
    X(c->p.init->exit_status)                                                                      \
    X(c->p.pod->shares_empty_dirs)                                                                 \
    X(c->p.pod->has_scratch)                                                                       \
    X(c->p.pod->takes_workloads)                                                                   \
    X(c->p.pod->hidden)                                                                            \
    X(c->r->lost_bytes)                                                                            \
    X(c->r->forsook)                                                                               \
    X(vm->o.set_oom_score_adj)                                                                     \
    X(vm->o.oom_score_adj)                                                                         \
    X(vm->p.started_wall_ns)                                                                       \
    X(vm->memory_unsure)                                                                           \
    X(vm->cpus_unsure)                                                                             \
    X(vm->clock_checked)                                                                           \
    X(vm->clock.verdict)                                                                           \
    X(vm->clock.low_ppm)                                                                           \
    X(vm->clock.high_ppm)                                                                          \
    X(vm->first_start.set)
#define WISHES(X)                                                                                  \
    X(w->memory_mib)                                                                               \
    X(w->cpus)                                                                                     \
    X(w->scratch_quota_mib)                                                                        \
    X(w->rootfs)                                                                                   \
    X(w->shared_empty_dirs)                                                                        \
    X(w->said_empty_dirs)                                                                          \
    X(w->encrypted_scratch)                                                                        \
    X(w->privileged)                                                                               \
    X(w->no_writable_shares)                                                                       \
    X(w->said_shares)                                                                              \
    X(w->cpu_limit)                                                                                \
    X(w->cpu_weight)                                                                               \
    X(w->disk_iops)                                                                                \
    X(w->disk_bytes_per_s)                                                                         \
    X(w->low_mmio_mib)                                                                             \
    X(w->high_mmio_mib)                                                                            \
    X(w->node_cpus)                                                                                \
    X(w->node_mib)                                                                                 \
    X(w->committed)                                                                                \
    X(w->backed)                                                                                   \
    X(w->deferred)                                                                                 \
    X(w->no_timesync)
#define WISHED_TEXTS(X)                                                                            \
    X(w->cpu_group)                                                                                \
    X(w->kernel_args)                                                                              \
    X(w->numa_host)                                                                                \
    X(w->numa_cpus)                                                                                \
    X(w->numa_mib)                                                                                 \
    X(w->numa_prefer)
#define CONTAINER_TEXTS(X)                                                                         \
    X(c->p.anchor_name)                                                                            \
    X(c->log_name)                                                                                 \
    X(c->log_dir)                                                                                  \
    X(c->log_uri)                                                                                  \
    X(c->last_stats)                                                                               \
    X(c->p.init->in)                                                                               \
    X(c->p.init->err)                                                                              \
    X(c->p.pod->ids.uid)                                                                           \
    X(c->p.pod->ids.gid)                                                                           \
    X(c->p.pod->netns)                                                                             \
    X(vm->p.cpu_group)                                                                             \
    X(vm->p.kernel)                                                                                \
    X(vm->p.cgroup_path)
#define SET(field) (field) = (__typeof__(field))1;
#define SET_TEXT(field)                                                                            \
    free(field);                                                                                   \
    (field) = str_dup(#field);
#define SET_ARRAY(field) snprintf(field, sizeof(field), "%s", #field);
#define EXPECT(field) ASSERT_EQ(field, 1);
#define EXPECT_TEXT(field) ASSERT_STR(field, #field);

static void add_volumes(struct pod *pod)
{
    struct pod_volume *v = mem_new(struct pod_volume);
    struct pod_disk *d = mem_new(struct pod_disk);
    struct err err = ERR_INIT;

    *v = (struct pod_volume){ .dir = str_dup("/d"), .key = str_dup("k"), .local = true };
    list_append(&pod->volumes, &v->node);
    d->fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ASSERT_OK(
        volumes_read(json_pack("{s:s,s:s,s:s,s:s,s:[s]}", "volume-path", "/v", "volume-type",
                               "block", "device", "/dev/vdb", "fstype", "ext4", "options", "ro"),
                     &d->v, &err),
        err);
    list_append(&pod->disks, &d->node);
}

static void expect_volumes(struct pod *pod)
{
    struct pod_volume *v = LIST_FIRST(&pod->volumes, struct pod_volume, node);
    struct pod_disk *d = LIST_FIRST(&pod->disks, struct pod_disk, node);

    ASSERT(v && v->local && d && d->fd >= 0);
    ASSERT_STR(v->dir, "/d");
    ASSERT_STR(v->key, "k");
    ASSERT_STR(d->v.path, "/v");
    ASSERT_STR(d->v.device, "/dev/vdb");
    ASSERT_STR(d->v.options[0], "ro");
}

TEST_VIRTUAL(every_field_is_the_same_in_the_new_program)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct annotations *w;
    struct container *c;
    struct vm *vm;
    uint64_t wait_id;
    char uuid[37];

    saved_begin();
    open_pod(&r, &root);
    replace_settle(&r, &root);
    c = fixture_find(&r, "a");
    vm = r.registry->vm;
    w = &vm->p.wishes;
    memcpy(uuid, vm->p.uuid, sizeof(uuid));
    wait_id = c->p.init->wait_id;
    ASSERT(wait_id != 0);
    CONTAINER_FIELDS(SET)
    CONTAINER_TEXTS(SET_TEXT)
    WISHES(SET)
    WISHED_TEXTS(SET_ARRAY)
    add_volumes(c->p.pod);
    replace(&r, &root);
    saved_end();
    c = fixture_find(&r, "a");
    vm = r.registry->vm;
    CONTAINER_FIELDS(EXPECT)
    CONTAINER_TEXTS(EXPECT_TEXT)
    w = &vm->p.wishes;
    WISHES(EXPECT)
    WISHED_TEXTS(EXPECT_TEXT)
    expect_volumes(c->p.pod);
    ASSERT_STR(vm->p.uuid, uuid);
    ASSERT_EQ(c->p.init->wait_id, wait_id); /* the guest is not asked again */
    ASSERT_STR(vm->id, "guest-box@vm");
    ASSERT(vm->p.scratch_path && vm->scratch);
    ASSERT_EQ(vm->p.stage, VM_STAGE_NEGOTIATED);
    ASSERT_EQ(c->kind, SPEC_WORKLOAD);
    ASSERT_STR(c->bundle_path, "/run/gcs/pods/guest-p/guest-a");
    ASSERT_STR(c->root_path, "/run/gcs/pods/guest-p/guest-a/rootfs");
    ASSERT(c->scratch_path && c->layers.n > 0);
    ASSERT_STR(c->p.pod->guest_id, "guest-p");
    ASSERT_EQ(json_array_size(js_get(c->execs[1]->oci_process, "args")), 1);
    r.registry->forsook = false;
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_container_that_containerd_has_given_up_is_ended_by_the_new_program)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    saved_begin();
    open_pod(&r, &root);
    replace_settle(&r, &root);
    container_forsake(fixture_find(&r, "a"));
    replace(&r, &root);
    saved_end();
    freeze(&r, &root, "a", false);
    pass(&root, 30 * NS_PER_S);
    expect_gone(&r, &root, "a");
    fixture_close(&r, ctx);
}

/* --- the Sandbox API --- */

static void begin_sandbox(struct fixture *r, struct ctx *ctx)
{
    AUTO_FREE char *bundle = str_format("%s/s", r->dir);
    const char *const servers[] = { "10.0.0.1", NULL }, *const search[] = { "a.b", NULL };
    const struct sandbox_create c = { .id = "s",
                                      .bundle = bundle,
                                      .netns = "/n",
                                      .spec = "{}",
                                      .dns_servers = servers,
                                      .dns_search = search };
    struct sandbox_view v = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(sandbox_create(ctx, r->registry, &c, &err), err);
    ASSERT_OK(sandbox_start(ctx, r->registry, "s", &v, &err), err);
}

static void expect_sandbox(struct fixture *r)
{
    const struct sandbox *s = r->registry->sandbox;

    ASSERT_STR(s->netns, "/n");
    ASSERT(str_ends(s->bundle, "/s"));
    ASSERT_STR(s->dns.servers[0], "10.0.0.1");
    ASSERT_STR(s->dns.search[0], "a.b");
    ASSERT(container_pod(s->holder)->dns == &s->dns);
    ASSERT(spec_json(s->spec) != NULL);
}

static struct sandbox_view sandbox(struct fixture *r)
{
    struct sandbox_view v = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(sandbox_view(r->registry, "s", &v, &err), err);
    return v;
}

TEST_VIRTUAL(a_sandbox_is_continued_until_it_is_shut_down)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S, .host.network = true };
    struct ctx root = ctx_root(ctx->loop);
    struct sandbox_view before, after;
    struct err err = ERR_INIT;

    saved_begin();
    fixture_open(&r, ctx);
    begin_sandbox(&r, &root);
    add(&r, &root, "a", "container", "s");
    fixture_start(&r, &root, "a", "");
    before = sandbox(&r);
    replace(&r, &root);
    expect_sandbox(&r);
    after = sandbox(&r);
    ASSERT_EQ(after.state, SANDBOX_READY);
    ASSERT(after.pid > 0 && after.pid == before.pid);
    ASSERT_EQ(after.created_wall_ns, before.created_wall_ns);
    ASSERT_OK(sandbox_ping(&root, r.registry, "s", &err), err);
    ASSERT(registry_find(r.registry, "s", &err) == NULL);
    add(&r, &root, "b", "container", "s");
    fixture_start(&r, &root, "b", "");
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 0, &err), err);
    ASSERT_EQ(r.host.net_plugged, 0);
    before = sandbox(&r);
    ASSERT(before.exited_wall_ns > 0);
    ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
    replace(&r, &root); /* one that has ended, and without a VM */
    saved_end();
    after = sandbox(&r);
    ASSERT_EQ(after.state, SANDBOX_SHUT);
    ASSERT_EQ(after.exited_wall_ns, before.exited_wall_ns);
    ASSERT_EQ(after.exit_status, before.exit_status);
    ASSERT(r.registry->sandbox->asked);
    ASSERT(registry_idle(r.registry));
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(the_end_of_a_sandbox_s_vm_is_seen_by_the_new_program)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct sandbox_view v;
    struct err err = ERR_INIT;

    saved_begin();
    fixture_open(&r, ctx);
    begin_sandbox(&r, &root);
    replace(&r, &root);
    fake_vmm_die(r.vmm, FAKE_CRASHED);
    ASSERT_OK(sandbox_wait(&root, r.registry, "s", &v, &err), err);
    ASSERT(v.state == SANDBOX_STOPPED && v.exit_status == EXIT_LOST);
    replace(&r, &root);
    saved_end();
    ASSERT_OK(sandbox_wait(&root, r.registry, "s", &v, &err), err);
    ASSERT(v.state == SANDBOX_STOPPED && v.exit_status == EXIT_LOST);
    fixture_close(&r, ctx);
}

/* --- refused --- */

static void expect_refused(struct fixture *r, const char *why)
{
    AUTO(saved_free) struct saved *s = saved_writer();
    struct err err = ERR_INIT;

    ASSERT_FAIL(replace_save(s, r, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, why);
}

TEST_VIRTUAL(what_is_in_the_middle_of_a_change_is_not_saved)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S, .guest_opts.agent_ns = NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct client c;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "a", "");
    go(&c, &r, &root, "a", create_main);
    pass(&root, NS_PER_MS);
    expect_refused(&r, "the VM is");
    pass(&root, 20 * NS_PER_S);
    ASSERT(c.done && c.ret == 0);
    fixture_start(&r, &root, "a", "");
    fake_vmm_die(r.vmm, FAKE_CRASHED);
    pass(&root, 20 * NS_PER_S);
    expect_refused(&r, "the VM is");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(the_state_of_another_sandbox_is_refused)
{
    struct fixture r = { 0 };
    AUTO(saved_free) struct saved *w = saved_writer(), *s = NULL;
    struct registry *other;
    const void *doc;
    size_t len;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    registry_saved(w, r.registry);
    ASSERT_OK(saved_finish(w, &doc, &len, &err), err);
    ASSERT_OK(saved_reader(doc, len, &s, &err), err);
    other = registry_new(&(struct registry_opts){
        .loop = r.loop, .ns = "test", .id = "another", .config = &r.config, .events = r.events });
    registry_saved(s, other);
    ASSERT_FAIL(saved_check(s, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "box");
    registry_free(other);
    fixture_close(&r, ctx);
}
