#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "fixture/handover_fixture.h"
#include "fixture/ledger_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/anchor_priv.h"
#include "host/jail/cgroup.h"
#include "host/ledger/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture {
    struct ctx *ctx;
    struct tempdir temp;
    struct ledger *ledger;
    struct anchor_opts opts;
    struct anchor *anchor;
};

static void fixture_init(struct fixture *r, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    memset(r, 0, sizeof(*r));
    r->ctx = ctx;
    tempdir_init(&r->temp, "/tmp");
    ASSERT_OK(ledger_create(tempdir_path(&r->temp, "ns/vm"), &r->ledger, &err), err);
    r->opts = (struct anchor_opts){ .id = "container-1", .ledger = r->ledger };
}

static void fixture_release_auto(struct fixture *r)
{
    anchor_free(r->anchor);
    ASSERT_EQ(ledger_fixture_open(r->ledger), 0);
    ledger_close(r->ledger);
    tempdir_release_auto(&r->temp);
}
#define FIXTURE(r)                                                                                 \
    AUTO(fixture_release) struct fixture r;                                                        \
    fixture_init(&r, ctx)

static void fixture_spawn(struct fixture *r)
{
    struct err err = ERR_INIT;

    ASSERT_OK(anchor_spawn(r->ctx, &r->opts, &r->anchor, &err), err);
}

/* Caller frees. */
static char *proc(const struct fixture *r, const char *file)
{
    AUTO_FREE char *path = str_format("/proc/%d/%s", (int)anchor_pid(r->anchor), file);
    char *text = NULL;
    size_t len = 0;

    ASSERT_EQ(file_read_all(path, 65536, &text, &len), 0);
    for (size_t i = 0; i + 1 < len; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    return text;
}

/* It runs by now; then it takes its name and goes to sleep. */
static void fixture_await_sleep(struct fixture *r)
{
    struct err err = ERR_INIT;

    for (;;) {
        AUTO_FREE char *comm = proc(r, "comm"), *status = proc(r, "status");

        if (str_eq(comm, "lcow-anchor\n") && strstr(status, "(sleeping)"))
            return;
        ASSERT_OK(fiber_sleep(r->ctx, NS_PER_MS, &err), err);
    }
}

static uint64_t netns_of(const char *path)
{
    struct stat st;

    ASSERT_EQ(stat(path, &st), 0);
    return st.st_ino;
}

static uint64_t netns_of_anchor(const struct fixture *r)
{
    AUTO_FREE char *path = str_format("/proc/%d/ns/net", (int)anchor_pid(r->anchor));

    return netns_of(path);
}

static void need_root(void)
{
    if (geteuid() != 0)
        tap_skip("namespaces and cgroups need root");
}

TEST_FIBER(an_anchor_is_a_process_with_its_container_s_name)
{
    FIXTURE(r);
    fixture_spawn(&r);
    fixture_await_sleep(&r);
    AUTO_FREE char *cmdline = proc(&r, "cmdline"), *environ_text = proc(&r, "environ"),
                   *status = proc(&r, "status");

    ASSERT_STR(cmdline, "lcow-anchor container-1");
    ASSERT_STR(environ_text, "");
    ASSERT_HAS(status, "State:\tS (sleeping)");
    ASSERT_EQ(ledger_fixture_open(r.ledger), 1);
    ASSERT_EQ(netns_of_anchor(&r), netns_of("/proc/self/ns/net"));
    ASSERT_EQ(getsid(anchor_pid(r.anchor)), anchor_pid(r.anchor));
}

/* What enters its namespaces finds nothing of the host there. */
TEST_FIBER(an_anchor_apart_shares_no_files_names_or_memory_with_the_host)
{
    need_root();
    FIXTURE(r);
    r.opts.apart = true;
    fixture_spawn(&r);
    fixture_await_sleep(&r);
    for (const char *const *ns = (const char *const[]){ "mnt", "uts", "ipc", NULL }; *ns; ns++) {
        AUTO_FREE char *its = str_format("/proc/%d/ns/%s", (int)anchor_pid(r.anchor), *ns);
        AUTO_FREE char *ours = str_format("/proc/self/ns/%s", *ns);

        ASSERT(netns_of(its) != netns_of(ours));
    }
    AUTO_FREE char *mounts = proc(&r, "mounts"), *root = NULL;

    ASSERT(str_starts(mounts, "none / tmpfs ro,") && strchr(mounts, '\n')[1] == '\0');
    root = str_format("/proc/%d/root/etc", (int)anchor_pid(r.anchor));
    ASSERT_EQ(access(root, F_OK), -1);
    ASSERT_EQ(netns_of_anchor(&r), netns_of("/proc/self/ns/net"));
}

/* Measured: 8 to 12 KiB, all of it private. */
TEST_FIBER(an_anchor_is_small)
{
    FIXTURE(r);
    fixture_spawn(&r);
    fixture_await_sleep(&r);
    ASSERT(anchor_blob_len < 1024);

    AUTO_FREE char *smaps = proc(&r, "smaps_rollup");
    unsigned long private = 0, pss = 0, n;

    for (const char *p = smaps; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        if (sscanf(p, "Private_Dirty: %lu", &n) == 1 || sscanf(p, "Private_Clean: %lu", &n) == 1)
        private += n;
        if (sscanf(p, "Pss: %lu", &n) == 1)
            pss = n;
    }
    printf("# private %lu KiB, PSS %lu KiB\n", private, pss);
    ASSERT(private > 0 && private <= 16);
    ASSERT(pss <= 16);
}

TEST_FIBER(an_anchor_holds_no_file_but_its_three)
{
    FIXTURE(r);
    fixture_spawn(&r);
    for (int fd = 0; fd < 1024; fd++) {
        AUTO_FREE char *path = str_format("/proc/%d/fd/%d", (int)anchor_pid(r.anchor), fd);
        struct stat st;

        if ((lstat(path, &st) == 0) != (fd < 3))
            tap_fail(__FILE__, __LINE__, "fd %d", fd);
    }
}

TEST_FIBER(an_end_by_us_is_reported)
{
    FIXTURE(r);
    bool by_us = false;
    struct err err = ERR_INIT;

    fixture_spawn(&r);
    anchor_end(r.anchor);
    ASSERT_OK(anchor_wait(ctx, r.anchor, &by_us, &err), err);
    ASSERT(by_us);
    anchor_end(r.anchor); /* repeatable */
    ASSERT_OK(anchor_wait(ctx, r.anchor, &by_us, &err), err);
    ASSERT(by_us);
}

TEST_FIBER(a_kill_by_another_process_is_reported)
{
    FIXTURE(r);
    bool by_us = true;
    struct err err = ERR_INIT;

    fixture_spawn(&r);
    ASSERT_EQ(kill(anchor_pid(r.anchor), SIGTERM), 0);
    ASSERT_OK(anchor_wait(ctx, r.anchor, &by_us, &err), err);
    ASSERT(!by_us);
    anchor_end(r.anchor);
    ASSERT_OK(anchor_wait(ctx, r.anchor, &by_us, &err), err);
    ASSERT(!by_us);
}

TEST_FIBER(waiting_has_a_deadline_and_leaves_it_alive)
{
    FIXTURE(r);
    struct ctx brief = ctx_with_timeout(ctx, 10 * NS_PER_MS);
    bool by_us;
    struct err err = ERR_INIT;

    fixture_spawn(&r);
    ASSERT_FAIL(anchor_wait(&brief, r.anchor, &by_us, &err), err, ERR_DEADLINE);
    ASSERT_EQ(kill(anchor_pid(r.anchor), 0), 0);
}

TEST_FIBER(freeing_ends_it)
{
    FIXTURE(r);
    fixture_spawn(&r);

    pid_t pid = anchor_pid(r.anchor);

    anchor_free(TAKE_PTR(r.anchor));
    ASSERT_EQ(proc_start_time(pid), 0);
    ASSERT_EQ(ledger_fixture_open(r.ledger), 0);
}

struct teller {
    struct loop *loop;
    int fd;
};

static void tell_main(void *arg)
{
    struct teller *t = arg;
    struct ctx root = ctx_root(t->loop), ctx = ctx_with_timeout(&root, 60 * NS_PER_S);
    struct anchor_opts opts = { .id = "of a dead one" };
    struct anchor *a = NULL;
    struct err err = ERR_INIT;
    bool by_us;

    if (anchor_spawn(&ctx, &opts, &a, &err) < 0)
        _exit(2);

    pid_t pid = anchor_pid(a);

    if (write(t->fd, &pid, sizeof(pid)) != sizeof(pid))
        _exit(3);
    (void)anchor_wait(&ctx, a, &by_us, &err);
    _exit(4);
}

static void spawn_and_tell(struct loop *loop, int fd)
{
    struct teller t = { loop, fd };

    fiber_go(loop, tell_main, &t, "teller");
    loop_run(loop);
}

/* A process of its own spawns one and is killed. */
TEST_FIBER(it_dies_with_us)
{
    FIXTURE(r);
    fixture_spawn(&r);

    AUTO_FREE char *stat_text = proc(&r, "status");
    AUTO_FREE char *want = str_format("PPid:\t%d\n", (int)getpid());

    ASSERT_HAS(stat_text, want);

    int fds[2];
    pid_t anchor = 0;

    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    fflush(stdout);

    pid_t parent = fork();

    if (parent == 0) {
        struct loop *loop = loop_new(NULL);
        extern void spawn_and_tell(struct loop * loop, int fd);

        spawn_and_tell(loop, fds[1]);
        _exit(1);
    }
    close(fds[1]);
    ASSERT_EQ(read(fds[0], &anchor, sizeof(anchor)), sizeof(anchor));
    close(fds[0]);
    ASSERT_EQ(kill(anchor, 0), 0);
    ASSERT_EQ(kill(parent, SIGKILL), 0);
    ASSERT_EQ(waitpid(parent, NULL, 0), parent);

    struct err err = ERR_INIT;

    /* It is reaped by the process that adopts it, not by us. A zombie counts as ended. */
    for (;;) {
        AUTO_FREE char *path = str_format("/proc/%d/stat", (int)anchor), *text = NULL;
        size_t len;

        if (file_read_all(path, 4096, &text, &len) < 0 || strstr(text, ") Z "))
            break;
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    }
}

TEST_FIBER(it_joins_a_network_namespace_by_path)
{
    need_root();
    FIXTURE(r);
    FIXTURE(holder);
    AUTO_FREE char *path = NULL;

    holder.opts.own_netns = true;
    fixture_spawn(&holder);
    path = str_format("/proc/%d/ns/net", (int)anchor_pid(holder.anchor));
    r.opts.netns = path;
    r.opts.own_netns = true; /* the path wins */
    fixture_spawn(&r);
    ASSERT_EQ(netns_of_anchor(&r), netns_of(path));
    ASSERT(netns_of_anchor(&r) != netns_of("/proc/self/ns/net"));
}

TEST_FIBER(a_path_that_is_not_a_network_namespace_is_refused)
{
    need_root();
    FIXTURE(r);
    const char *const bad[] = { "/proc/self/ns/mnt", "/dev/null", "/etc/passwd", "/" };
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        r.opts.netns = bad[i];
        ASSERT_FAIL(anchor_spawn(ctx, &r.opts, &r.anchor, &err), err, ERR_INVALID);
        ASSERT_EQ(err.reason, REASON_NETNS_MISSING);
        ASSERT_HAS(err.msg, bad[i]);
    }
    r.opts.netns = "/var/run/netns/not-there";
    ASSERT_FAIL(anchor_spawn(ctx, &r.opts, &r.anchor, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "container-1");
}

TEST_FIBER(it_is_in_its_cgroup_and_not_for_the_oom_killer)
{
    need_root();
    FIXTURE(r);
    AUTO_FREE char *path = str_format("/lcow-test-anchor-%d", (int)getpid());
    AUTO(cgroup_free) struct cgroup *c = NULL;
    struct err err = ERR_INIT;

    if (cgroup_make(ctx, path, r.ledger, &c, &err) < 0)
        tap_skip("%s", err.msg);
    r.opts.cgroup = c;
    fixture_spawn(&r);

    AUTO_FREE char *cgroup = proc(&r, "cgroup"), *score = proc(&r, "oom_score_adj");

    ASSERT_HAS(cgroup, path);
    /* Or we have no right to lower a score. */
    ASSERT(str_eq(score, "-1000\n") || file_put("/proc/self/oom_score_adj", "-1000") < 0);
    anchor_free(TAKE_PTR(r.anchor));
    ASSERT_OK(cgroup_remove(c, &err), err);
}

TEST_FIBER(a_ledger_alone_ends_it)
{
    FIXTURE(r);
    AUTO_FREE char *copy = str_dup(tempdir_path(&r.temp, "ns/copy")), *text = NULL;
    struct err err = ERR_INIT;
    bool by_us = true;
    size_t len;

    fixture_spawn(&r);
    ASSERT_EQ(file_read_all(tempdir_path(&r.temp, "ns/vm/ledger"), 65536, &text, &len), 0);
    ASSERT_EQ(dir_make(copy, 0700), 0);
    ASSERT_EQ(file_write(tempdir_path(&r.temp, "ns/copy/ledger"), text, len, 0600), 0);
    ASSERT_OK(ledger_reclaim(ctx, copy, false, NULL, NULL, &err), err);
    ASSERT_OK(anchor_wait(ctx, r.anchor, &by_us, &err), err);
    ASSERT(!by_us);
}

/* Its child is tested in base: here the record and who ended it. A second object has the same
 * process; the first is dropped as by an exec. */
TEST_FIBER(a_saved_anchor_stands_on)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct anchor *old, *a = NULL;
    struct err err = ERR_INIT;
    bool by_us = true;

    FIXTURE(f);
    fixture_spawn(&f);
    old = f.anchor;
    pid_t pid = anchor_pid(old);
    old->by_us = true;
    anchor_saved(writer, 1, ctx->loop, f.ledger, &old);
    reader = saved_fixture_read(writer);
    ASSERT_OK(saved_check(writer, &err), err);

    /* The old program's child would reap the process. */
    struct loop *other = loop_new(NULL);
    anchor_saved(reader, 1, other, f.ledger, &a);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT_EQ(anchor_pid(a), pid);
    ASSERT(a->by_us);
    ASSERT(old->record && a->record == old->record);
    ASSERT(a->ledger == f.ledger);
    old->by_us = false;
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_OK(anchor_wait(ctx, old, &by_us, &err), err);
    ASSERT(!by_us);
    child_leave(old->child);
    old->child = NULL;
    old->record = 0; /* the new one's */
    free(TAKE_PTR(f.anchor));
    free(TAKE_PTR(a->child)); /* its descriptor was the old one's */
    anchor_free(a);
    loop_free(other);
}
