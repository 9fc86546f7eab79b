/* Scopes, asked of programs that do what systemd's do: they are found by PATH. The real ones are in
 * tests/host. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "fixture/handover_fixture.h"
#include "fixture/ledger_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/cgroup_priv.h"
#include "host/ledger/ledger.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_GIVEN "kubepods-pod1.slice:cri-containerd:abc"
#define DIR_MADE "cg/kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope"

static const char run_script[] = "#!/bin/sh\n"
                                 "top=${0%/*}/..\n"
                                 "echo \"$@\" >>$top/asked\n"
                                 "[ ! -e $top/refuse ] || { cat $top/refuse >&2; exit 1; }\n"
                                 "[ ! -e $top/hang ] || exec sleep 60\n"
                                 "mkdir -p $top/" DIR_MADE "; : >$top/" DIR_MADE "/cgroup.procs\n"
                                 "[ ! -e $top/race ] || exit 1\n"
                                 "echo $$ >$top/keeper\n"
                                 "while [ \"$1\" != -- ]; do shift; done; shift\n"
                                 "exec \"$@\"\n";
static const char ctl_script[] = "#!/bin/sh\ntop=${0%/*}/..\necho \"$@\" >>$top/asked\n"
                                 "[ ! -e $top/refuse ] || { cat $top/refuse >&2; exit 1; }\n";

struct fixture {
    struct ctx *ctx;
    struct tempdir temp;
    struct ledger *ledger;
    struct cgroup_host host;
    char *systemd, *path_before;
    struct cgroup *cgroup;
};

static void put(struct fixture *f, const char *name, const char *text, int mode)
{
    ASSERT_EQ(file_write(tempdir_path(&f->temp, name), text, strlen(text), 0600), 0);
    ASSERT_EQ(chmod(tempdir_path(&f->temp, name), (mode_t)mode), 0);
}

static void fixture_init(struct fixture *f, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    *f = (struct fixture){ .ctx = ctx, .path_before = str_dup(getenv("PATH")) };
    tempdir_init(&f->temp, "/tmp");

    AUTO_FREE char *mounts =
                       str_format("33 31 0:30 / %s/cg rw - cgroup2 cgroup2 rw\n", f->temp.dir),
                   *path = str_format("%s/bin:/usr/bin:/bin", f->temp.dir);

    ASSERT_EQ(dir_make(tempdir_path(&f->temp, "bin"), 0755), 0);
    ASSERT_EQ(dir_make(tempdir_path(&f->temp, "cg"), 0755), 0);
    ASSERT_EQ(dir_make(tempdir_path(&f->temp, "systemd"), 0755), 0);
    put(f, "mountinfo", mounts, 0600);
    put(f, "cgroup", "0::/\n", 0600);
    put(f, "asked", "", 0600);
    put(f, "bin/systemd-run", run_script, 0700);
    put(f, "bin/systemctl", ctl_script, 0700);
    setenv("PATH", path, 1);
    f->systemd = str_dup(tempdir_path(&f->temp, "systemd"));
    f->host = (struct cgroup_host){ f->temp.dir, f->systemd };
    ASSERT_OK(ledger_create(tempdir_path(&f->temp, "ns/vm"), &f->ledger, &err), err);
}

static void fixture_release_auto(struct fixture *f)
{
    setenv("PATH", f->path_before, 1);
    cgroup_free(f->cgroup);
    ASSERT_EQ(ledger_fixture_open(f->ledger), 0);
    ledger_close(f->ledger);
    free(f->systemd);
    free(f->path_before);
    tempdir_release_auto(&f->temp);
}
#define FIXTURE(f)                                                                                 \
    AUTO(fixture_release) struct fixture f;                                                        \
    fixture_init(&f, ctx)

static int make(struct fixture *f, const char *path, struct err *err)
{
    return cgroup_make_on(f->ctx, &f->host, path, f->ledger, &f->cgroup, err);
}

static bool exists(struct fixture *f, const char *name)
{
    return access(tempdir_path(&f->temp, name), F_OK) == 0;
}

/* Caller frees. */
static char *text_of(struct fixture *f, const char *name)
{
    char *text = file_text(65536, "%s", tempdir_path(&f->temp, name));

    ASSERT(text);
    return text;
}

static pid_t keeper(struct fixture *f)
{
    AUTO_FREE char *text = text_of(f, "keeper");

    return (pid_t)atoi(text);
}

/* The kernel would remove its own files with the directory. */
static void empty(struct fixture *f)
{
    static const char *const files[] = { "cgroup.procs", "cpu.max", "cpu.weight", "cpuset.cpus" };

    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *name = str_format("%s/%s", DIR_MADE, files[i]);

        (void)unlink(tempdir_path(&f->temp, name));
    }
}

TEST_FIBER(systemd_starts_a_scope_that_is_delegated_and_kept_until_settled)
{
    FIXTURE(f);
    struct err err = ERR_INIT;

    ASSERT_OK(make(&f, PATH_GIVEN, &err), err);

    AUTO_FREE char *asked = text_of(&f, "asked"), *comm = NULL;

    ASSERT_HAS(asked, "--scope --unit=cri-containerd-abc.scope --slice=kubepods-pod1.slice ");
    ASSERT_HAS(asked, "--collect");
    ASSERT_HAS(asked, "--property=Delegate=yes");
    comm = file_text(64, "/proc/%d/comm", (int)keeper(&f));
    ASSERT_STR(comm, "cat\n");
    ASSERT_EQ(ledger_fixture_open(f.ledger), 2); /* directory and keeper */
    ASSERT_OK(cgroup_join(f.cgroup, 4711, &err), err);
    cgroup_settle(f.cgroup);
    cgroup_settle(f.cgroup);
    ASSERT_EQ(kill(keeper(&f), 0), -1);
    ASSERT_EQ(ledger_fixture_open(f.ledger), 1);
    ASSERT(exists(&f, DIR_MADE));
    empty(&f);
    ASSERT_OK(cgroup_remove(f.cgroup, &err), err);
    ASSERT(!exists(&f, DIR_MADE));
    ASSERT(exists(&f, "cg/kubepods.slice/kubepods-pod1.slice")); /* systemd's */
}

TEST_FIBER(a_scope_that_systemd_has_removed_is_as_good)
{
    FIXTURE(f);
    struct err err = ERR_INIT;

    ASSERT_OK(make(&f, PATH_GIVEN, &err), err);
    ASSERT_EQ(dir_remove(tempdir_path(&f.temp, DIR_MADE)), 0);
    ASSERT_OK(cgroup_remove(f.cgroup, &err), err);
    ASSERT_EQ(kill(keeper(&f), 0), -1);
}

TEST_FIBER(limits_are_written_and_set_in_systemd)
{
    FIXTURE(f);
    struct err err = ERR_INIT;
    const struct cgroup_cpu limit = { .quota = 33330, .period = 100000, .shares = 1024 },
                            none = { .period = 100000 };

    ASSERT_OK(make(&f, PATH_GIVEN, &err), err);
    put(&f, DIR_MADE "/cpu.max", "", 0600);
    put(&f, DIR_MADE "/cpu.weight", "", 0600);
    put(&f, DIR_MADE "/cpuset.cpus", "", 0600);
    ASSERT_OK(cgroup_set_cpu(ctx, f.cgroup, &limit, &err), err);
    ASSERT_OK(cgroup_set_cpuset(ctx, f.cgroup, "0-1,7", &err), err);

    AUTO_FREE char *asked = text_of(&f, "asked"), *max = text_of(&f, DIR_MADE "/cpu.max"),
                   *later = NULL;

    ASSERT_STR(max, "33330 100000");
    ASSERT_HAS(asked, "set-property --runtime cri-containerd-abc.scope CPUQuota=34% "
                      "CPUQuotaPeriodSec=100000us CPUWeight=39\n");
    ASSERT_HAS(asked, "cri-containerd-abc.scope AllowedCPUs=0-1,7\n");
    ASSERT_OK(cgroup_set_cpu(ctx, f.cgroup, &none, &err), err);
    later = text_of(&f, "asked");
    ASSERT_HAS(later, "CPUQuota= CPUQuotaPeriodSec=100000us\n");
    put(&f, "refuse", "Failed to set unit properties: no\n", 0600);
    ASSERT_FAIL(cgroup_set_cpu(ctx, f.cgroup, &none, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "unit cri-containerd-abc.scope");
    ASSERT_HAS(err.msg, "Failed to set unit properties: no");
    err_clear(&err);
    empty(&f);
    ASSERT_OK(cgroup_remove(f.cgroup, &err), err);
}

TEST_FIBER(a_refusal_has_systemds_words_and_leaves_nothing)
{
    FIXTURE(f);
    struct err err = ERR_INIT;

    put(&f, "refuse", "Failed to start transient scope unit: Unit x was already loaded.\n", 0600);
    ASSERT_FAIL(make(&f, PATH_GIVEN, &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_CGROUP_FAILED);
    ASSERT_MSG_HAS(err.msg, "ask systemd for unit cri-containerd-abc.scope");
    ASSERT_HAS(err.msg, "Unit x was already loaded.");
    ASSERT(!f.cgroup && !exists(&f, DIR_MADE));
}

TEST_FIBER(a_unit_that_another_process_started_meanwhile_is_joined_and_left)
{
    FIXTURE(f);
    struct err err = ERR_INIT;

    put(&f, "race", "", 0600);
    ASSERT_OK(make(&f, PATH_GIVEN, &err), err);
    ASSERT_OK(cgroup_remove(f.cgroup, &err), err);
    ASSERT(exists(&f, DIR_MADE));
}

TEST_FIBER(a_systemd_run_that_cannot_be_executed_leaves_no_record)
{
    FIXTURE(f);
    struct err err = ERR_INIT;

    put(&f, "bin/systemd-run", "#!/nonexistent/sh\n", 0700);
    ASSERT_FAIL(make(&f, PATH_GIVEN, &err), err, ERR_NOT_FOUND);
    ASSERT_EQ(ledger_fixture_open(f.ledger), 0);
}

TEST_FIBER(a_systemd_that_does_not_answer_is_waited_for_until_the_deadline)
{
    FIXTURE(f);
    struct ctx limited = ctx_with_timeout(ctx, 300 * NS_PER_MS);
    struct err err = ERR_INIT;

    put(&f, "hang", "", 0600);
    f.ctx = &limited;
    ASSERT_FAIL(make(&f, PATH_GIVEN, &err), err, ERR_DEADLINE);
    ASSERT(!f.cgroup);
}

TEST_FIBER(without_systemd_it_is_a_plain_directory)
{
    FIXTURE(f);
    struct err err = ERR_INIT;

    f.host.systemd = "/nonexistent";
    /* The kernel would have made the file in the directory that lcow made and removed again. */
    ASSERT_FAIL(make(&f, PATH_GIVEN, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, DIR_MADE "/cgroup.procs");

    AUTO_FREE char *asked = text_of(&f, "asked");

    ASSERT_STR(asked, "");
}

TEST_FIBER(plain_paths_and_scopes_that_exist_are_not_asked_for)
{
    FIXTURE(f);
    struct err err = ERR_INIT;

    ASSERT_EQ(dir_make(tempdir_path(&f.temp, DIR_MADE), 0755), 0);
    put(&f, DIR_MADE "/cgroup.procs", "", 0600);
    ASSERT_OK(make(&f, PATH_GIVEN, &err), err);
    ASSERT_OK(cgroup_remove(f.cgroup, &err), err);
    ASSERT(exists(&f, DIR_MADE)); /* not made by this cgroup */
    cgroup_free(TAKE_PTR(f.cgroup));
    ASSERT_FAIL(make(&f, "/default/c1", &err), err, ERR_NOT_FOUND); /* a made-up tree */

    AUTO_FREE char *asked = text_of(&f, "asked");

    ASSERT_STR(asked, "");
    ASSERT_HAS(err.msg, "/default/c1/cgroup.procs");
}

TEST_FIBER(names_that_systemd_would_change_are_refused)
{
    FIXTURE(f);
    static const char *const names[] = { "a.slice:p:with blank", "a.slice:p:ümlaut",
                                         "a.slice:p:x%" };
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        ASSERT_FAIL(make(&f, names[i], &err), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, "is not a valid unit name");
        err_clear(&err);
    }
}

TEST_FIBER(a_ledger_alone_removes_the_directory)
{
    FIXTURE(f);
    AUTO_FREE char *dir = str_dup(tempdir_path(&f.temp, "ns/other"));
    struct ledger *other = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(dir, &other, &err), err);
    ASSERT_OK(cgroup_make_on(ctx, &f.host, PATH_GIVEN, other, &f.cgroup, &err), err);
    cgroup_settle(f.cgroup); /* its record is one of a process, as others */
    ledger_close(other);     /* as if we had died */
    empty(&f);
    ASSERT_OK(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err);
    ASSERT(!exists(&f, DIR_MADE));
}

/* A scope and a directory that we made: all that a cgroup consists of. */
TEST_FIBER(a_saved_cgroup_is_used_and_removed_on)
{
    AUTO(saved_free)
    struct saved *writer = saved_writer(), *starting = saved_writer(), *reader = NULL;
    struct cgroup *c = NULL;
    struct err err = ERR_INIT;

    FIXTURE(f);
    ASSERT_OK(make(&f, PATH_GIVEN, &err), err);
    cgroup_saved(starting, 1, f.ledger, &f.cgroup);
    ASSERT_FAIL(saved_check(starting, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "cri-containerd-abc.scope is being started");
    err_clear(&err);
    cgroup_settle(f.cgroup);
    cgroup_saved(writer, 1, f.ledger, &f.cgroup);
    reader = saved_fixture_read(writer);
    cgroup_saved(reader, 1, f.ledger, &c);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT(c->v2 && f.cgroup->v2);
    ASSERT_STR(c->cpu_dir, f.cgroup->cpu_dir);
    ASSERT_STR(c->cpuset_dir, f.cgroup->cpuset_dir);
    ASSERT_EQ(c->n_procs, f.cgroup->n_procs);
    ASSERT_STR(c->procs[0], f.cgroup->procs[0]);
    ASSERT_EQ(c->n_made, 1);
    ASSERT(c->made[0].leaf && c->made[0].record == f.cgroup->made[0].record);
    cgroup_free(TAKE_PTR(f.cgroup));
    f.cgroup = c;
    ASSERT_OK(cgroup_join(c, 4711, &err), err);
    put(&f, DIR_MADE "/cpuset.cpus", "", 0600);
    ASSERT_OK(cgroup_set_cpuset(ctx, c, "0", &err), err);
    AUTO_FREE char *asked = text_of(&f, "asked");
    ASSERT_HAS(asked, "set-property --runtime cri-containerd-abc.scope AllowedCPUs=0");
    empty(&f);
    ASSERT_OK(cgroup_remove(c, &err), err);
    ASSERT(!exists(&f, DIR_MADE));
}
