#include "base/child.h"
#include "base/fd.h"
#include "base/list.h"
#include "fixture/handover_fixture.h"
#include "fixture/ledger_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/ledger/ledger_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct tempdir root;

/* A new directory, which is removed when the program exits. */
static const char *fresh(void)
{
    if (!root.dir[0])
        tempdir_init(&root, "/tmp");
    static char dir[96];
    static unsigned n;
    snprintf(dir, sizeof(dir), "%s/%u", root.dir, ++n);
    return dir;
}

__attribute__((destructor)) static void clean(void)
{
    if (root.dir[0])
        tempdir_release_auto(&root);
}

/* --- reading a ledger --- */

struct seen {
    size_t n;
    struct {
        uint64_t id;
        enum ledger_kind kind;
        char what[128], result[256];
    } v[32];
};

static void see(void *arg, const struct ledger_record *r, int taken, const char *result)
{
    struct seen *s = arg;

    if (s->n == ARRAY_LEN(s->v))
        abort();
    s->v[s->n].id = r->id;
    s->v[s->n].kind = r->kind;
    snprintf(s->v[s->n].what, sizeof(s->v[0].what), "%s", r->what);
    snprintf(s->v[s->n].result, sizeof(s->v[0].result), "%s", result);
    s->n++;
}

static int see_record(void *arg, const struct ledger_record *r)
{
    see(arg, r, 0, "");
    return 0;
}

static int parse(const char *text, size_t len, int (*fn)(void *arg, const struct ledger_record *),
                 void *arg, struct err *err)
{
    AUTO_FD int fd = memfd_create("ledger", MFD_CLOEXEC);

    ASSERT_EQ(fd_write_full(fd, text, len), 0);
    return ledger_read_fd(fd, fn, arg, err);
}

static void read_back(const char *dir, char **text, size_t *len)
{
    AUTO_FREE char *path = str_format("%s/ledger", dir);

    ASSERT_EQ(file_read_all(path, 64u << 20, text, len), 0);
}

static uint64_t add_record(struct ledger *l, enum ledger_kind kind, const char *what)
{
    struct err err = ERR_INIT;
    uint64_t id = 0;

    ASSERT_OK(ledger_add(l, kind, what, &id, &err), err);
    return id;
}

/* --- writing and reading --- */

TEST(the_checksum_is_the_usual_crc32)
{
    ASSERT_EQ(ledger_crc("123456789", 9), 0xcbf43926);
    ASSERT_EQ(ledger_crc("", 0), 0);
}

TEST(a_failed_open_leaves_no_directory_of_the_namespace)
{
    AUTO_FREE char *parent = str_format("%s-ns", fresh()),
                   *dir = str_format("%s/%0300d", parent, 0); /* a name that is too long */
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;

    ASSERT(ledger_create(dir, &l, &err) < 0);
    ASSERT_MSG_HAS(err.msg, "create directory");
    ASSERT_EQ(access(parent, F_OK), -1);
}

TEST(open_records_come_back_newest_first)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    struct seen s = { 0 };
    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_DIR, "/a");
    uint64_t b = add_record(l, LEDGER_FILE, "/b with blank");
    add_record(l, LEDGER_CGROUP, "/c");
    ASSERT_OK(ledger_forget(l, b, &err), err);
    ASSERT_EQ(ledger_fixture_open(l), 2);
    read_back(dir, &text, &len);
    ASSERT_OK(parse(text, len, see_record, &s, &err), err);
    ASSERT_EQ(s.n, 2);
    ASSERT_STR(s.v[0].what, "/c");
    ASSERT_EQ(s.v[0].kind, LEDGER_CGROUP);
    ASSERT_STR(s.v[1].what, "/a");
}

TEST(an_incomplete_last_line_is_dropped_wherever_it_is_cut)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    uint64_t a = add_record(l, LEDGER_DIR, "/a");
    add_record(l, LEDGER_FILE, "/b");
    ASSERT_OK(ledger_forget(l, a, &err), err);
    read_back(dir, &text, &len);
    for (size_t cut = 0; cut <= len; cut++) {
        struct seen s = { 0 };
        size_t lines = 0;
        for (size_t i = 0; i < cut; i++)
            lines += text[i] == '\n';
        ASSERT_OK(parse(text, cut, see_record, &s, &err), err);
        ASSERT_EQ(s.n, lines < 3 ? lines : 1);
    }
}

TEST(a_changed_byte_is_detected_and_the_other_records_are_read)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    AUTO_FREE char *text = NULL;
    size_t len, first;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_DIR, "/a");
    add_record(l, LEDGER_FILE, "/b");
    read_back(dir, &text, &len);
    first = (size_t)(strchr(text, '\n') - text);
    for (size_t i = 0; i < first; i++) {
        struct seen s = { 0 };
        char was = text[i];
        text[i] ^= 0x20;
        ASSERT_FAIL(parse(text, len, see_record, &s, &err), err, ERR_DATA_LOSS);
        ASSERT_MSG_HAS(err.msg, "line 1");
        ASSERT_EQ(s.n, 1);
        ASSERT_STR(s.v[0].what, "/b");
        text[i] = was;
    }
}

TEST(records_that_could_not_be_cleaned_up_safely_are_refused)
{
    static const char *const bad[] = { "",      "relative", "/",      "//x",
                                       "/a/..", "/a/../b",  "/a\n/b", "/a/" };
    AUTO(ledger_close) struct ledger *l = NULL;
    AUTO_FREE char *longest = mem_alloc(LEDGER_WHAT_MAX + 2);
    struct err err = ERR_INIT;
    uint64_t id;

    ASSERT_OK(ledger_create(fresh(), &l, &err), err);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ASSERT_FAIL(ledger_add(l, LEDGER_DIR, bad[i], &id, &err), err, ERR_INVALID);
    memset(longest, 'x', LEDGER_WHAT_MAX + 1);
    longest[0] = '/';
    longest[LEDGER_WHAT_MAX + 1] = '\0';
    ASSERT_FAIL(ledger_add(l, LEDGER_FILE, longest, &id, &err), err, ERR_INVALID);
    longest[LEDGER_WHAT_MAX] = '\0';
    ASSERT_OK(ledger_add(l, LEDGER_FILE, longest, &id, &err), err);
    ASSERT_EQ(ledger_fixture_open(l), 1);
}

/* --- owners --- */

TEST(a_second_owner_is_refused_while_the_first_is_running)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL, *other = NULL;
    struct err err = ERR_INIT;
    bool alive = false;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    ASSERT_FAIL(ledger_create(dir, &other, &err), err, ERR_EXISTS);
    ASSERT_OK(ledger_owner_alive(dir, &alive, &err), err);
    ASSERT(alive);
    ledger_close(TAKE_PTR(l));
    ASSERT_OK(ledger_owner_alive(dir, &alive, &err), err);
    ASSERT(!alive);
    ASSERT_OK(ledger_create(dir, &other, &err), err);
}

TEST(a_dead_owners_open_records_are_not_overwritten)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL, *other = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_DIR, "/a");
    ledger_close(TAKE_PTR(l));
    ASSERT_FAIL(ledger_create(dir, &other, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "lcow gc");
}

TEST(finish_refuses_open_records_and_otherwise_removes_everything)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    uint64_t id = add_record(l, LEDGER_DIR, "/a");
    ASSERT_FAIL(ledger_finish(l, &err), err, ERR_STATE);
    ASSERT_OK(ledger_forget(l, id, &err), err);
    ASSERT_FAIL(ledger_forget(l, id, &err), err, ERR_NOT_FOUND);
    ASSERT_OK(ledger_finish(l, &err), err);
    ASSERT_EQ(access(dir, F_OK), -1);
    ASSERT_OK(ledger_finish(l, &err), err);
}

TEST(the_namespaces_directory_is_removed_with_its_last_vm)
{
    AUTO_FREE char *ns = str_dup(fresh()), *a = str_format("%s/a", ns), *b = str_format("%s/b", ns);
    AUTO(ledger_close) struct ledger *first = NULL, *second = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(a, &first, &err), err);
    ASSERT_OK(ledger_create(b, &second, &err), err);
    ASSERT_OK(ledger_finish(first, &err), err);
    ASSERT_EQ(access(ns, F_OK), 0);
    ASSERT_OK(ledger_finish(second, &err), err);
    ASSERT_EQ(access(ns, F_OK), -1);
}

TEST(a_full_disk_is_reported_and_leaves_complete_lines)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL;
    AUTO_FREE char *what = mem_alloc(3001), *text = NULL;
    struct err err = ERR_INIT;
    struct seen s = { 0 };
    uint64_t id, last = 0;
    size_t len;

    if (geteuid() != 0)
        tap_skip("mounting a small tmpfs needs root");
    ASSERT_EQ(mkdir(dir, 0700), 0);
    if (mount("tmpfs", dir, "tmpfs", 0, "size=8k") < 0)
        tap_skip("no tmpfs here: %s", strerror(errno));
    memset(what, 'x', 3000);
    what[0] = '/';
    what[3000] = '\0';
    int made = ledger_create(dir, &l, &err), full = 0, parsed = -1;
    for (int i = 0; made == 0 && i < 10 && full == 0; i++) {
        full = ledger_add(l, LEDGER_FILE, what, &id, &err);
        if (full == 0)
            last = id;
    }
    enum err_code code = err.code;
    size_t open_count = made == 0 ? ledger_fixture_open(l) : 0;
    AUTO_FREE char *path = str_format("%s/ledger", dir);
    if (file_read_all(path, 64u << 20, &text, &len) == 0)
        parsed = parse(text, len, see_record, &s, &err);
    bool whole = text && len > 0 && text[len - 1] == '\n';
    ledger_close(TAKE_PTR(l));
    umount2(dir, MNT_DETACH);
    ASSERT_EQ(made, 0);
    ASSERT_EQ(full, -1);
    ASSERT_EQ(code, ERR_EXHAUSTED);
    ASSERT_EQ(parsed, 0);
    ASSERT_EQ(s.n, open_count);
    ASSERT(whole && last > 0);
}

/* --- cleaning up --- */

TEST_FIBER(reclaim_removes_in_reverse_order_and_the_directory_last)
{
    AUTO_FREE char *dir = str_dup(fresh()), *sub = str_format("%s/sub", dir),
                   *file = str_format("%s/sub/file", dir);
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    struct seen dry = { 0 }, s = { 0 };

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_DIR, sub);
    add_record(l, LEDGER_FILE, file);
    ASSERT_EQ(dir_make(sub, 0700), 0);
    ASSERT_EQ(file_write(file, "x", 1, 0600), 0);
    ASSERT_FAIL(ledger_reclaim(ctx, dir, false, see, &s, &err), err, ERR_STATE);
    ASSERT_EQ(s.n, 0);
    ledger_close(TAKE_PTR(l));

    ASSERT_OK(ledger_reclaim(ctx, dir, true, see, &dry, &err), err);
    ASSERT_EQ(access(file, F_OK), 0);
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &s, &err), err);
    ASSERT_EQ(access(dir, F_OK), -1);
    ASSERT_EQ(s.n, 3);
    ASSERT_EQ(dry.n, s.n);
    for (size_t i = 0; i < s.n; i++)
        ASSERT_STR(dry.v[i].what, s.v[i].what);
    ASSERT_STR(s.v[0].what, file);
    ASSERT_STR(s.v[1].what, sub);
    ASSERT_STR(s.v[2].what, dir);
    ASSERT_STR(dry.v[0].result, "would be removed");
    ASSERT_STR(s.v[0].result, "removed");
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &s, &err), err);
}

TEST_FIBER(a_planted_symlink_is_removed_not_followed)
{
    AUTO_FREE char *dir = str_dup(fresh()), *victim = str_dup(fresh()),
                   *keep = str_format("%s/keep", victim), *sub = str_format("%s/sub", dir),
                   *inside = str_format("%s/sub/link", dir), *self = str_format("%s/self", dir);
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    struct seen s = { 0 };

    ASSERT_EQ(dir_make(victim, 0700), 0);
    ASSERT_EQ(file_write(keep, "x", 1, 0600), 0);
    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_DIR, sub);
    add_record(l, LEDGER_DIR, self);
    ASSERT_EQ(dir_make(sub, 0700), 0);
    ASSERT_EQ(symlink(victim, inside), 0);
    ASSERT_EQ(symlink(victim, self), 0); /* where the directory itself should be */
    ledger_close(TAKE_PTR(l));
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &s, &err), err);
    ASSERT_EQ(access(dir, F_OK), -1);
    ASSERT_EQ(access(keep, F_OK), 0);
}

static struct child *sleeper(struct ctx *ctx)
{
    static const char *const argv[] = { "/bin/sleep", "1000", NULL };
    struct child *c = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv, .die_with_us = true }, &c, &err),
              err);
    return c;
}

TEST_FIBER(reclaim_kills_a_recorded_process_and_waits_for_it)
{
    AUTO_FREE char *dir = str_dup(fresh());
    AUTO(ledger_close) struct ledger *l = NULL;
    AUTO(child_free) struct child *c = sleeper(ctx);
    struct err err = ERR_INIT;
    struct seen dry = { 0 }, s = { 0 };
    uint64_t id;
    int status;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    ASSERT_OK(ledger_add_process(l, child_pid(c), &id, &err), err);
    ledger_close(TAKE_PTR(l));
    ASSERT_OK(ledger_reclaim(ctx, dir, true, see, &dry, &err), err);
    ASSERT_STR(dry.v[0].result, "would be killed");
    ASSERT(!child_done(c, NULL));
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &s, &err), err);
    ASSERT_STR(s.v[0].result, "killed");
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT_EQ(status, SIGKILL);
}

/* The loop reaps children, so the process stays a zombie while the test's body does not wait. */
TEST_FIBER(a_zombie_counts_as_gone)
{
    AUTO_FREE char *dir = str_dup(fresh());
    AUTO(ledger_close) struct ledger *l = NULL;
    AUTO(child_free) struct child *c = sleeper(ctx);
    AUTO_FREE char *path = str_format("/proc/%d/stat", child_pid(c)), *text = NULL;
    struct err err = ERR_INIT;
    struct seen dry = { 0 };
    uint64_t id;
    size_t len;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    ASSERT_OK(ledger_add_process(l, child_pid(c), &id, &err), err);
    ledger_close(TAKE_PTR(l));
    ASSERT_EQ(kill(child_pid(c), SIGKILL), 0);
    do {
        free(text);
        ASSERT_EQ(file_read_all(path, 4096, &text, &len), 0);
    } while (!strstr(text, ") Z"));
    ASSERT_OK(ledger_reclaim(ctx, dir, true, see, &dry, &err), err);
    ASSERT_STR(dry.v[0].result, "already gone");
    ASSERT_OK(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err);
}

TEST_FIBER(a_process_that_reuses_a_recorded_pid_is_not_killed)
{
    AUTO_FREE char *dir = str_dup(fresh());
    AUTO(ledger_close) struct ledger *l = NULL;
    AUTO(child_free) struct child *c = sleeper(ctx);
    AUTO_FREE char *boot = ledger_boot_id();
    AUTO_FREE char *what =
        str_format("%d %" PRIu64 " %s", child_pid(c), proc_start_time(child_pid(c)) - 1, boot);
    struct err err = ERR_INIT;
    struct seen s = { 0 };

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_PROCESS, what);
    ledger_close(TAKE_PTR(l));
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &s, &err), err);
    ASSERT_STR(s.v[0].result, "already gone");
    ASSERT(!child_done(c, NULL));
    ASSERT_EQ(kill(child_pid(c), 0), 0);
}

/* After a reboot the same pid with the same start time is another process. */
TEST_FIBER(a_process_recorded_in_another_boot_is_not_killed)
{
    AUTO_FREE char *dir = str_dup(fresh());
    AUTO(ledger_close) struct ledger *l = NULL;
    AUTO(child_free) struct child *c = sleeper(ctx);
    AUTO_FREE char *what = str_format("%d %" PRIu64 " 00000000-0000-4000-8000-000000000000",
                                      child_pid(c), proc_start_time(child_pid(c)));
    struct err err = ERR_INIT;
    struct seen s = { 0 };

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_PROCESS, what);
    ledger_close(TAKE_PTR(l));
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &s, &err), err);
    ASSERT_STR(s.v[0].result, "already gone");
    ASSERT_EQ(kill(child_pid(c), 0), 0);
}

TEST_FIBER(reclaim_continues_after_a_failure_and_can_be_repeated)
{
    AUTO_FREE char *dir = str_dup(fresh()), *stuck = str_format("%s/stuck", dir),
                   *file = str_format("%s/file", dir), *deep = str_format("%s/x", stuck);
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    struct seen s = { 0 }, again = { 0 };

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_FILE, file);
    add_record(l, LEDGER_CGROUP, stuck); /* a directory that is not empty cannot be rmdir'ed */
    ASSERT_EQ(file_write(file, "x", 1, 0600), 0);
    ASSERT_EQ(dir_make(deep, 0700), 0);
    ledger_close(TAKE_PTR(l));
    ASSERT_FAIL(ledger_reclaim(ctx, dir, false, see, &s, &err), err, err.code);
    ASSERT_HAS(err.msg, stuck);
    ASSERT_EQ(access(file, F_OK), -1);
    ASSERT_EQ(access(dir, F_OK), 0);
    ASSERT_EQ(rmdir(deep), 0);
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &again, &err), err);
    ASSERT_STR(again.v[0].result, "removed");
    ASSERT_STR(again.v[1].result, "already gone");
    ASSERT_EQ(access(dir, F_OK), -1);
}

TEST_FIBER(damage_is_reported_after_the_other_records_are_cleaned_up)
{
    AUTO_FREE char *dir = str_dup(fresh()), *file = str_format("%s/file", dir),
                   *path = str_format("%s/ledger", dir), *text = NULL;
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    struct seen s = { 0 };
    size_t len;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_DIR, "/nonexistent-lcow");
    add_record(l, LEDGER_FILE, file);
    ledger_close(TAKE_PTR(l));
    ASSERT_EQ(file_write(file, "x", 1, 0600), 0);
    read_back(dir, &text, &len);
    text[12] ^= 1;
    ASSERT_EQ(file_write(path, text, len, 0600), 0);
    ASSERT_FAIL(ledger_reclaim(ctx, dir, false, see, &s, &err), err, ERR_DATA_LOSS);
    ASSERT_EQ(access(file, F_OK), -1);
    ASSERT_EQ(access(path, F_OK), 0);
}

TEST_FIBER(a_directory_without_a_ledger_is_removed_only_if_it_is_empty)
{
    AUTO_FREE char *dir = str_dup(fresh()), *file = str_format("%s/file", dir);
    struct err err = ERR_INIT;

    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(file, "x", 1, 0600), 0);
    ASSERT_FAIL(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err, err.code);
    ASSERT_EQ(unlink(file), 0);
    ASSERT_OK(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err);
    ASSERT_EQ(access(dir, F_OK), -1);
}

/* --- length --- */

static off_t size_of(const char *dir)
{
    AUTO_FREE char *path = str_format("%s/ledger", dir);
    struct stat st;

    ASSERT_EQ(stat(path, &st), 0);
    return st.st_size;
}

/* Adds and releases records, like containers that are created and deleted. */
static void come_and_go(struct ledger *l, unsigned n)
{
    struct err err = ERR_INIT;

    while (n-- > 0)
        ASSERT_OK(ledger_forget(l, add_record(l, LEDGER_FILE, "/nowhere/of/a/container"), &err),
                  err);
}

TEST_FIBER(a_ledger_of_5_mib_is_cleaned_up)
{
    const char *dir = fresh();
    AUTO_FREE char *text = NULL, *left = str_format("%s/left", dir),
                   *path = str_format("%s/ledger", dir);
    AUTO(sbuf_release) struct sbuf all = { 0 };
    struct seen seen = { 0 };
    struct err err = ERR_INIT;
    struct ledger *l;
    size_t len;

    /* As a version without compaction wrote it: each line by a ledger with few records. */
    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_FILE, left);
    come_and_go(l, 1);
    ledger_close(l);
    read_back(dir, &text, &len);
    sbuf_add(&all, text, len);
    for (uint64_t id = 3; all.len < 5u << 20; id++) {
        AUTO_FREE char *in = str_format("+ %" PRIu64 " file /nowhere/of/a/container", id),
                       *out = str_format("- %" PRIu64, id);

        sbuf_addf(&all, "%08" PRIx32 " %s\n", ledger_crc(in, strlen(in)), in);
        sbuf_addf(&all, "%08" PRIx32 " %s\n", ledger_crc(out, strlen(out)), out);
    }
    ASSERT_EQ(file_write(path, all.data, all.len, 0600), 0);
    ASSERT_EQ(file_write(left, "x", 1, 0600), 0);
    ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &seen, &err), err);
    ASSERT_EQ(seen.n, 2);
    ASSERT_STR(seen.v[0].what, left);
    ASSERT(access(dir, F_OK) < 0);
}

TEST(compaction_keeps_a_ledger_with_many_released_records_short)
{
    const char *dir = fresh();
    struct seen seen = { 0 };
    struct err err = ERR_INIT;
    struct ledger *l;

    ASSERT_OK(ledger_create(dir, &l, &err), err);

    uint64_t first = add_record(l, LEDGER_FILE, "/stays");

    come_and_go(l, 5000);

    uint64_t last = add_record(l, LEDGER_DIR, "/stays too");

    come_and_go(l, 5000);
    ASSERT(size_of(dir) <= (off_t)LEDGER_COMPACT_BYTES);
    ASSERT_OK(ledger_read(dir, see_record, &seen, &err), err);
    ASSERT_EQ(seen.n, 2);
    ASSERT_EQ(seen.v[0].id, last);
    ASSERT_EQ(seen.v[1].id, first);
    ASSERT_STR(seen.v[1].what, "/stays");
    ASSERT_OK(ledger_forget(l, first, &err), err);
    ASSERT_OK(ledger_forget(l, last, &err), err);
    ASSERT_OK(ledger_finish(l, &err), err);
    ASSERT(access(dir, F_OK) < 0);
    ledger_close(l);
}

TEST_FIBER(a_compacted_ledger_is_still_locked_by_its_owner)
{
    const char *dir = fresh();
    AUTO_FREE char *path = str_format("%s/ledger", dir);
    struct err err = ERR_INIT;
    struct ledger *l, *second;
    struct stat before, after;
    bool alive = false;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_FILE, "/stays");
    ASSERT_EQ(stat(path, &before), 0);

    AUTO_FD int old = open(path, O_RDWR | O_CLOEXEC);

    ASSERT(old >= 0); /* keeps its number from being used again */

    come_and_go(l, 2000);
    ASSERT_EQ(stat(path, &after), 0);
    ASSERT(after.st_ino != before.st_ino);
    ASSERT_EQ(after.st_mode & 0777, 0600);
    ASSERT_OK(ledger_owner_alive(dir, &alive, &err), err);
    ASSERT(alive);
    ASSERT_FAIL(ledger_create(dir, &second, &err), err, ERR_EXISTS);
    ASSERT_FAIL(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err, ERR_STATE);
    ledger_close(l);
    ASSERT_OK(ledger_owner_alive(dir, &alive, &err), err);
    ASSERT(!alive);
}

/* Kills the process at the first such call; arg1: only with this second argument, or -1 for any. */
static void die_at(int call, int arg1)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)arg1, 0, arg1 < 0 ? 0 : 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = { ARRAY_LEN(f), f };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
        _exit(1);
}

/* The owner dies at the given call of its first compaction. */
static void live_until(const char *dir, const char *left, int call, int arg1)
{
    struct err err = ERR_INIT;
    struct ledger *l;
    uint64_t id;

    if (ledger_create(dir, &l, &err) < 0 || ledger_add(l, LEDGER_FILE, left, &id, &err) < 0)
        _exit(1);
    die_at(call, arg1);
    for (int i = 0; i < 2000; i++)
        if (ledger_add(l, LEDGER_FILE, "/nowhere", &id, &err) < 0 || ledger_forget(l, id, &err) < 0)
            _exit(1);
    _exit(0);
}

TEST_FIBER(an_owner_that_dies_during_a_compaction_loses_no_records)
{
    static const struct {
        int call, arg1;
        bool renamed;
    } steps[] = {
        { SYS_unlink, -1, false },         /* before it begins */
        { SYS_pread64, -1, false },        /* the new one is empty */
        { SYS_fcntl, F_OFD_SETLK, false }, /* the new one is whole */
        { SYS_rename, -1, false },         /* and locked */
        { SYS_close, -1, true },           /* it has the name */
    };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        const char *dir = fresh();
        AUTO_FREE char *left = str_format("%s.left", dir),
                       *other = str_format("%s/ledger.new", dir);
        struct err err = ERR_INIT;
        struct seen seen = { 0 };
        int status;
        pid_t pid = fork();

        ASSERT(pid >= 0);
        if (pid == 0)
            live_until(dir, left, steps[i].call, steps[i].arg1);
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
        ASSERT_EQ(size_of(dir) < 1000, steps[i].renamed);
        ASSERT_EQ(access(other, F_OK) == 0, i > 0 && !steps[i].renamed);
        ASSERT_EQ(file_write(left, "x", 1, 0600), 0);
        ASSERT_OK(ledger_reclaim(ctx, dir, false, see, &seen, &err), err);
        ASSERT_EQ(seen.n, 2);
        ASSERT_STR(seen.v[0].what, left);
        ASSERT(access(left, F_OK) < 0);
        ASSERT(access(dir, F_OK) < 0);
    }
}

TEST(an_incomplete_new_ledger_is_ignored)
{
    const char *dir = fresh();
    AUTO_FREE char *other = str_format("%s/ledger.new", dir);
    struct err err = ERR_INIT;
    struct ledger *l;

    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(other, "0bad", 4, 0600), 0);
    ASSERT_OK(ledger_create(dir, &l, &err), err);
    come_and_go(l, 3000);
    ASSERT(size_of(dir) <= (off_t)LEDGER_COMPACT_BYTES);
    ASSERT(access(other, F_OK) < 0);
    ASSERT_EQ(file_write(other, "0bad", 4, 0600), 0);
    ASSERT_OK(ledger_finish(l, &err), err);
    ASSERT(access(dir, F_OK) < 0);
    ledger_close(l);
}

TEST(a_damaged_ledger_is_not_compacted)
{
    const char *dir = fresh();
    AUTO_FREE char *path = str_format("%s/ledger", dir);
    struct seen seen = { 0 };
    struct err err = ERR_INIT;
    struct ledger *l;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    come_and_go(l, 10);

    AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

    ASSERT_EQ(pwrite(fd, "f", 1, 3), 1);
    come_and_go(l, 3000);
    ASSERT(size_of(dir) > (off_t)LEDGER_COMPACT_BYTES);
    ASSERT_FAIL(ledger_read(dir, see_record, &seen, &err), err, ERR_DATA_LOSS);
    ledger_close(l);
}

TEST(an_overlong_line_is_damaged_and_the_next_one_is_read)
{
    const char *dir = fresh(), *body = "+ 7 file /after";
    AUTO_FREE char *path = str_format("%s/ledger", dir);
    AUTO(sbuf_release) struct sbuf text = { 0 };
    struct seen seen = { 0 };
    struct err err = ERR_INIT;

    for (int i = 0; i < 100000; i++)
        sbuf_addc(&text, 'x');
    sbuf_addf(&text, "\n%08" PRIx32 " %s\n", ledger_crc(body, strlen(body)), body);
    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, text.data, text.len, 0600), 0);
    ASSERT_FAIL(ledger_read(dir, see_record, &seen, &err), err, ERR_DATA_LOSS);
    ASSERT_MSG_HAS(err.msg, "1 damaged");
    ASSERT_EQ(seen.n, 1);
    ASSERT_STR(seen.v[0].what, "/after");
}

/* --- saved --- */

/* As an exec does: the object goes, its descriptor stays. */
static struct ledger *replace(struct ledger *old)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct ledger *l = NULL;
    struct err err = ERR_INIT;

    ledger_saved(writer, 1, &old);
    reader = saved_fixture_read(writer);
    old->fd = -1;
    ledger_close(old);
    ledger_saved(reader, 1, &l);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT(l);
    return l;
}

TEST(a_saved_ledger_keeps_its_lock_and_its_records)
{
    const char *dir = fresh();
    AUTO(ledger_close) struct ledger *l = NULL;
    struct err err = ERR_INIT;
    uint64_t ids[4];
    bool alive = false;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    for (int i = 0; i < 3; i++)
        ASSERT_OK(ledger_add(l, LEDGER_FILE, "/x/y", &ids[i], &err), err);
    ASSERT_OK(ledger_forget(l, ids[1], &err), err);
    l->last_id = 77; /* as after a compaction */
    l = replace(l);
    ASSERT_OK(ledger_owner_alive(dir, &alive, &err), err);
    ASSERT(alive);
    ASSERT_STR(ledger_dir(l), dir);
    ASSERT_EQ(ledger_fixture_open(l), 2);
    ASSERT_FAIL(ledger_forget(l, ids[1], &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(ledger_finish(l, &err), err, ERR_STATE);
    ASSERT_OK(ledger_add(l, LEDGER_FILE, "/x/z", &ids[3], &err), err);
    ASSERT_EQ(ids[3], 78);
    ASSERT_EQ(ledger_fixture_open(l), 3);
    ASSERT_OK(ledger_forget(l, ids[0], &err), err);
    ASSERT_OK(ledger_forget(l, ids[2], &err), err);
    ASSERT_OK(ledger_forget(l, ids[3], &err), err);
    ASSERT_OK(ledger_finish(l, &err), err);
}

TEST(a_damaged_ledger_is_not_resumed)
{
    const char *dir = fresh();
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct ledger *l = NULL, *read = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(ledger_create(dir, &l, &err), err);
    ASSERT_EQ(write(l->fd, "rubbish\n", 8), 8);
    ledger_saved(writer, 1, &l);
    reader = saved_fixture_read(writer);
    ledger_saved(reader, 1, &read);
    ASSERT_FAIL(saved_check(reader, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, dir);
    read->fd = -1;
    ledger_close(read);
    ledger_close(l);
}
