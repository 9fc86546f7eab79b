#include "base/fd.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <stdlib.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

TEST(a_large_vm_keeps_75_mib)
{
    ASSERT_EQ(cgroup_pods_limit(1024 * MIB), 949 * MIB);
    ASSERT_EQ(cgroup_pods_limit(300 * MIB), 225 * MIB);
}

TEST(a_small_vm_keeps_a_quarter)
{
    ASSERT_EQ(cgroup_pods_limit(128 * MIB), 96 * MIB);
    ASSERT_EQ(cgroup_pods_limit(0), 0);
}

static void write_in(const char *dir, const char *name, const char *text)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);

    ASSERT_EQ(file_write(path, text, __builtin_strlen(text), 0644), 0);
}

static char *read_in(const char *dir, const char *name)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);
    char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(path, 4096, &text, &len), 0);
    return text;
}

/* As the kernel makes them. */
static void make_attributes(struct tempdir *p)
{
    static const char *const names[] = { "cgroup.subtree_control", "gcs/cgroup.procs",
                                         "pods/memory.max", "pods/cgroup.max.depth",
                                         "pods/cgroup.subtree_control" };

    ASSERT_EQ(dir_make(tempdir_path(p, "gcs"), 0755), 0);
    ASSERT_EQ(dir_make(tempdir_path(p, "pods"), 0755), 0);
    write_in(p->dir, "cgroup.controllers", "cpu memory\n");
    write_in(p->dir, "pods/cgroup.controllers", "cpu io memory pids\n");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        write_in(p->dir, names[i], "");
}

TEST(the_groups_are_made_and_limited)
{
    TEMPDIR(p);
    const char *dir = p.dir;
    struct err err = ERR_INIT;

    make_attributes(&p);
    for (int again = 0; again < 2; again++) {
        ASSERT_OK(cgroup_setup(dir, 128 * MIB, &err), err);
        AUTO_FREE char *max = read_in(dir, "pods/memory.max"),
                       *procs = read_in(dir, "gcs/cgroup.procs"),
                       *all = read_in(dir, "cgroup.subtree_control"),
                       *deep = read_in(dir, "pods/cgroup.max.depth"),
                       *on = read_in(dir, "pods/cgroup.subtree_control");
        ASSERT_STR(max, "100663296");
        ASSERT_STR(procs, "0");
        ASSERT_STR(deep, "16");
        ASSERT_STR(all, "+cpu +memory ");
        ASSERT_STR(on, "+cpu +io +memory +pids ");
    }
}

TEST(without_controllers_the_groups_are_there_all_the_same)
{
    TEMPDIR(p);
    struct err err = ERR_INIT;

    ASSERT_FAIL(cgroup_setup(p.dir, 128 * MIB, &err), err, ERR_NOT_FOUND);
    ASSERT_EQ(access(tempdir_path(&p, "pods"), F_OK), 0);
    ASSERT_EQ(access(tempdir_path(&p, "commands"), F_OK), 0);
}

TEST(commands_leave_32_mib_or_a_quarter)
{
    ASSERT_EQ(cgroup_commands_limit(1024 * MIB, 0), 992 * MIB);
    ASSERT_EQ(cgroup_commands_limit(40 * MIB, 5 * MIB), 35 * MIB);
}

TEST(commands_get_what_is_available_and_keep_what_they_hold)
{
    TEMPDIR(p);
    const char *dir = p.dir;
    struct err err = ERR_INIT;

    AUTO_FREE char *commands = str_format("%s/commands", dir),
                   *info = str_format("%s/meminfo", dir);
    write_in(dir, "meminfo", "MemTotal: 131072 kB\nMemFree: 1 kB\nMemAvailable:    65536 kB\n");
    ASSERT_FAIL(cgroup_limit_commands(dir, info, &err), err, ERR_NOT_FOUND);
    err_clear(&err);
    ASSERT_EQ(dir_make(commands, 0755), 0);
    write_in(dir, "commands/memory.max", "");
    write_in(dir, "commands/memory.stat",
             "anon 1048576\nfile 99999999\nkernel 4096\nkernel_stack 7\nshmem 2097152\n");
    ASSERT_OK(cgroup_limit_commands(dir, info, &err), err);
    AUTO_FREE char *max = read_in(dir, "commands/memory.max"),
                   *wanted = str_format("%lu", (1 + 2 + 64 - 16) * MIB + 4096);
    ASSERT_STR(max, wanted);
}

TEST(a_missing_hierarchy_is_named)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(cgroup_setup("/nonexistent/cgroup", MIB, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/nonexistent/cgroup/gcs");
}
