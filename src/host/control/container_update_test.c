/* Updates over the fake VMM and a scripted guest: the VM follows the limits in it. */
#include "fixture/registry_fixture.h"

#define POD(type) POD_OF(type, "pod")
#define POD_OF(type, pod)                                                                          \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"" type                               \
    "\",\"io.kubernetes.cri.sandbox-id\":\"" pod "\"}"

static int update(struct fixture *r, struct ctx *ctx, const char *id, const char *resources,
                  struct err *err)
{
    err_clear(err);
    return container_update(ctx, fixture_find(r, id), resources, strlen(resources), err);
}

static void open_with_pod(struct fixture *r, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    fixture_open(r, ctx);
    r->config.max_memory_mib = 2048;
    r->config.max_cpus = 4;
    fixture_write_spec(r, "pod", POD("sandbox"));
    fixture_write_spec(r, "w", POD("container"));
    ASSERT_OK(fixture_try_create(r, ctx, "pod", &err), err);
    fixture_start(r, ctx, "pod", "");
    ASSERT_OK(fixture_try_create(r, ctx, "w", &err), err);
}

static void close_pod(struct fixture *r, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    ASSERT_OK(registry_close(ctx, r->registry, &err), err);
    fixture_close(r, ctx);
}

TEST_VIRTUAL(a_pods_update_resizes_the_vm_and_limits_qemu)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    open_with_pod(&r, ctx);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 256);
    ASSERT_OK(update(&r, ctx, "pod",
                     "{\"memory\":{\"limit\":536870912},\"cpu\":{\"quota\":150000,\"period\":"
                     "100000,\"shares\":512}}",
                     &err),
              err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 640);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.cpus, 2);
    ASSERT_EQ(r.host.cpu_quota, 150000);
    ASSERT_EQ(r.host.cpu_shares, 512);
    ASSERT_EQ(r.guest.updates, 1);
    ASSERT_OK(update(&r, ctx, "pod", "{\"memory\":{\"limit\":268435456}}", &err), err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 384);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.cpus, 2); /* what is not said stays */
    close_pod(&r, ctx);
}

#define VM_OF "io.microsoft.virtualmachine."

static void write_group(struct fixture *r, const char *name, const char *cpus)
{
    struct err err = ERR_INIT;

    free(r->config.allow_annotations);
    r->config.allow_annotations = str_dup("io.*");
    free(r->config.cpu_group_dir);
    r->config.cpu_group_dir = str_format("%s/groups", r->dir);
    ASSERT_OK(cpugroup_write(r->config.cpu_group_dir, name, cpus, &err), err);
}

TEST_VIRTUAL(annotations_limit_qemu_and_follow_the_vms_size)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    write_group(&r, "fast", "0-1");
    write_group(&r, "slow", "3");
    r.config.max_cpus = 4;
    fixture_write_spec(&r, "c1",
                       ",\"annotations\":{\"" VM_OF "computetopology.processor.limit\":\"50000\","
                       "\"" VM_OF "computetopology.processor.weight\":\"700\","
                       "\"" VM_OF "cpugroup.id\":\"fast\"}");
    ASSERT_OK(fixture_try_create(&r, ctx, "c1", &err), err);
    ASSERT_EQ(r.host.cpu_quota, 50000);
    ASSERT_EQ(r.host.cpu_weight, 700);
    ASSERT_STR(r.host.cpuset, "0-1");
    ASSERT_STR(vm_parts(r.registry->vm)->cpu_group, "fast");
    ASSERT_EQ(strlen(vm_parts(r.registry->vm)->uuid), 36);
    ASSERT_OK(update(&r, ctx, "c1", "{\"cpu\":{\"quota\":300000,\"period\":100000}}", &err), err);
    ASSERT_EQ(r.host.cpu_quota, 150000); /* half of three CPUs, which is less */
    ASSERT_OK(update(&r, ctx, "c1", "{\"cpu\":{\"quota\":150000,\"period\":100000}}", &err), err);
    ASSERT_EQ(r.host.cpu_quota, 100000); /* of two: the VM has shrunk */
    ASSERT_OK(update(&r, ctx, "c1", "{\"cpu\":{\"quota\":20000,\"period\":100000}}", &err), err);
    ASSERT_EQ(r.host.cpu_quota, 20000);
    ASSERT_OK(registry_set_cpu_group(ctx, r.registry, "slow", &err), err);
    ASSERT_STR(r.host.cpuset, "3");
    ASSERT_FAIL(registry_set_cpu_group(ctx, r.registry, "none", &err), err, ERR_NOT_FOUND);
    ASSERT_STR(vm_parts(r.registry->vm)->cpu_group, "slow");
    close_pod(&r, ctx);
}

TEST_VIRTUAL(a_vm_with_fixed_memory_does_not_grow_and_takes_other_updates)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    free(r.config.allow_annotations);
    r.config.allow_annotations = str_dup("io.*");
    fixture_write_spec(&r, "c1", ",\"annotations\":{\"" VM_OF "fullyphysicallybacked\":\"true\"}");
    ASSERT_OK(fixture_try_create(&r, ctx, "c1", &err), err);
    ASSERT_FAIL(update(&r, ctx, "c1", "{\"memory\":{\"limit\":1073741824}}", &err), err, ERR_RANGE);
    ASSERT_EQ(err.reason, REASON_VM_MEMORY_LIMIT);
    ASSERT_MSG_HAS(err.msg, "an annotation fixed its memory at 256 MiB; start the pod again");
    err_clear(&err);
    ASSERT_OK(update(&r, ctx, "c1", "{\"cpu\":{\"shares\":77}}", &err), err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 256);
    close_pod(&r, ctx);
}

TEST_VIRTUAL(a_group_that_is_not_there_fails_the_create)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    write_group(&r, "fast", "0-1");
    fixture_write_spec(&r, "c1", ",\"annotations\":{\"" VM_OF "cpugroup.id\":\"other\"}");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "c1", &err), err, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, VM_OF
                   "cpugroup.id is \"other\": CPU group other does not exist; create it with");
    close_pod(&r, ctx);
}

TEST_VIRTUAL(what_a_sandbox_says_holds_for_its_containers)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    write_group(&r, "fast", "0-1");
    fixture_write_spec(&r, "pod",
                       ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"sandbox\","
                       "\"io.kubernetes.cri.sandbox-id\":\"pod\","
                       "\"" VM_OF "fileshares.disablewritable\":\"true\"}");
    fixture_write_spec(&r, "w",
                       POD("container") ",\"mounts\":[{\"destination\":\"/a\",\"type\":"
                                        "\"bind\",\"source\":\"/srv\",\"options\":[\"rbind\"]}]");
    fixture_write_spec(&r, "x",
                       ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"container\","
                       "\"io.kubernetes.cri.sandbox-id\":\"pod\","
                       "\"" VM_OF "computetopology.processor.limit\":\"5\"}");
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    fixture_start(&r, ctx, "pod", "");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "w", &err), err, ERR_PERMISSION);
    ASSERT_MSG_HAS(err.msg,
                   "mount /srv is writable, which annotation " VM_OF "fileshares.disablewritable");
    err_clear(&err);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "x", &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "processor.limit is \"5\", but the VM runs with another value");
    close_pod(&r, ctx);
}

TEST_VIRTUAL(a_container_that_needs_more_makes_the_vm_grow)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    open_with_pod(&r, ctx);
    ASSERT_OK(update(&r, ctx, "w",
                     "{\"memory\":{\"limit\":1073741824},\"cpu\":{\"quota\":300000,\"period\":"
                     "100000}}",
                     &err),
              err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 1152);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.cpus, 3);
    ASSERT_EQ(r.host.cpu_quota, 0); /* the pod's cgroup is the pod's */
    close_pod(&r, ctx);
}

TEST_VIRTUAL(more_than_there_can_be_is_refused_and_changes_nothing)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    open_with_pod(&r, ctx);
    ASSERT_FAIL(update(&r, ctx, "w", "{\"memory\":{\"limit\":4294967296}}", &err), err, ERR_RANGE);
    ASSERT_HAS(err.msg, "max_memory_mib = 2048");
    ASSERT_EQ(err.reason, REASON_VM_MEMORY_LIMIT);
    ASSERT_EQ(r.guest.updates, 0);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 256);
    ASSERT_FAIL(update(&r, ctx, "w", "{\"memory\":{\"limit\":\"x\"}}", &err), err, ERR_INVALID);
    ASSERT_EQ(r.guest.updates, 0);
    close_pod(&r, ctx);
}

TEST_VIRTUAL(a_pod_limit_below_the_first_vm_size_is_an_error_a_containers_is_not)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    open_with_pod(&r, ctx);
    ASSERT_FAIL(update(&r, ctx, "pod", "{\"memory\":{\"limit\":16777216}}", &err), err, ERR_RANGE);
    ASSERT_MSG_HAS(err.msg, "this VM can have 256–2048");
    ASSERT_OK(update(&r, ctx, "w", "{\"memory\":{\"limit\":8388608}}", &err), err);
    ASSERT_EQ(r.guest.updates, 2); /* in the guest both hold */
    close_pod(&r, ctx);
}

TEST_VIRTUAL(a_vm_that_does_not_grow_fails_the_update_before_the_guest_hears_of_it)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    r.vmm_opts.set_memory.how = FAKE_FAIL;
    open_with_pod(&r, ctx);
    ASSERT(update(&r, ctx, "w", "{\"memory\":{\"limit\":536870912}}", &err) < 0);
    ASSERT_MSG_HAS(err.msg, "update container w: resize the VM");
    ASSERT_EQ(r.guest.updates, 0);
    ASSERT_EQ(container_parts(fixture_find(&r, "w"))->limits.memory_bytes, 0);
    /* The recorded size is unchanged, so that a repeated update fails too instead of succeeding
     * without effect. */
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 256);
    ASSERT(update(&r, ctx, "w", "{\"memory\":{\"limit\":536870912}}", &err) < 0);
    fake_vmm_tune(r.vmm)->set_memory.how = FAKE_OK;
    ASSERT_OK(update(&r, ctx, "w", "{\"memory\":{\"limit\":536870912}}", &err), err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 640);
    close_pod(&r, ctx);
}

/* The guest may keep memory. Each further update requests the smaller size again, and fails again.
 */
TEST_VIRTUAL(a_vm_that_does_not_shrink_is_asked_again_with_the_next_update)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    open_with_pod(&r, ctx);
    ASSERT_OK(update(&r, ctx, "pod", "{\"memory\":{\"limit\":536870912}}", &err), err);
    fake_vmm_tune(r.vmm)->set_memory.how = FAKE_FAIL;
    for (int i = 0; i < 2; i++) {
        ASSERT(update(&r, ctx, "pod", "{\"memory\":{\"limit\":268435456}}", &err) < 0);
        ASSERT_MSG_HAS(err.msg, "resize the VM");
    }
    /* A container's own limits hold in the guest: no reason to fail. */
    ASSERT_OK(update(&r, ctx, "w", "{\"memory\":{\"limit\":134217728}}", &err), err);
    fake_vmm_tune(r.vmm)->set_memory.how = FAKE_OK;
    ASSERT_OK(update(&r, ctx, "pod", "{\"memory\":{\"limit\":268435456}}", &err), err);
    fake_vmm_tune(r.vmm)->set_memory.how = FAKE_FAIL; /* not asked: the VM has 384 MiB already */
    ASSERT_OK(update(&r, ctx, "pod", "{\"memory\":{\"limit\":268435456}}", &err), err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 384);
    close_pod(&r, ctx);
}

TEST_VIRTUAL(a_vm_that_keeps_its_memory_gives_its_vcpus_back)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    open_with_pod(&r, ctx);
    ASSERT_OK(update(&r, ctx, "pod",
                     "{\"memory\":{\"limit\":536870912},"
                     "\"cpu\":{\"quota\":200000,\"period\":100000}}",
                     &err),
              err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.cpus, 2);
    fake_vmm_tune(r.vmm)->set_memory.how = FAKE_FAIL;
    ASSERT(update(&r, ctx, "pod",
                  "{\"memory\":{\"limit\":268435456},"
                  "\"cpu\":{\"quota\":50000,\"period\":100000}}",
                  &err) < 0);
    ASSERT_MSG_HAS(err.msg, "resize the VM");
    ASSERT_EQ(vm_parts(r.registry->vm)->size.cpus, 1);
    close_pod(&r, ctx);
}

/* Only the pod's first container has ended; what its limits say holds for the others. */
TEST_VIRTUAL(an_update_after_the_end_of_a_pods_first_container_does_not_shrink_the_vm)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    open_with_pod(&r, ctx);
    fixture_start(&r, ctx, "w", "");
    fixture_write_spec(&r, "other", POD_OF("sandbox", "other")); /* it alone needs 256 MiB */
    ASSERT_OK(fixture_try_create(&r, ctx, "other", &err), err);
    ASSERT_OK(update(&r, ctx, "pod", "{\"memory\":{\"limit\":536870912}}", &err), err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 768);
    ASSERT_OK(fixture_try_kill(&r, ctx, "pod", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, ctx, "pod", ""), 137);
    ASSERT_EQ(container_state(fixture_find(&r, "w")), CONTAINER_RUNNING);
    ASSERT_OK(update(&r, ctx, "w", "{\"memory\":{\"limit\":268435456}}", &err), err);
    ASSERT_EQ(vm_parts(r.registry->vm)->size.memory_mib, 768);
    close_pod(&r, ctx);
}
