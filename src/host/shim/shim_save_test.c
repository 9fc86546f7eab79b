/* shim_save_test.c - what a shim knows of itself, for the next program. */
#include "base/fd.h"
#include "base/loop.h"
#include "fixture/saved_fixture.h"
#include "host/shim/serve_priv.h"
#include "host/shim/shim_priv.h"
#include "host/shim/tracer.h"
#include "host/shim/watch.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct shim_args args = { .ns = "k8s.io", .id = "pod1" };

static void shim_begin(struct shim *s)
{
    *s = (struct shim){ .args = &args, .address_fd = -1 };
    config_init(&s->config);
}

static void shim_end(struct shim *s)
{
    config_release(&s->config);
    bootstrap_release(&s->options);
    group_file_release(&s->file);
}

static void fill(struct shim *s)
{
    char *const texts[] = { "ttrpc", "grpc", "sockets", "conf", "body", "cgroup", "images" };
    struct bootstrap *b = &s->options;

    free(s->config.run_root);
    s->config.run_root = str_dup("/elsewhere");
    strv_add(&s->config.default_annotations, "io.lcow.cpus=3");
    *b = (struct bootstrap){ .params = true,
                             .has_log_level = true,
                             .log_level = LOG_WARN,
                             .memory_mib = 300,
                             .cpus = 5,
                             .has_scrub_logs = true,
                             .scrub_logs = true };
    b->ttrpc_address = str_dup(texts[0]);
    b->grpc_address = str_dup(texts[1]);
    b->socket_dir = str_dup(texts[2]);
    b->config_path = str_dup(texts[3]);
    b->config_body = str_dup(texts[4]);
    b->shim_cgroup = str_dup(texts[5]);
    b->image_dir = str_dup(texts[6]);
    strv_add(&b->annotations, "a=1");
    strv_add(&b->annotations, "b=2");
    strv_add(&b->notes, "c: ignored");
    s->file = (struct group_file){ .group = str_dup("group"),
                                   .address = str_dup("unix:///s"),
                                   .run_root = str_dup("/run/x"),
                                   .scratch_dir = str_dup("/var/x"),
                                   .shim = str_dup("77.5"),
                                   .home = str_dup("/bundle") };
    s->socket.st_ino = 501;
    s->socket.st_dev = 502;
    s->erred = true;
    s->upgrade.token = 601;
    s->upgrade.begun_ns = 602;
    snprintf(s->upgrade.from, sizeof(s->upgrade.from), "0.1.2");
    s->address_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void expect_options(const struct bootstrap *b)
{
    ASSERT(b->params && b->has_log_level && b->has_scrub_logs && b->scrub_logs);
    ASSERT_EQ(b->log_level, LOG_WARN);
    ASSERT_EQ(b->memory_mib, 300);
    ASSERT_EQ(b->cpus, 5);
    ASSERT_STR(b->ttrpc_address, "ttrpc");
    ASSERT_STR(b->grpc_address, "grpc");
    ASSERT_STR(b->socket_dir, "sockets");
    ASSERT_STR(b->config_path, "conf");
    ASSERT_STR(b->config_body, "body");
    ASSERT_STR(b->shim_cgroup, "cgroup");
    ASSERT_STR(b->image_dir, "images");
    ASSERT_EQ(b->annotations.n, 2);
    ASSERT_STR(b->annotations.v[1], "b=2");
    ASSERT_EQ(b->notes.n, 1);
    ASSERT_STR(b->notes.v[0], "c: ignored");
}

static void expect(const struct shim *s, int fd)
{
    ASSERT_STR(s->config.run_root, "/elsewhere");
    ASSERT_EQ(s->config.default_annotations.n, 1);
    ASSERT_STR(s->config.default_annotations.v[0], "io.lcow.cpus=3");
    expect_options(&s->options);
    ASSERT_STR(s->file.group, "group");
    ASSERT_STR(s->file.address, "unix:///s");
    ASSERT_STR(s->file.run_root, "/run/x");
    ASSERT_STR(s->file.scratch_dir, "/var/x");
    ASSERT_STR(s->file.shim, "77.5");
    ASSERT_STR(s->file.home, "/bundle");
    ASSERT_EQ(s->socket.st_ino, 501);
    ASSERT_EQ(s->socket.st_dev, 502);
    ASSERT(s->erred);
    ASSERT_EQ(s->upgrade.token, 601);
    ASSERT_EQ(s->upgrade.begun_ns, 602);
    ASSERT_STR(s->upgrade.from, "0.1.2");
    ASSERT_EQ(s->address_fd, fd);
}

TEST(the_next_program_knows_what_the_shim_was_started_with)
{
    struct shim from, to;

    shim_begin(&from);
    shim_begin(&to);
    fill(&from);
    SAVED_PASS_ON(w, shim_saved_head(w, &from), , s, shim_saved_head(s, &to), again,
                  shim_saved_head(again, &to));
    expect(&to, from.address_fd);
    fd_close(from.address_fd);
    shim_end(&from);
    shim_end(&to);
}

static void refuse(const struct shim_args *other, struct shim *from)
{
    AUTO(saved_free) struct saved *w = saved_writer(), *s = NULL;
    struct shim to;
    struct err err = ERR_INIT;
    const void *doc;
    size_t len;

    shim_saved_head(w, from);
    ASSERT_OK(saved_finish(w, &doc, &len, &err), err);
    ASSERT_OK(saved_reader(doc, len, &s, &err), err);
    shim_begin(&to);
    to.args = other;
    shim_saved_head(s, &to);
    ASSERT_FAIL(saved_check(s, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "k8s.io/pod1");
    shim_end(&to);
}

TEST(the_state_of_another_sandbox_is_refused)
{
    struct shim from;

    shim_begin(&from);
    refuse(&(struct shim_args){ .ns = "k8s.io", .id = "pod2" }, &from);
    refuse(&(struct shim_args){ .ns = "default", .id = "pod1" }, &from);
    shim_end(&from);
}

/* What service, watch and tracer remember, as they write it. */
static void asked(struct saved *w)
{
    saved_u64(w, 3, &(uint64_t){ 3 });
}

static void watched(struct saved *w)
{
    for (uint32_t field = 1; field <= 5; field++)
        saved_u64(w, field, &(uint64_t){ field == 3 ? 1 : 700 + field });
}

static void traced(struct saved *w)
{
    saved_u32(w, 1, &(uint32_t){ 0 });
    saved_u64(w, 4, &(uint64_t){ 801 });
    saved_u64(w, 5, &(uint64_t){ 802 });
}

static void write_body(struct saved *w)
{
    ASSERT(saved_open(w, 22));
    asked(w);
    saved_close(w);
    ASSERT(saved_open(w, 23));
    watched(w);
    saved_close(w);
    ASSERT(saved_open(w, 25));
    traced(w);
    saved_close(w);
}

static void expect_watched(struct watch *watch)
{
    AUTO(saved_free) struct saved *is = saved_writer(), *want = saved_writer();
    struct err err = ERR_INIT;
    const void *doc;
    size_t len;

    watched(want);
    ASSERT_OK(saved_finish(want, &doc, &len, &err), err);
    watch_saved(is, watch);
    saved_expect_same(is, doc, len);
}

/* The simulation has the rest of the body. No fiber of theirs runs. */
TEST(service_watch_and_tracer_remember)
{
    struct loop *loop = loop_new(&(struct loop_opts){ .virtual_time = true });
    const struct service_opts o = { .loop = loop };
    AUTO(saved_free) struct saved *w = saved_writer(), *s = NULL;
    struct shim to = { .service = service_new(&o) };
    struct err err = ERR_INIT;
    const void *doc;
    size_t len;

    saved_begin(); /* what fibers begin with that never run */
    to.watch = watch_new(&(struct watch_opts){ .loop = loop, .service = to.service });
    ASSERT_OK(tracer_new(
                  &(struct tracer_opts){
                      .loop = loop, .endpoint = "http://h:1", .ns = "k8s.io", .id = "pod1" },
                  &to.tracer, &err),
              err);
    saved_end();
    write_body(w);
    ASSERT_OK(saved_finish(w, &doc, &len, &err), err);
    ASSERT_OK(saved_reader(doc, len, &s, &err), err);
    shim_saved_body(s, &to);
    ASSERT_OK(saved_check(s, &err), err);
    ASSERT_EQ(service_asked_to_leave(to.service), 3);
    expect_watched(to.watch);
    ASSERT_EQ(tracer_sink(to.tracer)->sent, 801);
    ASSERT_EQ(tracer_sink(to.tracer)->lost, 802);
    watch_free(to.watch);
    tracer_free(to.tracer);
    service_free(to.service);
    loop_free(loop);
}
