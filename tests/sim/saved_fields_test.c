/* saved_fields_test.c - fields whose loss a schedule does not show, because they have the same
 * value in all schedules or are only printed: here each has a value of its own, and has it again
 * after an upgrade. */
#include "base/saved.h"
#include "fixture/registry_fixture.h"
#include "host/control/container_priv.h"
#include "host/control/events_priv.h"
#include "host/control/pod_priv.h"
#include "host/control/process_priv.h"
#include "host/control/sandbox_priv.h"
#include "host/control/vm_priv.h"
#include "host/device/plan9_priv.h"
#include "host/device/scsi_priv.h"
#include "host/device/vpci_priv.h"

#define MOVED SCSI_LUNS /* to another controller */
#define OF_POD                                                                                     \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"%s\","                               \
    "\"io.kubernetes.cri.sandbox-id\":\"p\"}"

/* Of a and b, which have the same type. */
#define NUMBERS(X)                                                                                 \
    X(p.limits.memory_bytes)                                                                       \
    X(p.limits.cpu_period)                                                                         \
    X(p.limits.cpu_quota)                                                                          \
    X(p.limits.cpu_shares)                                                                         \
    X(p.writes_host)                                                                               \
    X(p.hidden)                                                                                    \
    X(p.forsaken)                                                                                  \
    X(p.pid)                                                                                       \
    X(kind)                                                                                        \
    X(no_writable_shares)                                                                          \
    X(privileged)                                                                                  \
    X(own_pids)                                                                                    \
    X(ending)                                                                                      \
    X(end_ask)                                                                                     \
    X(end_status)                                                                                  \
    X(scratch_bytes)                                                                               \
    X(scratch_quota_mib)                                                                           \
    X(root_writes)                                                                                 \
    X(combined)                                                                                    \
    X(anchor_watched)                                                                              \
    X(oom_watched)                                                                                 \
    X(oom_wait_id)                                                                                 \
    X(oom_rate.full_at_ns)                                                                         \
    X(oom_untold)                                                                                  \
    X(anchor_lost)                                                                                 \
    X(hooks_begun)
#define TEXTS(X)                                                                                   \
    X(p.id)                                                                                        \
    X(p.bundle)                                                                                    \
    X(p.anchor_name)                                                                               \
    X(log_name)                                                                                    \
    X(log_dir)                                                                                     \
    X(log_uri)                                                                                     \
    X(last_stats)                                                                                  \
    X(bundle_path)                                                                                 \
    X(root_path)                                                                                   \
    X(scratch_path)
#define PROCESS_NUMBERS(X)                                                                         \
    X(terminal)                                                                                    \
    X(stdin_closed)                                                                                \
    X(rows)                                                                                        \
    X(cols)                                                                                        \
    X(guest_pid)                                                                                   \
    X(pid)                                                                                         \
    X(wait_id)                                                                                     \
    X(exit_status)                                                                                 \
    X(exited_wall_ns)                                                                              \
    X(killed)                                                                                      \
    X(killed_until)
#define PROCESS_TEXTS(X)                                                                           \
    X(exec_id)                                                                                     \
    X(in)                                                                                          \
    X(out)                                                                                         \
    X(err)
#define VM_NUMBERS(X)                                                                              \
    X(p.size.memory_mib)                                                                           \
    X(p.size.cpus)                                                                                 \
    X(p.started_wall_ns)                                                                           \
    X(o.set_oom_score_adj)                                                                         \
    X(o.oom_score_adj)                                                                             \
    X(memory_unsure)                                                                               \
    X(cpus_unsure)                                                                                 \
    X(clock_checked)                                                                               \
    X(clock.verdict)                                                                               \
    X(clock.low_ppm)                                                                               \
    X(clock.high_ppm)                                                                              \
    X(first_start.set)                                                                             \
    X(p.wishes.memory_mib)                                                                         \
    X(p.wishes.cpus)                                                                               \
    X(p.wishes.scratch_quota_mib)                                                                  \
    X(p.wishes.rootfs)                                                                             \
    X(p.wishes.shared_empty_dirs)                                                                  \
    X(p.wishes.said_empty_dirs)                                                                    \
    X(p.wishes.encrypted_scratch)                                                                  \
    X(p.wishes.privileged)                                                                         \
    X(p.wishes.no_writable_shares)                                                                 \
    X(p.wishes.said_shares)                                                                        \
    X(p.wishes.cpu_limit)                                                                          \
    X(p.wishes.cpu_weight)                                                                         \
    X(p.wishes.disk_iops)                                                                          \
    X(p.wishes.disk_bytes_per_s)                                                                   \
    X(p.wishes.low_mmio_mib)                                                                       \
    X(p.wishes.high_mmio_mib)                                                                      \
    X(p.wishes.node_cpus)                                                                          \
    X(p.wishes.node_mib)                                                                           \
    X(p.wishes.committed)                                                                          \
    X(p.wishes.backed)                                                                             \
    X(p.wishes.deferred)                                                                           \
    X(p.wishes.no_timesync)
#define VM_TEXTS(X)                                                                                \
    X(id)                                                                                          \
    X(p.cgroup_path)                                                                               \
    X(p.scratch_path)                                                                              \
    X(p.kernel)                                                                                    \
    X(p.cpu_group)
#define VM_ARRAYS(X)                                                                               \
    X(p.uuid)                                                                                      \
    X(p.wishes.cpu_group)                                                                          \
    X(p.wishes.kernel_args)                                                                        \
    X(p.wishes.numa_host)                                                                          \
    X(p.wishes.numa_cpus)                                                                          \
    X(p.wishes.numa_mib)                                                                           \
    X(p.wishes.numa_prefer)
#define POD_NUMBERS(X)                                                                             \
    X(takes_workloads)                                                                             \
    X(hidden)                                                                                      \
    X(shares_empty_dirs)                                                                           \
    X(has_scratch)
#define POD_TEXTS(X)                                                                               \
    X(id)                                                                                          \
    X(guest_id)                                                                                    \
    X(ids.uid)                                                                                     \
    X(ids.gid)                                                                                     \
    X(netns)
#define MOUNT_NUMBERS(X)                                                                           \
    X(state)                                                                                       \
    X(held.leaving)                                                                                \
    X(guest.partition)                                                                             \
    X(guest.read_only)                                                                             \
    X(guest.encrypted)                                                                             \
    X(guest.ensure_filesystem)                                                                     \
    X(guest.block_device)                                                                          \
    X(guest.verity)                                                                                \
    X(guest.fs_group)
#define MOUNT_TEXTS(X)                                                                             \
    X(guest.mount_path)                                                                            \
    X(guest.root_hash)                                                                             \
    X(guest.filesystem)                                                                            \
    X(guest.fs_group_policy)
#define DISK_NUMBERS(X)                                                                            \
    X(leaving)                                                                                     \
    X(deserted)                                                                                    \
    X(image.dev)                                                                                   \
    X(image.ino)                                                                                   \
    X(image.bytes)                                                                                 \
    X(read_only)
#define SHARE_NUMBERS(X)                                                                           \
    X(state)                                                                                       \
    X(mount)                                                                                       \
    X(held.leaving)                                                                                \
    X(dev)                                                                                         \
    X(ino)                                                                                         \
    X(read_only)                                                                                   \
    X(unique)
#define SHARE_TEXTS(X)                                                                             \
    X(name)                                                                                        \
    X(host_path)                                                                                   \
    X(path)
#define DEVICE_NUMBERS(X) X(state) X(held.leaving)
#define DEVICE_TEXTS(X) X(address) X(id) X(place)
#define EVENT_NUMBERS(X)                                                                           \
    X(kind)                                                                                        \
    X(wall_ns)                                                                                     \
    X(pid)                                                                                         \
    X(exit_status)                                                                                 \
    X(exited_wall_ns)                                                                              \
    X(terminal)                                                                                    \
    X(n_rootfs)
#define EVENT_TEXTS(X)                                                                             \
    X(container_id)                                                                                \
    X(exec_id)                                                                                     \
    X(bundle)                                                                                      \
    X(in)                                                                                          \
    X(out)                                                                                         \
    X(err)                                                                                         \
    X(rootfs[0].type)                                                                              \
    X(rootfs[0].source)                                                                            \
    X(rootfs[0].target)                                                                            \
    X(rootfs[0].options[1])

/* A value that no new object has; enumerations and states stay as they are if they are not 0. */
#define GIVE(f)                                                                                    \
    if (!a->f)                                                                                     \
        a->f = (__typeof__(a->f))1;
#define GIVE_TEXT(f)                                                                               \
    if (!a->f || !a->f[0])                                                                         \
        a->f = str_format("the %s", #f);
#define GIVE_ARRAY(f)                                                                              \
    if (!a->f[0])                                                                                  \
        snprintf(a->f, sizeof(a->f), "12");
#define SAME(f) ASSERT_EQ(b->f, a->f);
#define SAME_TEXT(f) ASSERT_STR(b->f, a->f);

static struct vmm *the_same(void *arg)
{
    return ((struct fixture *)arg)->vmm;
}

static bool all(void *arg, const char *name)
{
    (void)arg, (void)name;
    return true;
}

/* As the world of the simulation: see world_upgrade.c. */
static void go_on(struct fixture *r, struct registry **ret)
{
    struct saved *writer = saved_writer(), *reader;
    struct registry_opts o = r->registry->o;
    struct err err = ERR_INIT;
    const void *data;
    size_t len;

    registry_saved(writer, r->registry);
    ASSERT_OK(saved_finish(writer, &data, &len, &err), err);
    ASSERT_OK(saved_reader(data, len, &reader, &err), err);
    loop_drop_fibers(r->loop, all, NULL);
    saved_hand_over(reader, writer);
    o.make_vmm = the_same;
    *ret = registry_new(&o);
    registry_saved(reader, *ret);
    ASSERT_OK(saved_check(reader, &err), err);
    saved_free(reader);
    saved_free(writer);
}

static void add(struct fixture *r, struct ctx *ctx, const char *id, const char *kind)
{
    AUTO_FREE char *more = str_format(OF_POD, kind);
    struct err err = ERR_INIT;

    fixture_write_spec(r, id, more);
    ASSERT_OK(fixture_try_create(r, ctx, id, &err), err);
    fixture_start(r, ctx, id, "");
}

static void compare_devices(const struct vm_parts *x, const struct vm_parts *y)
{
    ASSERT_EQ(y->scsi->keeps_first, x->scsi->keeps_first);
    ASSERT_EQ(y->scsi->silent, x->scsi->silent);
    ASSERT_EQ(y->scsi->lost[40], true);
    ASSERT_EQ(y->scsi->reservations.last_id, x->scsi->reservations.last_id);
    ASSERT_EQ(y->plan9->next_name, x->plan9->next_name);
    ASSERT_EQ(y->plan9->reservations.last_id, x->plan9->reservations.last_id);
    ASSERT_EQ(y->vpci->next_name, x->vpci->next_name);
    ASSERT_EQ(y->vpci->reservations.last_id, x->vpci->reservations.last_id);
    {
        const struct mount *a = LIST_FIRST(&x->scsi->slots[MOVED]->mounts, struct mount, node),
                           *b = LIST_FIRST(&y->scsi->slots[MOVED]->mounts, struct mount, node);

        MOUNT_NUMBERS(SAME)
        MOUNT_TEXTS(SAME_TEXT)
        ASSERT_STR(b->options.v[0], a->options.v[0]);
    }
    {
        const struct disk *a = x->scsi->slots[MOVED], *b = y->scsi->slots[MOVED];

        DISK_NUMBERS(SAME)
    }
    {
        const struct share *a = LIST_FIRST(&x->plan9->shares, struct share, node),
                           *b = LIST_FIRST(&y->plan9->shares, struct share, node);

        SHARE_NUMBERS(SAME)
        SHARE_TEXTS(SAME_TEXT)
    }
    {
        const struct device *a = LIST_FIRST(&x->vpci->devices, struct device, node),
                            *b = LIST_FIRST(&y->vpci->devices, struct device, node);

        DEVICE_NUMBERS(SAME)
        DEVICE_TEXTS(SAME_TEXT)
    }
}

static void give_device(struct vpci *c)
{
    struct device *a = mem_new(struct device);
    struct reservation *one = mem_new(struct reservation);

    DEVICE_NUMBERS(GIVE)
    DEVICE_TEXTS(GIVE_TEXT)
    a->held.refs = 1;
    list_append(&c->devices, &a->node);
    *one = (struct reservation){ .id = 7, .thing = &a->held };
    list_append(&c->reservations.list, &one->node);
    c->reservations.last_id = 8;
    c->next_name = 9;
}

static void give_devices(const struct vm_parts *p)
{
    p->scsi->slots[MOVED] = TAKE_PTR(p->scsi->slots[0]);
    p->scsi->slots[MOVED]->slot.controller = 1;
    p->scsi->keeps_first = p->scsi->silent = p->scsi->lost[40] = true;
    p->scsi->reservations.last_id += 100;
    p->plan9->reservations.last_id += 100;
    give_device(p->vpci);
    {
        struct mount *a = LIST_FIRST(&p->scsi->slots[MOVED]->mounts, struct mount, node);

        MOUNT_NUMBERS(GIVE)
        MOUNT_TEXTS(GIVE_TEXT)
        strv_add(&a->options, "an option");
    }
    {
        struct disk *a = p->scsi->slots[MOVED];

        DISK_NUMBERS(GIVE)
    }
    {
        struct share *a = LIST_FIRST(&p->plan9->shares, struct share, node);

        SHARE_NUMBERS(GIVE)
        SHARE_TEXTS(GIVE_TEXT)
    }
}

static void give_volumes(struct pod *pod)
{
    struct pod_volume *v = mem_new(struct pod_volume);

    *v = (struct pod_volume){ .dir = str_dup("/dir"), .key = str_dup("key"), .local = true };
    list_append(&pod->volumes, &v->node);
}

static void compare_pods(const struct pod *a, const struct pod *b)
{
    POD_NUMBERS(SAME)
    POD_TEXTS(SAME_TEXT)
    {
        const struct pod_volume *v = LIST_FIRST(&b->volumes, struct pod_volume, node);

        ASSERT(v != NULL);
        ASSERT_STR(v->dir, "/dir");
        ASSERT_STR(v->key, "key");
        ASSERT(v->local);
    }
}

TEST_VIRTUAL(each_field_of_an_event_is_saved)
{
    static const char *const options[] = { "ro", "x", NULL };
    struct event_mount mount = { .options = options };
    struct event given = { .rootfs = &mount, .n_rootfs = 1 };
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct events *from = events_new(), *to = events_new();
    struct err err = ERR_INIT;
    const struct event *b;
    const void *data;
    size_t len;

    {
        struct event *a = &given;

        a->kind = EVENT_CREATE;
        EVENT_NUMBERS(GIVE)
    }
    given.container_id = "c";
    given.exec_id = "x";
    given.bundle = "/b";
    given.in = "/i";
    given.out = "/o";
    given.err = "/e";
    mount.type = "t";
    mount.source = "s";
    mount.target = "g";
    events_push(from, &given);
    from->dropped = 3;
    events_saved(writer, from);
    ASSERT_OK(saved_finish(writer, &data, &len, &err), err);
    ASSERT_OK(saved_reader(data, len, &reader, &err), err);
    events_saved(reader, to);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT_EQ(to->dropped, 3);
    ASSERT_EQ(events_pending(to), 1);
    ASSERT_OK(events_next(ctx, to, &b, &err), err);
    {
        const struct event *a = &LIST_FIRST(&from->items, struct item, in_queue)->event;

        EVENT_NUMBERS(SAME)
        EVENT_TEXTS(SAME_TEXT)
    }
    events_free(from);
    events_free(to);
}

static struct fixture kept; /* what was replaced cannot be freed */
static struct registry *next;

static void pods_main(void *arg)
{
    struct fixture *r = &kept;
    struct ctx root = ctx_root(arg);
    struct container *p, *p1;
    struct err err = ERR_INIT;

    r->guest_opts.process_ns = 900 * NS_PER_S;
    fixture_open(r, &root);
    add(r, &root, "p", "sandbox");
    add(r, &root, "p1", "container");
    fixture_exec(r, &root, "p1", "x0");
    ASSERT_OK(loop_wait_idle(&root, "all to settle", &err), err);
    p = fixture_find(r, "p");
    p1 = fixture_find(r, "p1");
    r->registry->lost_bytes = 5;
    r->registry->forsook = true;
    {
        struct container *a = p1;

        NUMBERS(GIVE)
        TEXTS(GIVE_TEXT)
        strv_add(&a->layers, "/layer");
        give_volumes(a->p.pod);
    }
    {
        struct process *a = p1->execs[0];

        PROCESS_NUMBERS(GIVE)
        PROCESS_TEXTS(GIVE_TEXT)
    }
    {
        struct pod *a = p->p.pod;

        POD_NUMBERS(GIVE)
        POD_TEXTS(GIVE_TEXT)
    }
    {
        struct vm *a = r->registry->vm;

        a->clock_checking = false; /* else it begins again, and is set by that */
        VM_NUMBERS(GIVE)
        VM_TEXTS(GIVE_TEXT)
        VM_ARRAYS(GIVE_ARRAY)
    }
    give_devices(&r->registry->vm->p);
    go_on(r, &next);
    ASSERT_EQ(next->lost_bytes, 5);
    ASSERT_EQ(next->forsook, true);
    ASSERT_EQ(next->record, r->registry->record);
    ASSERT_EQ(next->n_containers, 2);
    {
        const struct container *a = r->registry->containers[1], *b = next->containers[1];

        NUMBERS(SAME)
        TEXTS(SAME_TEXT)
        ASSERT_EQ(b->layers.n, a->layers.n);
        ASSERT_EQ(b->n_holdings, a->n_holdings);
        compare_pods(a->p.pod, b->p.pod);
    }
    {
        const struct process *a = r->registry->containers[1]->execs[0],
                             *b = next->containers[1]->execs[0];

        PROCESS_NUMBERS(SAME)
        PROCESS_TEXTS(SAME_TEXT)
    }
    {
        const struct vm *a = r->registry->vm, *b = next->vm;

        VM_NUMBERS(SAME)
        VM_TEXTS(SAME_TEXT)
        VM_ARRAYS(SAME_TEXT)
    }
    compare_devices(&r->registry->vm->p, &next->vm->p);
    loop_stop(arg); /* nothing of it may run: what it was given is not true */
}

TEST(each_field_of_pods_and_their_vm_is_saved)
{
    struct loop *loop = loop_new(&(struct loop_opts){ .virtual_time = true });

    fiber_go(loop, pods_main, loop, "test");
    (void)loop_run(loop);
    ASSERT(next != NULL);
    (void)dir_remove(kept.dir);
    loop_free(loop);
}
