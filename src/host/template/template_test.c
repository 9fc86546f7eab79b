/* template_test.c - the store of templates, with small files. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "fixture/ledger_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/ledger/ledger.h"
#include "host/template/template.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RAM_BYTES 8192

static struct tempdir root;
static char *dir;

static char *below(const char *name)
{
    return str_format("%s/%s", dir, name);
}

static void open_store(void)
{
    tempdir_init(&root, "/tmp");
    dir = str_format("%s/templates", root.dir);
    ASSERT_EQ(dir_make(dir, 0700), 0);
}

static void close_store(void)
{
    ASSERT_EQ(dir_remove(root.dir), 0);
    free(dir);
}

/* Makes a complete template; its key. */
static void make(char key[TEMPLATE_KEY_SIZE])
{
    AUTO_FREE char *run = str_format("%s/run/t", root.dir);
    AUTO(ledger_close) struct ledger *ledger = NULL;
    AUTO(template_info_release)
    struct template_info info = { .memory_mib = 128,
                                  .max_memory_mib = 4096,
                                  .max_cpus = 4,
                                  .vmm_version = "10.0.2",
                                  .created_ns = 5 };
    struct template_draft d;
    struct err err = ERR_INIT;

    info.identity = str_dup("kernel a\nqemu b\n");
    template_key_of(info.identity, info.key);
    ASSERT_OK(ledger_create(run, &ledger, &err), err);
    ASSERT_OK(template_draft_begin(dir, info.key, RAM_BYTES, ledger, &d, &err), err);
    ASSERT_EQ(ledger_fixture_open(ledger), 1);
    ASSERT_EQ(fd_write_full(d.ram_fd, "memory", 6), 0);
    ASSERT_EQ(fd_write_full(d.state_fd, "devices", 7), 0);
    ASSERT_OK(template_draft_seal(&d, &info, &err), err);
    ASSERT_OK(template_draft_publish(&d, dir, info.key, &err), err);
    ASSERT_EQ(ledger_fixture_open(ledger), 0);
    ASSERT_OK(ledger_finish(ledger, &err), err);
    memcpy(key, info.key, TEMPLATE_KEY_SIZE);
}

static void refused(const char *key, enum err_code code, const char *why)
{
    struct template t = { .ram_fd = -1, .state_fd = -1 };
    struct err err = ERR_INIT;

    ASSERT_FAIL(template_open(dir, key, &t, &err), err, code);
    ASSERT_MSG_HAS(err.msg, why);
}

TEST(a_published_template_can_be_opened)
{
    struct template t = { .ram_fd = -1, .state_fd = -1 };
    AUTO(template_info_release) struct template_info seen = { 0 };
    char key[TEMPLATE_KEY_SIZE], text[8] = "";
    struct err err = ERR_INIT;
    struct stat st;

    open_store();
    refused("0123456789abcdef0123456789abcdef", ERR_NOT_FOUND, "template");
    refused("../../etc", ERR_INVALID, "not a template's key");
    make(key);
    ASSERT_OK(template_open(dir, key, &t, &err), err);
    ASSERT_EQ(t.info.max_memory_mib, 4096);
    ASSERT_STR(t.info.identity, "kernel a\nqemu b\n");
    ASSERT_EQ(fstat(t.ram_fd, &st), 0);
    ASSERT_EQ(st.st_size, RAM_BYTES);
    ASSERT_EQ(st.st_mode & 0777, 0600);
    ASSERT_EQ(read(t.state_fd, text, 7), 7);
    ASSERT_STR(text, "devices");
    ASSERT_EQ(write(t.ram_fd, "x", 1), -1);
    template_close(&t);
    ASSERT_OK(template_verify(dir, key, &seen, &err), err);
    close_store();
}

static char part[512];
static const char *path_of(const char *key, const char *name)
{
    snprintf(part, sizeof(part), "%s/%s/%s", dir, key, name);
    return part;
}

TEST(a_changed_template_is_refused)
{
    char key[TEMPLATE_KEY_SIZE];
    struct err err = ERR_INIT;

    open_store();
    make(key);
    ASSERT_EQ(truncate(path_of(key, "ram"), 4096), 0);
    refused(key, ERR_DATA_LOSS, "ram has 4096 bytes");
    make(key);
    ASSERT_EQ(file_write(path_of(key, "state"), "devicez", 7, 0600), 0);
    refused(key, ERR_DATA_LOSS, "state was changed");
    make(key);
    ASSERT_EQ(unlink(path_of(key, "state")), 0);
    refused(key, ERR_DATA_LOSS, "state cannot be opened");
    make(key);
    ASSERT_EQ(file_write(path_of(key, "header"), "x", 1, 0600), 0);
    refused(key, ERR_DATA_LOSS, "header cut");
    ASSERT_OK(template_remove(dir, key, &err), err);
    refused(key, ERR_NOT_FOUND, key);
    close_store();
}

TEST(symlinks_and_files_writable_by_others_are_refused)
{
    char key[TEMPLATE_KEY_SIZE];
    struct err err = ERR_INIT;
    AUTO_FREE char *other = NULL, *to = NULL;

    open_store();
    make(key);
    other = str_format("%s/elsewhere", root.dir);
    ASSERT_EQ(rename(path_of(key, "ram"), other), 0);
    ASSERT_EQ(symlink(other, path_of(key, "ram")), 0);
    refused(key, ERR_PERMISSION, "ram is a symbolic link");
    make(key);
    ASSERT_EQ(chmod(path_of(key, "header"), 0622), 0);
    refused(key, ERR_PERMISSION, "header can be written by others");
    make(key);
    ASSERT_EQ(chmod(path_of(key, ""), 0777), 0);
    refused(key, ERR_PERMISSION, "can be written by others");
    make(key);
    to = str_format("%s/moved", root.dir);
    ASSERT_EQ(rename(path_of(key, ""), to), 0);
    AUTO_FREE char *place = below(key);
    ASSERT_EQ(symlink(to, place), 0);
    refused(key, ERR_PERMISSION, "is not a directory");
    ASSERT_OK(template_remove(dir, key, &err), err); /* the link, not what it shows */
    ASSERT_EQ(access(to, F_OK), 0);
    ASSERT_EQ(chmod(dir, 0777), 0);
    refused(key, ERR_PERMISSION, "can be written by others");
    close_store();
}

TEST(another_users_template_is_refused)
{
    char key[TEMPLATE_KEY_SIZE];

    if (geteuid() != 0)
        tap_skip("needs root");
    open_store();
    make(key);
    ASSERT_EQ(chown(path_of(key, "ram"), 1, 1), 0);
    refused(key, ERR_PERMISSION, "ram belongs to user 1");
    close_store();
}

TEST(verify_reads_all_of_it)
{
    char key[TEMPLATE_KEY_SIZE];
    struct template_info info;
    struct err err = ERR_INIT;
    struct stat st;

    open_store();
    make(key);
    /* A bit that the disk lost: neither size nor time has changed. */
    ASSERT_EQ(stat(path_of(key, "ram"), &st), 0);
    AUTO_FD int fd = open(part, O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(pwrite(fd, "M", 1, 0), 1);
    const struct timespec times[2] = { st.st_atim, st.st_mtim };
    ASSERT_EQ(futimens(fd, times), 0);
    struct template t;
    ASSERT_OK(template_open(dir, key, &t, &err), err);
    template_close(&t);
    ASSERT_FAIL(template_verify(dir, key, &info, &err), err, ERR_DATA_LOSS);
    ASSERT_MSG_HAS(err.msg, "ram does not match its checksum");
    close_store();
}

TEST(every_truncation_and_flipped_bit_of_a_header_is_detected)
{
    AUTO(template_info_release)
    struct template_info info = { .vmm_version = "10.0.2" }, got = { 0 };
    struct err err = ERR_INIT;
    size_t len;

    info.identity = str_dup("a\n");
    template_key_of(info.identity, info.key);
    memset(info.ram.sha256, 'a', 64);
    memset(info.state.sha256, 'b', 64);
    AUTO_FREE char *text = template_header_format(&info, &len);
    ASSERT_OK(template_header_parse(text, len, &got, &err), err);
    for (size_t i = 0; i < len; i++) {
        struct template_info bad = { 0 };

        ASSERT_FAIL(template_header_parse(text, i, &bad, &err), err, ERR_DATA_LOSS);
        text[i] ^= 4;
        ASSERT_FAIL(template_header_parse(text, len, &bad, &err), err, ERR_DATA_LOSS);
        text[i] ^= 4;
    }
}

TEST_FIBER(one_builder_at_a_time_and_incomplete_drafts_are_removed)
{
    AUTO_FD int first = -1;
    int second = -1;
    char key[TEMPLATE_KEY_SIZE], (*keys)[TEMPLATE_KEY_SIZE];
    struct err err = ERR_INIT;
    size_t n;

    open_store();
    AUTO_FREE char *half = below(".new-0-0");
    ASSERT_EQ(dir_make(half, 0700), 0);
    ASSERT_OK(template_lock(ctx, dir, false, &first, &err), err);
    ASSERT_FAIL(template_lock(ctx, dir, false, &second, &err), err, ERR_EXISTS);
    ASSERT_OK(template_list(dir, &keys, &n, &err), err);
    ASSERT_EQ(n, 0);
    free(keys);
    make(key);
    ASSERT(access(half, F_OK) < 0); /* its builder has exited */
    ASSERT_OK(template_list(dir, &keys, &n, &err), err);
    ASSERT_EQ(n, 1);
    ASSERT_STR(keys[0], key);
    free(keys);
    fd_close(TAKE_FD(first));
    err_clear(&err);
    ASSERT_OK(template_lock(ctx, dir, false, &second, &err), err);
    fd_close(second);
    close_store();
}

TEST(a_full_disk_fails_before_the_build_starts)
{
    AUTO_FREE char *run = NULL;
    AUTO(ledger_close) struct ledger *ledger = NULL;
    struct template_draft d;
    struct err err = ERR_INIT;

    open_store();
    run = str_format("%s/run/t", root.dir);
    ASSERT_OK(ledger_create(run, &ledger, &err), err);
    ASSERT(template_draft_begin(dir, "0123456789abcdef0123456789abcdef", UINT64_C(1) << 60, ledger,
                                &d, &err) < 0);
    ASSERT_HAS(err.msg, "ram");
    ASSERT_EQ(ledger_fixture_open(ledger), 0);
    ASSERT_OK(ledger_finish(ledger, &err), err);
    close_store();
}

static unsigned n_removed;
static void count(void *arg, const char *key)
{
    (void)arg;
    ASSERT_EQ(strlen(key), TEMPLATE_KEY_SIZE - 1);
    n_removed++;
}

/* One whose name ends in n and that was last used so many seconds after the epoch. */
static void aged(unsigned n, long used_s)
{
    AUTO_FREE char *name = str_format("0123456789abcdef0123456789abcd%02u", n), *path = below(name);
    const struct timespec both[2] = { { .tv_sec = used_s }, { .tv_sec = used_s } };

    ASSERT_EQ(dir_make(path, 0700), 0);
    ASSERT_EQ(utimensat(AT_FDCWD, path, both, 0), 0);
}

static bool there(unsigned n)
{
    AUTO_FREE char *name = str_format("0123456789abcdef0123456789abcd%02u", n), *path = below(name);

    return access(path, F_OK) == 0;
}

TEST(unused_templates_are_pruned)
{
    const uint64_t s = 1000000000, day = 24 * 3600;
    struct err err = ERR_INIT;
    struct stat st;

    open_store();
    aged(1, 100);
    aged(2, (long)(14 * day + 200)); /* used for the last time just late enough */
    ASSERT_OK(template_prune(dir, NULL, (28 * day + 150) * s, count, NULL, &err), err);
    ASSERT(!there(1) && there(2));
    ASSERT_EQ(n_removed, 1);
    /* One too many: the longest unused but the one that was just built. */
    for (unsigned i = 3; i <= 6; i++)
        aged(i, (long)(20 * day + i));
    aged(7, 5);
    ASSERT_OK(
        template_prune(dir, "0123456789abcdef0123456789abcd07", 21 * day * s, NULL, NULL, &err),
        err);
    ASSERT(!there(2) && !there(3) && there(4) && there(5) && there(6) && there(7));
    /* A use is remembered. */
    template_touch(dir, "0123456789abcdef0123456789abcd07");
    AUTO_FREE char *path = below("0123456789abcdef0123456789abcd07");
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT(st.st_mtim.tv_sec > 21 * (long)day);
    close_store();
}

TEST(the_processors_identity_is_its_first_block_without_its_speed)
{
    AUTO_FREE char *a = template_cpu_identity("processor\t: 0\nvendor_id\t: X\nmodel\t\t: 1\n"
                                              "cpu MHz\t\t: 2299.998\nflags\t\t: fpu vme\n\n"
                                              "processor\t: 1\nflags\t\t: other\n");

    ASSERT_STR(a, "vendor_id\t: X\nmodel\t\t: 1\nflags\t\t: fpu vme\n");
}

TEST(the_difference_of_two_identities_names_the_subjects)
{
    static const char mine[] =
        "kernel a\ninitrd b\nqemu c\nmodel\t\t: 1\nflags\t\t: fpu\n-m\n256M\n";
    static const struct {
        const char *other, *why;
    } cases[] = {
        { "kernel x\ninitrd b\nqemu c\nmodel\t\t: 1\nflags\t\t: fpu\n-m\n256M\n",
          "another kernel" },
        { "kernel a\ninitrd x\nqemu y\nmodel\t\t: 1\nflags\t\t: fpu\n-m\n256M\n",
          "another initrd, another QEMU" },
        { "kernel a\ninitrd b\nqemu c\nmodel\t\t: 1\nflags\t\t: fpu vmx\n-m\n256M\n",
          "another processor" },
        { "kernel a\ninitrd b\nqemu c2\n-m\n256M\n", "another QEMU, another processor" },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE char *why = template_difference(mine, cases[i].other);
        ASSERT_STR(why, cases[i].why);
    }
    AUTO_FREE char *size = template_difference(
        mine, "kernel a\ninitrd b\nqemu c\nmodel\t\t: 1\nflags\t\t: fpu\n-m\n512M\n");
    ASSERT(!size);
}

TEST(a_template_that_is_marked_bad_is_refused_with_the_first_reason)
{
    char key[TEMPLATE_KEY_SIZE];
    struct err err = ERR_INIT;

    open_store();
    make(key);
    ASSERT_OK(template_mark_bad(dir, key, "its clock runs 1 % too fast", &err), err);
    refused(key, ERR_DATA_LOSS, "marked bad: its clock runs 1 % too fast");
    ASSERT_OK(template_mark_bad(dir, key, "another reason", &err), err);
    refused(key, ERR_DATA_LOSS, "1 % too fast");
    ASSERT_FAIL(template_mark_bad(dir, "0123456789abcdef0123456789abcdef", "x", &err), err,
                ERR_NOT_FOUND);
    make(key); /* the next builder's */
    ASSERT_EQ(access(path_of(key, "bad"), F_OK), -1);
    close_store();
}

TEST(two_failed_clones_in_a_row_mark_a_template_bad)
{
    struct template t = { .ram_fd = -1, .state_fd = -1 };
    char key[TEMPLATE_KEY_SIZE];
    struct err err = ERR_INIT;

    open_store();
    make(key);
    for (int i = 0; i < 3; i++) {
        ASSERT(!template_strike(dir, key, "killed by signal 6"));
        template_absolve(dir, key); /* a clone worked in between */
    }
    ASSERT(!template_strike(dir, key, "killed by signal 6"));
    ASSERT_OK(template_open(dir, key, &t, &err), err);
    template_close(&t);
    ASSERT(template_strike(dir, key, "killed by signal 11"));
    refused(key, ERR_DATA_LOSS, "2 clones failed in a row, the last: killed by");
    ASSERT(!template_strike(dir, "0123456789abcdef0123456789abcdef", "no such"));
    close_store();
}

TEST(a_failed_build_is_recorded_with_its_reason_and_growing_retry_times)
{
    static const uint64_t minute = UINT64_C(60) * 1000000000;
    AUTO_FREE struct template_failure *all = NULL;
    struct template_failure f;
    char key[TEMPLATE_KEY_SIZE] = "0123456789abcdef0123456789abcdef";
    struct err err = ERR_INIT;

    open_store();
    ASSERT(!template_failure(dir, key, &f));
    template_remember_failure(dir, key, 1000 * minute, "its clock is wrong\nsecond line");
    ASSERT(template_failure(dir, key, &f));
    ASSERT_STR(f.key, key);
    ASSERT_STR(f.why, "its clock is wrong");
    ASSERT_EQ(f.count, 1);
    ASSERT_EQ(template_retry_at(&f), 1010 * minute);
    template_remember_failure(dir, key, 2000 * minute, "again");
    ASSERT(template_failure(dir, key, &f));
    ASSERT_EQ(template_retry_at(&f), 2020 * minute);
    for (int i = 0; i < 20; i++)
        template_remember_failure(dir, key, 3000 * minute, "again");
    ASSERT(template_failure(dir, key, &f));
    ASSERT_EQ(f.count, 22);
    ASSERT_EQ(template_retry_at(&f), (3000 + 24 * 60) * minute);
    ASSERT_EQ(template_failures(dir, &all), 1);
    ASSERT_STR(all[0].why, "again");
    ASSERT_OK(template_remove(dir, key, &err), err); /* there is nothing else of it */
    ASSERT(!template_failure(dir, key, &f));
    ASSERT_FAIL(template_remove(dir, key, &err), err, ERR_NOT_FOUND);
    err_clear(&err);
    /* A successful build removes the record, and old records are removed. */
    make(key);
    template_remember_failure(dir, key, 1000 * minute, "broken");
    make(key);
    ASSERT(!template_failure(dir, key, &f));
    template_remember_failure(dir, key, 1000 * minute, "broken");
    ASSERT_OK(template_prune(dir, key, 1000 * minute + TEMPLATE_UNUSED_NS + 1, NULL, NULL, &err),
              err);
    ASSERT(!template_failure(dir, key, &f));
    close_store();
}

TEST(a_damaged_failure_record_has_no_reason)
{
    static const char *const damaged[] = { "", "1", "1 1", "x 1 why\n", "1 0 why\n", "1 x why\n" };
    static const char key[] = "0123456789abcdef0123456789abcdef";
    struct template_failure f;

    open_store();
    for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
        AUTO_FREE char *path = str_format("%s/failed-%s", dir, key);
        ASSERT_EQ(file_write(path, damaged[i], strlen(damaged[i]), 0600), 0);
        if (template_failure(dir, key, &f))
            ASSERT_STR(f.why, ""); /* without a reason */
    }
    close_store();
}

static char *program_identity(const char *path)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);

    ASSERT(fd >= 0);
    return template_program_identity(fd);
}

/* A reinstallation, a backup or a `touch` does not change the identity. */
TEST(the_identity_of_a_program_depends_on_its_content_not_its_times)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    open_store();
    AUTO_FREE char *one = below("one"), *two = below("two");
    ASSERT_EQ(file_read_all("/proc/self/exe", 256 << 20, &text, &len), 0);
    ASSERT_EQ(file_write(one, text, len, 0700), 0);
    AUTO_FREE char *before = program_identity(one);
    ASSERT_EQ(chmod(one, 0755), 0);
    ASSERT_EQ(utimensat(AT_FDCWD, one, NULL, 0), 0);
    AUTO_FREE char *touched = program_identity(one);
    ASSERT_STR(touched, before);
    ASSERT_EQ(file_write(two, text, len, 0700), 0);
    ASSERT_EQ(rename(two, one), 0);
    AUTO_FREE char *again = program_identity(one);
    ASSERT_STR(again, before);
    /* A script. */
    ASSERT_EQ(file_write(two, "#!/bin/sh\nexec qemu\n", 20, 0700), 0);
    AUTO_FREE char *script = program_identity(two);
    ASSERT_EQ(chmod(two, 0755), 0);
    AUTO_FREE char *same = program_identity(two);
    ASSERT_STR(script, same);
    ASSERT_EQ(file_write(two, "#!/bin/sh\nexec qemV\n", 20, 0700), 0);
    AUTO_FREE char *other = program_identity(two);
    ASSERT(strcmp(script, other) != 0);
    ASSERT(strcmp(script, before) != 0);
    close_store();
}

/* Two builds of one program differ in nothing but their build id. */
TEST(another_build_has_another_identity)
{
    char *at;
    AUTO_FREE char *text = NULL;
    size_t len;

    open_store();
    AUTO_FREE char *path = below("program");
    ASSERT_EQ(file_read_all("/proc/self/exe", 256 << 20, &text, &len), 0);
    ASSERT_EQ(file_write(path, text, len, 0700), 0);
    AUTO_FREE char *before = program_identity(path);
    if (!str_starts(before, "build "))
        tap_skip("programs have no build id here");
    at = memmem(text, len < 8192 ? len : 8192, "\x14\0\0\0\x03\0\0\0GNU", 12);
    ASSERT(at);
    at[12] ^= 1;
    ASSERT_EQ(file_write(path, text, len, 0700), 0);
    AUTO_FREE char *after = program_identity(path);
    ASSERT(strcmp(before, after) != 0);
    close_store();
}
