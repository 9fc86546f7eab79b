/* The real v1 hierarchies and the real (nearly empty) v2 one of this host, below a path of our own;
 * and made-up hosts in a directory. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "fixture/ledger_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/cgroup_priv.h"
#include "host/ledger/ledger.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- paths --- */

static void expect_path(const char *path, const char *want)
{
    AUTO_FREE char *got = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(cgroup_path_expand(path, &got, &err), err);
    ASSERT_STR(got, want);
}

static void refuse_path(const char *path, const char *why)
{
    AUTO_FREE char *got = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(cgroup_path_expand(path, &got, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, why);
}

TEST(plain_paths_stay_and_are_cleaned)
{
    expect_path("/default/c1", "/default/c1");
    expect_path("//a///b/", "/a/b");
    expect_path("a/b", "a/b");
    expect_path("/", "/");
    expect_path("/with:colon", "/with:colon");
    expect_path("/..a/b..", "/..a/b..");
}

TEST(systemd_s_form_becomes_directories)
{
    expect_path("system.slice:cri-containerd:c1", "/system.slice/cri-containerd-c1.scope");
    expect_path("kubepods-burstable-pod1_2.slice:cri:abc",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/"
                "cri-abc.scope");
    expect_path("-.slice:p:n", "/p-n.scope");
    expect_path(":p:n", "/system.slice/p-n.scope");
    expect_path("a.slice::n", "/a.slice/n.scope");
    expect_path("a.slice:p:b.slice", "/a.slice/b.slice");
}

TEST(paths_that_lead_elsewhere_are_refused)
{
    refuse_path("/a/../b", "\"..\"");
    refuse_path("..", "\"..\"");
    refuse_path("/a/./b", "\".\"");
    refuse_path("a:b", "slice:prefix:name");
    refuse_path("a.slice:b:c:d", "slice:prefix:name");
    refuse_path("a.slice:b:", "slice:prefix:name");
    refuse_path("a:b:c", "does not end in .slice");
    refuse_path("a--b.slice:p:n", "empty part");
    refuse_path("-a.slice:p:n", "empty part");
    refuse_path(".slice:p:n", "empty part");
    refuse_path("/a\nb", "control character");

    char longer[3000];

    memset(longer, 'a', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    refuse_path(longer, "longer than");

    AUTO(sbuf_release) struct sbuf dashes = { 0 };

    for (int i = 0; i < 200; i++)
        sbuf_addf(&dashes, "%sx", i ? "-" : "");
    sbuf_adds(&dashes, ".slice:p:n");
    refuse_path(dashes.data, "longer than");
}

/* --- hosts --- */

struct made_up {
    struct tempdir temp;
};

static void made_up_init(struct made_up *m, const char *mounts, const char *self)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };

    tempdir_init(&m->temp, "/tmp");
    for (const char *p = mounts; *p; p++) { /* @ stands for the place */
        if (*p == '@')
            sbuf_adds(&text, m->temp.dir);
        else
            sbuf_addc(&text, *p);
    }
    ASSERT_EQ(file_write(tempdir_path(&m->temp, "mountinfo"), text.data, text.len, 0600), 0);
    ASSERT_EQ(file_write(tempdir_path(&m->temp, "cgroup"), self, strlen(self), 0600), 0);
}

static void made_up_release_auto(struct made_up *m)
{
    tempdir_release_auto(&m->temp);
}
#define MADE_UP(m, mounts, own)                                                                    \
    AUTO(made_up_release) struct made_up m;                                                        \
    made_up_init(&m, mounts, own)

/* Without systemd: nothing waits, and no ctx is needed. */
static int make_on(struct made_up *m, const char *path, struct ledger *ledger, struct cgroup **ret,
                   struct err *err)
{
    const struct cgroup_host host = { m->temp.dir, "/nonexistent" };

    return cgroup_make_on(NULL, &host, path, ledger, ret, err);
}

TEST(a_v1_host_is_seen_with_its_controllers_and_our_place_in_each)
{
    MADE_UP(m,
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
            "32 31 0:29 / /cg/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
            "33 31 0:30 /docker/x /cg/with\\040blank rw - cgroup cgroup rw,memory\n"
            "34 31 0:31 / /cg/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd\n"
            "35 31 0:29 / /elsewhere/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            "9:name=systemd:/init.scope\n4:memory:/docker/x/mine\n3:cpuset:/\n"
            "1:cpuacct,cpu:/own\n");
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(cgroup_find(m.temp.dir, &h, &err), err);
    ASSERT(!h.v[0].v2);
    ASSERT_EQ(h.n, 3);
    ASSERT_STR(h.v[0].mount_point, "/cg/cpu,cpuacct");
    ASSERT(cgroup_has_controller(&h.v[0], "cpuacct") && !cgroup_has_controller(&h.v[0], "cpua"));
    ASSERT_STR(h.v[0].own, "/own");
    ASSERT_STR(h.v[1].mount_point, "/cg/with blank");
    ASSERT_STR(h.v[1].own, "/mine");
    ASSERT_STR(h.v[2].own, "/init.scope");
}

TEST(a_hybrid_host_counts_as_v1)
{
    MADE_UP(m,
            "32 31 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu\n"
            "33 31 0:30 / /cg/unified rw - cgroup2 cgroup2 rw\n",
            "1:cpu:/\n0::/\n");
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(cgroup_find(m.temp.dir, &h, &err), err);
    ASSERT_EQ(h.n, 1);
    ASSERT_STR(h.v[0].mount_point, "/cg/cpu");
}

TEST(a_host_without_cgroups_is_reported)
{
    MADE_UP(m, "31 23 0:28 / / rw - ext4 /dev/sda rw\nrubbish\n\n1 2 3 - \n", "");
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    struct err err = ERR_INIT;

    ASSERT_FAIL(cgroup_find(m.temp.dir, &h, &err), err, ERR_UNAVAILABLE);
}

static void expect_file(const char *path, const char *want)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(path, 4096, &text, &len), 0);
    ASSERT_STR(text, want);
}

TEST(in_v2_controllers_are_enabled_above)
{
    MADE_UP(m, "33 31 0:30 / @/cg rw - cgroup2 cgroup2 rw\n", "0::/own/part\n");
    AUTO(cgroup_free) struct cgroup *c = NULL;
    struct err err = ERR_INIT;

    /* The kernel would make these. */
    ASSERT_EQ(dir_make(tempdir_path(&m.temp, "cg/own/part/a/b"), 0755), 0);
    file_write(tempdir_path(&m.temp, "cg/cgroup.controllers"), "cpu memory\n", 11, 0600);
    file_write(tempdir_path(&m.temp, "cg/cgroup.subtree_control"), "", 0, 0600);
    file_write(tempdir_path(&m.temp, "cg/own/part/cgroup.controllers"), "memory\n", 7, 0600);
    file_write(tempdir_path(&m.temp, "cg/own/part/cgroup.subtree_control"), "", 0, 0600);
    file_write(tempdir_path(&m.temp, "cg/own/part/a/b/cgroup.procs"), "", 0, 0600);

    ASSERT_OK(make_on(&m, "a/b", NULL, &c, &err), err);
    expect_file(tempdir_path(&m.temp, "cg/cgroup.subtree_control"), "+cpu+memory");
    expect_file(tempdir_path(&m.temp, "cg/own/part/cgroup.subtree_control"), "+memory");
    ASSERT_OK(cgroup_join(c, 4711, &err), err);
    ASSERT_OK(cgroup_join_self(c, &err), err);
    expect_file(tempdir_path(&m.temp, "cg/own/part/a/b/cgroup.procs"), "0711"); /* "0" came last */
    ASSERT_OK(cgroup_remove(c, &err), err); /* it was there before us */
    ASSERT_EQ(access(tempdir_path(&m.temp, "cg/own/part/a/b"), F_OK), 0);
}

TEST(in_v2_processor_time_is_limited_and_weighed)
{
    MADE_UP(m, "33 31 0:30 / @/cg rw - cgroup2 cgroup2 rw\n", "0::/\n");
    AUTO(cgroup_free) struct cgroup *c = NULL;
    struct err err = ERR_INIT;

    ASSERT_EQ(dir_make(tempdir_path(&m.temp, "cg/a"), 0755), 0);
    file_write(tempdir_path(&m.temp, "cg/a/cgroup.procs"), "", 0, 0600);
    ASSERT_OK(make_on(&m, "/a", NULL, &c, &err), err);
    const struct cgroup_cpu limit = { .quota = 150000, .period = 100000, .shares = 1024 },
                            none = { .period = 100000 },
                            must = { .quota = 5000, .period = 100000, .weight = 250, .must = true };

    ASSERT_OK(cgroup_set_cpu(NULL, c, &limit, &err), err); /* no such controller */
    ASSERT_FAIL(cgroup_set_cpu(NULL, c, &must, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "cpu.weight");
    ASSERT_FAIL(cgroup_set_cpu(NULL, NULL, &must, &err), err, ERR_STATE);
    ASSERT_FAIL(cgroup_set_cpuset(NULL, c, "0-1", &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "cpuset.cpus");
    err_clear(&err);
    file_write(tempdir_path(&m.temp, "cg/a/cpu.max"), "", 0, 0600);
    file_write(tempdir_path(&m.temp, "cg/a/cpu.weight"), "", 0, 0600);
    file_write(tempdir_path(&m.temp, "cg/a/cpuset.cpus"), "", 0, 0600);
    ASSERT_OK(cgroup_set_cpu(NULL, c, &limit, &err), err);
    expect_file(tempdir_path(&m.temp, "cg/a/cpu.max"), "150000 100000");
    expect_file(tempdir_path(&m.temp, "cg/a/cpu.weight"), "39");
    file_write(tempdir_path(&m.temp, "cg/a/cpu.max"), "", 0, 0600);
    ASSERT_OK(cgroup_set_cpu(NULL, c, &none, &err), err);
    expect_file(tempdir_path(&m.temp, "cg/a/cpu.max"), "max 100000");
    expect_file(tempdir_path(&m.temp, "cg/a/cpu.weight"), "39"); /* not said: left */
    ASSERT_OK(cgroup_set_cpu(NULL, NULL, &limit, &err), err);
    file_write(tempdir_path(&m.temp, "cg/a/cpu.max"), "", 0, 0600);
    file_write(tempdir_path(&m.temp, "cg/a/cpu.weight"), "", 0, 0600);
    ASSERT_OK(cgroup_set_cpu(NULL, c, &must, &err), err);
    expect_file(tempdir_path(&m.temp, "cg/a/cpu.max"), "5000 100000");
    expect_file(tempdir_path(&m.temp, "cg/a/cpu.weight"), "250");
    ASSERT_OK(cgroup_set_cpuset(NULL, c, "0-1,7", &err), err);
    expect_file(tempdir_path(&m.temp, "cg/a/cpuset.cpus"), "0-1,7");
}

TEST(in_v1_weights_become_shares)
{
    MADE_UP(m,
            "33 31 0:30 / @/cpu rw - cgroup cgroup rw,cpu\n"
            "34 31 0:31 / @/set rw - cgroup cgroup rw,cpuset\n",
            "2:cpu:/\n1:cpuset:/\n");
    static const char *const files[] = { "cpu/a/cpu.shares",       "cpu/a/cpu.cfs_period_us",
                                         "cpu/a/cpu.cfs_quota_us", "cpu/a/cgroup.procs",
                                         "set/a/cgroup.procs",     "set/a/cpuset.mems" };
    AUTO(cgroup_free) struct cgroup *c = NULL;
    struct err err = ERR_INIT;

    ASSERT_EQ(dir_make(tempdir_path(&m.temp, "cpu/a"), 0755), 0);
    ASSERT_EQ(dir_make(tempdir_path(&m.temp, "set/a"), 0755), 0);
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        file_write(tempdir_path(&m.temp, files[i]), i == 5 ? "0" : "", i == 5, 0600);
    file_write(tempdir_path(&m.temp, "set/a/cpuset.cpus"), "0-7", 3, 0600);
    ASSERT_OK(make_on(&m, "/a", NULL, &c, &err), err);
    ASSERT_OK(cgroup_set_cpu(NULL, c,
                             &(struct cgroup_cpu){
                                 .quota = 5000, .period = 100000, .weight = 250, .must = true },
                             &err),
              err);
    expect_file(tempdir_path(&m.temp, files[0]), "2560");
    expect_file(tempdir_path(&m.temp, files[2]), "5000");
    ASSERT_OK(cgroup_set_cpuset(NULL, c, "0-3", &err), err);
    expect_file(tempdir_path(&m.temp, "set/a/cpuset.cpus"), "0-3");
}

TEST(without_a_path_there_is_no_cgroup)
{
    struct cgroup *c = (struct cgroup *)1;
    struct err err = ERR_INIT;

    ASSERT_OK(cgroup_make(NULL, "", NULL, &c, &err), err);
    ASSERT(!c);
    ASSERT_OK(cgroup_remove(NULL, &err), err);
}

/* --- the real ones --- */

struct real {
    struct tempdir temp;
    struct ledger *ledger;
    char top[64];
};

static void real_init(struct real *r)
{
    static unsigned n;
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    struct err err = ERR_INIT;

    if (geteuid() != 0)
        tap_skip("cgroups need root");
    if (cgroup_find(CGROUP_PROC, &h, &err) < 0)
        tap_skip("%s", err.msg);
    if (access(h.v[0].mount_point, W_OK) < 0)
        tap_skip("%s cannot be written to", h.v[0].mount_point);
    memset(r, 0, sizeof(*r));
    tempdir_init(&r->temp, "/tmp");
    ASSERT_OK(ledger_create(tempdir_path(&r->temp, "ns/vm"), &r->ledger, &err), err);
    snprintf(r->top, sizeof(r->top), "/lcow-test-%d-%u", (int)getpid(), n++);
}

/* In how many hierarchies the path exists. */
static unsigned count_dirs(const char *path)
{
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    struct err err = ERR_INIT;
    unsigned n = 0;

    ASSERT_OK(cgroup_find(CGROUP_PROC, &h, &err), err);
    for (size_t i = 0; i < h.n; i++) {
        AUTO_FREE char *dir = str_format("%s%s", h.v[i].mount_point, path);

        n += access(dir, F_OK) == 0;
    }
    return n;
}

static unsigned count_hierarchies(void)
{
    return count_dirs("");
}

static void real_release_auto(struct real *r)
{
    ASSERT_EQ(ledger_fixture_open(r->ledger), 0);
    ASSERT_EQ(count_dirs(r->top), 0);
    ledger_close(r->ledger);
    tempdir_release_auto(&r->temp);
}
#define REAL(r)                                                                                    \
    AUTO(real_release) struct real r;                                                              \
    real_init(&r)

TEST(it_is_made_in_every_hierarchy_and_removed_with_what_is_above)
{
    REAL(r);
    AUTO_FREE char *path = str_format("%s/pod/c1", r.top);
    AUTO(cgroup_free) struct cgroup *c = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(cgroup_make(NULL, path, r.ledger, &c, &err), err);
    ASSERT_EQ(count_dirs(path), count_hierarchies());
    ASSERT_EQ(ledger_fixture_open(r.ledger), 3 * count_hierarchies());
    ASSERT_OK(cgroup_remove(c, &err), err);
    ASSERT_OK(cgroup_remove(c, &err), err);
}

TEST(systemd_s_form_is_made_as_directories)
{
    REAL(r);
    AUTO_FREE char *path = str_format("lcow_test_%d-pod1.slice:cri:c1", (int)getpid()),
                   *want = str_format("/lcow_test_%d.slice/lcow_test_%d-pod1.slice/cri-c1.scope",
                                      (int)getpid(), (int)getpid());
    AUTO(cgroup_free) struct cgroup *c = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(cgroup_make(NULL, path, r.ledger, &c, &err), err);
    ASSERT_EQ(count_dirs(want), count_hierarchies());
    ASSERT_OK(cgroup_remove(c, &err), err);
    ASSERT_EQ(count_dirs(want), 0);
}

static int join_in_child(void *arg, struct err *err)
{
    return cgroup_join_self(arg, err);
}

/* In all hierarchies of ours the process is in that cgroup. */
static void expect_inside(pid_t pid, const char *path)
{
    AUTO_FREE char *file = str_format("/proc/%d/cgroup", (int)pid), *text = NULL;
    size_t len;
    unsigned n = 0;

    ASSERT_EQ(file_read_all(file, 65536, &text, &len), 0);
    for (const char *p = text; (p = strstr(p, path)); p++)
        n += p[strlen(path)] == '\n';
    ASSERT_EQ(n, count_hierarchies());
}

/* With many fds of its own, none of which may be taken for the cgroup's. */
static struct child *spawn_inside(struct ctx *ctx, struct cgroup *c,
                                  int (*setup)(void *, struct err *))
{
    static const char *const argv[] = { "sleep", "60", NULL };
    AUTO_FD int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct child_fd fds[56];
    struct child *child;
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = (struct child_fd){ null, 3 + (int)i };
    ASSERT_OK(child_spawn(ctx,
                          &(struct child_opts){ .argv = argv,
                                                .fds = fds,
                                                .n_fds = ARRAY_LEN(fds),
                                                .die_with_us = true,
                                                .setup = setup,
                                                .setup_arg = c },
                          &child, &err),
              err);
    return child;
}

TEST_FIBER(a_child_joins_before_it_runs_and_keeps_the_cgroup_busy)
{
    REAL(r);
    AUTO_FREE char *path = str_format("%s/c1", r.top);
    AUTO(cgroup_free) struct cgroup *c = NULL;
    AUTO(child_free) struct child *child = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(cgroup_make(NULL, path, r.ledger, &c, &err), err);
    child = spawn_inside(ctx, c, join_in_child);
    expect_inside(child_pid(child), path);
    ASSERT_FAIL(cgroup_remove(c, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "/c1");
    ASSERT_EQ(child_kill(child, SIGKILL), 0);
    ASSERT_OK(child_wait(ctx, child, &status, &err), err);
    ASSERT_OK(cgroup_remove(c, &err), err);
}

TEST_FIBER(a_process_is_moved_by_its_pid)
{
    REAL(r);
    AUTO(cgroup_free) struct cgroup *c = NULL;
    AUTO(child_free) struct child *child = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(cgroup_make(NULL, r.top, r.ledger, &c, &err), err);
    child = spawn_inside(ctx, c, NULL);
    ASSERT_OK(cgroup_join(c, child_pid(child), &err), err);
    expect_inside(child_pid(child), r.top);
    ASSERT_EQ(child_kill(child, SIGKILL), 0);
    ASSERT_OK(child_wait(ctx, child, &status, &err), err);
    ASSERT_FAIL(cgroup_join(c, child_pid(child), &err), err, ERR_NOT_FOUND);
    ASSERT_OK(cgroup_remove(c, &err), err);
}

/* As the shim does, which is in its pod's cgroup. */
TEST_FIBER(a_process_that_goes_home_leaves_it_to_be_removed)
{
    REAL(r);
    AUTO(cgroup_free) struct cgroup *c = NULL, *home = NULL;
    AUTO(child_free) struct child *child = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(cgroup_current(&home, &err), err);
    ASSERT_OK(cgroup_make(NULL, r.top, r.ledger, &c, &err), err);
    child = spawn_inside(ctx, c, join_in_child);
    ASSERT_FAIL(cgroup_remove(c, &err), err, ERR_STATE);
    ASSERT_OK(cgroup_join(home, child_pid(child), &err), err);
    ASSERT_OK(cgroup_remove(c, &err), err);
    ASSERT_EQ(count_dirs(r.top), 0);
    ASSERT_OK(cgroup_remove(home, &err), err); /* which is not ours */
    ASSERT_EQ(child_kill(child, SIGKILL), 0);
    ASSERT_OK(child_wait(ctx, child, &status, &err), err);
}

TEST(what_others_use_above_stays_theirs)
{
    REAL(r);
    AUTO_FREE char *first = str_format("%s/c1", r.top), *second = str_format("%s/c2", r.top);
    AUTO(cgroup_free) struct cgroup *a = NULL, *b = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(cgroup_make(NULL, first, r.ledger, &a, &err), err);
    ASSERT_OK(cgroup_make(NULL, second, NULL, &b, &err), err);
    ASSERT_OK(cgroup_remove(a, &err), err);
    ASSERT_EQ(count_dirs(second), count_hierarchies());
    ASSERT_EQ(ledger_fixture_open(r.ledger), 0);
    ASSERT_OK(cgroup_remove(b, &err), err);
    ASSERT_EQ(count_dirs(r.top), count_hierarchies());
    /* For the test's own tidiness. */
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    ASSERT_OK(cgroup_find(CGROUP_PROC, &h, &err), err);
    for (size_t i = 0; i < h.n; i++) {
        AUTO_FREE char *dir = str_format("%s%s", h.v[i].mount_point, r.top);
        ASSERT_EQ(rmdir(dir), 0);
    }
}

TEST_FIBER(a_ledger_alone_removes_it)
{
    REAL(r);
    AUTO_FREE char *dir = str_dup(tempdir_path(&r.temp, "ns/other")),
                   *path = str_format("%s/pod/c1", r.top), *theirs = str_format("%s/c2", r.top);
    struct ledger *other = NULL;
    AUTO(cgroup_free) struct cgroup *c = NULL, *b = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(dir, &other, &err), err);
    ASSERT_OK(cgroup_make(NULL, theirs, r.ledger, &b, &err), err);
    ASSERT_OK(cgroup_make(NULL, path, other, &c, &err), err);
    ledger_close(other); /* as if we had died */
    ASSERT_OK(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err);
    ASSERT_EQ(count_dirs(path), 0);
    ASSERT_EQ(count_dirs(theirs), count_hierarchies());
    ASSERT_OK(cgroup_remove(b, &err), err);
}

TEST_FIBER(a_ledger_leaves_to_others_what_they_use)
{
    REAL(r);
    AUTO_FREE char *dir = str_dup(tempdir_path(&r.temp, "ns/other")),
                   *path = str_format("%s/c1", r.top), *theirs = str_format("%s/c2", r.top);
    struct ledger *other = NULL;
    AUTO(cgroup_free) struct cgroup *c = NULL, *b = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(dir, &other, &err), err);
    ASSERT_OK(cgroup_make(NULL, path, other, &c, &err), err);
    ASSERT_OK(cgroup_make(NULL, theirs, r.ledger, &b, &err), err);
    ledger_close(other);
    ASSERT_OK(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err);
    ASSERT_EQ(count_dirs(path), 0);
    ASSERT_EQ(count_dirs(theirs), count_hierarchies());
    ASSERT_OK(cgroup_remove(b, &err), err);

    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    ASSERT_OK(cgroup_find(CGROUP_PROC, &h, &err), err);
    for (size_t i = 0; i < h.n; i++) {
        AUTO_FREE char *top = str_format("%s%s", h.v[i].mount_point, r.top);
        ASSERT_EQ(rmdir(top), 0);
    }
}

/* v2 for real: this host's own, as if it were the only one. */
TEST_FIBER(v2_is_made_joined_and_removed)
{
    REAL(r);
    struct err err = ERR_INIT;
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    AUTO_FREE char *mounts = NULL, *at = NULL, *path = str_format("%s/pod/c1", r.top);
    char *save = NULL;
    size_t len;

    ASSERT_EQ(file_read_all("/proc/self/mountinfo", 1 << 20, &mounts, &len), 0);
    for (char *line = strtok_r(mounts, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (strstr(line, " - cgroup2 "))
            at = str_dup(line);
    if (!at)
        tap_skip("no cgroup2 is mounted here");

    AUTO_FREE char *only = str_format("%s\n", at);
    MADE_UP(m, only, "0::/\n");
    AUTO(cgroup_free) struct cgroup *c = NULL, *home = NULL;
    AUTO(child_free) struct child *child = NULL;
    AUTO_FREE char *dir = NULL, *file = NULL, *text = NULL, *want = str_format("0::%s\n", path);
    int status;

    ASSERT_OK(cgroup_find(m.temp.dir, &h, &err), err);
    ASSERT(h.v[0].v2);
    dir = str_format("%s%s", h.v[0].mount_point, path);
    ASSERT_OK(make_on(&m, path, r.ledger, &c, &err), err);
    ASSERT_EQ(access(dir, F_OK), 0);
    child = spawn_inside(ctx, c, join_in_child);
    file = str_format("/proc/%d/cgroup", child_pid(child));
    ASSERT_EQ(file_read_all(file, 65536, &text, &len), 0);
    ASSERT_HAS(text, want);
    ASSERT_OK(cgroup_current_on(m.temp.dir, &home, &err), err);
    ASSERT_FAIL(cgroup_remove(c, &err), err, ERR_STATE);
    ASSERT_OK(cgroup_join(home, child_pid(child), &err), err);
    ASSERT_OK(cgroup_remove(c, &err), err);
    ASSERT(access(dir, F_OK) < 0);
    ASSERT_EQ(child_kill(child, SIGKILL), 0);
    ASSERT_OK(child_wait(ctx, child, &status, &err), err);
}
