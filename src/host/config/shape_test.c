#include "base/err.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/config/annotations.h"
#include "host/config/shape.h"
#include <stdio.h>
#include <string.h>

static const struct sizing four = { 1024, 4 };

static void refused(const struct annotations *o, const char *part)
{
    struct vm_shape s;
    struct err err = ERR_INIT;

    ASSERT_FAIL(shape_of(o, &four, &s, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, part);
}

static struct vm_shape made(const struct annotations *o)
{
    struct vm_shape s = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(shape_of(o, &four, &s, &err), err);
    return s;
}

TEST(without_annotations_the_shape_is_empty)
{
    struct vm_shape s = made(&(struct annotations){ 0 });

    ASSERT(!s.backed && !s.kernel_args && !s.n_numa && !s.host_nodes && !s.disk_iops);
}

TEST(listed_kernel_parameters_are_accepted)
{
    static const char *const good[] = { "slab_nomerge", " hugepagesz=2M  hugepages=16 ",
                                        "mitigations=auto,nosmt nosmt", "hugepages=0" };

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct annotations o = { 0 };

        snprintf(o.kernel_args, sizeof(o.kernel_args), "%s", good[i]);
        ASSERT_STR(made(&o).kernel_args, good[i]);
    }
}

TEST(other_kernel_parameters_are_refused_by_name)
{
    static const char *const bad[] = { "init=/bin/sh",
                                       "rdinit=/x",
                                       "lcow.host=x",
                                       "hugepages=99999",
                                       "hugepages",
                                       "slab_nomerge=1",
                                       "psi=2",
                                       "psi",
                                       "psi=",
                                       "mitigations=off",
                                       "slab_nomergex",
                                       "console=ttyS1",
                                       "psi=1\nrdinit=/x",
                                       "hugepages=1,rdinit",
                                       "--",
                                       "psi=0|1" };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct annotations o = { 0 };
        AUTO_FREE char *quoted = str_format("\"%s\"", bad[i]);

        snprintf(o.kernel_args, sizeof(o.kernel_args), "nosmt %s", bad[i]);
        refused(&o, quoted);
    }
}

TEST(numa_nodes_can_be_listed_one_by_one)
{
    struct vm_shape s = made(&(struct annotations){
        .backed = true, .numa_host = "0,1", .numa_cpus = "1,3", .numa_mib = "256,768" });

    ASSERT_EQ(s.n_numa, 2);
    ASSERT_EQ(s.numa[1].cpus, 3);
    ASSERT_EQ(s.numa[1].memory_mib, 768);
    ASSERT_EQ(s.numa[1].host_node, 1);
    refused(&(struct annotations){ .numa_host = "0,1", .numa_cpus = "1,3", .numa_mib = "256,768" },
            "allowovercommit is \"true\": must be false with NUMA nodes");
    refused(&(struct annotations){ .backed = true, .numa_host = "0,1", .numa_cpus = "1,3" },
            "is \"0,1\": count-of-processors and count-of-memory-blocks have 2 and 0 numbers");
    refused(
        &(struct annotations){
            .backed = true, .numa_host = "0,1", .numa_cpus = "1,2", .numa_mib = "256,768" },
        "is \"1,2\": with count-of-memory-blocks \"256,768\": their sums must be the VM's 4 CPUs");
    refused(
        &(struct annotations){
            .backed = true, .numa_host = "0,255", .numa_cpus = "1,3", .numa_mib = "256,768" },
        "is \"0,255\": must be host nodes, 0–63, or 255 for each node");
    refused(
        &(struct annotations){
            .backed = true, .numa_host = "0,64", .numa_cpus = "1,3", .numa_mib = "256,768" },
        "is \"0,64\"");
    refused(&(struct annotations){ .backed = true, .numa_host = "0,", .numa_cpus = "1,3" },
            "mapped-physical-nodes is \"0,\": must be 1–16 numbers of 0–255");
    refused(&(struct annotations){ .backed = true, .numa_cpus = "0,4" },
            "count-of-processors is \"0,4\": must be 1–16 numbers of 1–64");
    refused(&(struct annotations){ .numa_prefer = "0 1" }, "preferred-physical-nodes is \"0 1\"");
    ASSERT_EQ(made(&(struct annotations){ .numa_prefer = "0,3" }).host_nodes, 9);
}

TEST(numa_nodes_can_have_equal_size)
{
    struct vm_shape s =
        made(&(struct annotations){ .committed = true, .node_cpus = 3, .node_mib = 400 });

    ASSERT_EQ(s.n_numa, 3); /* by memory */
    ASSERT_EQ(s.numa[0].cpus + s.numa[1].cpus + s.numa[2].cpus, 4);
    ASSERT_EQ(s.numa[0].memory_mib + s.numa[1].memory_mib + s.numa[2].memory_mib, 1024);
    ASSERT_EQ(s.numa[2].host_node, VM_NUMA_ANY);
    refused(&(struct annotations){ .committed = true, .node_cpus = 3 }, "set both or neither");
    refused(&(struct annotations){ .committed = true, .node_cpus = 1, .node_mib = 10 },
            "the result is 103 nodes");
}

TEST(memory_cannot_be_allocated_both_at_the_start_and_on_use)
{
    refused(&(struct annotations){ .backed = true, .deferred = true }, "enabledeferredcommit");
    ASSERT(made(&(struct annotations){ .committed = true }).backed);
}

TEST(cpu_groups_are_files)
{
    AUTO(tempdir_release) struct tempdir t;
    AUTO(strv_release) struct strv names = { 0 };
    AUTO_FREE char *cpus = NULL, *dir = NULL;
    struct err err = ERR_INIT;

    tempdir_init(&t, "/tmp");
    dir = str_format("%s/groups", t.dir);
    ASSERT_OK(cpugroup_list(dir, &names, &err), err);
    ASSERT_EQ(names.n, 0);
    ASSERT_FAIL(cpugroup_read(dir, "fast", &cpus, &err), err, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "lcow cpugroup create fast CPUS");
    err_clear(&err);
    ASSERT_OK(cpugroup_write(dir, "slow", "0", &err), err);
    ASSERT_OK(cpugroup_write(dir, "fast", "1", &err), err);
    ASSERT_OK(cpugroup_write(dir, "fast", "0-1,8", &err), err);
    ASSERT_OK(cpugroup_read(dir, "fast", &cpus, &err), err);
    ASSERT_STR(cpus, "0-1,8");
    ASSERT_OK(cpugroup_list(dir, &names, &err), err);
    ASSERT_EQ(names.n, 2);
    ASSERT_STR(names.v[0], "fast");
    ASSERT_FAIL(cpugroup_read(dir, "../slow", &cpus, &err), err, ERR_INVALID);
    ASSERT_FAIL(cpugroup_write(dir, ".x", "0", &err), err, ERR_INVALID);
    ASSERT_FAIL(cpugroup_write(dir, "x", "all", &err), err, ERR_INVALID);
    refused(&(struct annotations){ .cpu_group = "a/b" }, "invalid CPU group \"a/b\"");
}
