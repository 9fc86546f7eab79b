/* Disks and shares from end to end: the controllers, QEMU, and the agent that mounts them. What a
 * container's files are made of, without the container. */
#include "fixture/device_fixture.h"
#include "fixture/real_vm.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/files/rootfs.h"
#include "host/files/scratch.h"
#include "host/files/tree.h"
#include "host/ledger/ledger.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define NOTHING_LEFT "grep -c ' /run/mounts/[sp][a-z0-9]*/' /proc/mounts; ls /sys/bus/scsi/devices"

struct fixture {
    struct real_vm fixture;
    struct ctx limited;
    struct scsi *scsi;
    struct plan9 *plan9;
    struct ledger *ledger;
    struct scratch *scratch;
    uint64_t scratch_id;
    char *scratch_path;
};

static struct scratch *make_scratch(struct fixture *f, const char *id)
{
    AUTO_FREE char *state = str_format("%s/state", f->fixture.temp.dir);
    const struct scratch_opts o = {
        .dir = state, .ns = "test", .id = id, .size_mib = 1024, .ledger = f->ledger
    };
    struct scratch *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(scratch_make(&f->limited, &o, &s, &err), err);
    return s;
}

static void drop_scratch(struct fixture *f, struct scratch *s)
{
    struct err err = ERR_INIT;

    ASSERT_OK(scratch_remove(&f->limited, s, &err), err);
    scratch_free(s);
}

static void start(struct ctx *ctx, struct fixture *f)
{
    struct err err = ERR_INIT;

    *f = (struct fixture){ .scsi = NULL };
    real_vm_start(ctx, &f->fixture);
    f->limited = ctx_with_timeout(&f->fixture.root, FIXTURE_CALL_NS);
    f->scsi = scsi_new(f->fixture.vmm, f->fixture.guest, 1);
    f->plan9 = plan9_new(f->fixture.vmm, f->fixture.guest);
    ASSERT_OK(ledger_create(tempdir_path(&f->fixture.temp, "own"), &f->ledger, &err), err);
    f->scratch = make_scratch(f, "box");
    const struct scsi_disk disk = { .host_path = "(scratch)", .fd = scratch_fd(f->scratch) };
    ASSERT_OK(scsi_reserve(&f->limited, f->scsi, &disk,
                           &(struct guest_disk){ .filesystem = "ext4" }, &f->scratch_id, &err),
              err);
    ASSERT_OK(scsi_map(&f->limited, f->scsi, f->scratch_id, &f->scratch_path, &err), err);
    ASSERT_STR(f->scratch_path, "/run/mounts/scsi/0_0_0");
}

static void finish(struct fixture *f)
{
    struct err err = ERR_INIT;
    uint32_t code;

    ASSERT_OK(scsi_unmap(&f->limited, f->scsi, f->scratch_id, &err), err);
    ASSERT_EQ(scsi_used_slots(f->scsi), 0);
    ASSERT_EQ(plan9_used(f->plan9), 0);
    AUTO_FREE char *left = real_vm_sh(&f->fixture, NOTHING_LEFT, &code);
    ASSERT(str_starts(left, "0\n") && !strstr(left, ":0:0:"));
    drop_scratch(f, f->scratch);
    ASSERT_OK(ledger_finish(f->ledger, &err), err);
    ledger_close(f->ledger);
    scsi_free(f->scsi);
    plan9_free(f->plan9);
    free(f->scratch_path);
    real_vm_finish(&f->fixture);
}

static uint64_t share(struct fixture *f, const char *path, int tree, bool read_only, bool unique,
                      char **ret_path)
{
    const struct plan9_share s = {
        .host_path = path, .tree_fd = tree, .read_only = read_only, .unique = unique
    };
    struct err err = ERR_INIT;
    uint64_t id;

    ASSERT_OK(plan9_reserve(&f->limited, f->plan9, &s, &id, &err), err);
    ASSERT_OK(plan9_map(&f->limited, f->plan9, id, ret_path, &err), err);
    return id;
}

static void unshare_id(struct fixture *f, uint64_t id)
{
    struct err err = ERR_INIT;

    ASSERT_OK(plan9_unmap(&f->limited, f->plan9, id, &err), err);
}

static void put(struct fixture *f, const char *name, const char *text)
{
    ASSERT_EQ(file_write(tempdir_path(&f->fixture.temp, name), text, strlen(text), 0644), 0);
}

static void make_dir(struct fixture *f, const char *name)
{
    ASSERT_EQ(mkdir(tempdir_path(&f->fixture.temp, name), 0755), 0);
}

static int open_rootfs(struct fixture *f)
{
    AUTO_FREE char *lower = str_format("lowerdir=%s/low", f->fixture.temp.dir);
    AUTO_FREE char *upper = str_format("upperdir=%s/up", f->fixture.temp.dir);
    AUTO_FREE char *work = str_format("workdir=%s/work", f->fixture.temp.dir);
    const char *const options[] = { "index=off", work, upper, lower, NULL };
    const struct rootfs_mount m = { "overlay", "overlay", options };
    struct err err = ERR_INIT;
    struct rootfs fs;

    make_dir(f, "low");
    make_dir(f, "up");
    make_dir(f, "work");
    put(f, "low/keep", "from below");
    put(f, "low/gone", "deleted");
    ASSERT_EQ(mknod(tempdir_path(&f->fixture.temp, "up/gone"), S_IFCHR, makedev(0, 0)), 0);
    ASSERT_OK(rootfs_open(&f->limited, &m, 1, NULL, false, NULL, &fs, &err), err);
    return fs.tree;
}

TEST_FIBER(a_root_file_system_is_merged_and_written_on_the_scratch_disk)
{
    struct fixture f;
    struct err err = ERR_INIT;
    AUTO_FREE char *layer = NULL;

    start(ctx, &f);
    AUTO_FD int tree = open_rootfs(&f);
    uint64_t id = share(&f, "the rootfs", tree, true, true, &layer);
    fd_close(TAKE_FD(tree));
    ASSERT_STR(layer, "/run/mounts/plan9/0");
    const char *const layers[] = { layer, NULL };
    AUTO_FREE char *scratch = str_format("%s/scratch/pod/one", f.scratch_path);
    const struct guest_layers l = { .container = "one",
                                    .root_path = "/run/gcs/pods/pod/one/rootfs",
                                    .scratch_path = scratch,
                                    .layers = layers };

    ASSERT_OK(f.fixture.guest->ops->combine_layers(&f.limited, f.fixture.guest, &l, &err), err);
    real_vm_expect(&f.fixture,
                   "cd /run/gcs/pods/pod/one/rootfs && ls && echo mine > keep && cat keep && "
                   "cat /run/mounts/plan9/0/keep",
                   "keep\nmine\nfrom below");
    ASSERT_OK(f.fixture.guest->ops->uncombine_layers(&f.limited, f.fixture.guest, &l, &err), err);
    unshare_id(&f, id);
    struct stat st;
    ASSERT_EQ(stat(tempdir_path(&f.fixture.temp, "low/keep"), &st), 0);
    ASSERT_EQ(st.st_size, 10);
    finish(&f);
}

TEST_FIBER(volumes_are_directories_and_single_files_each_in_its_mode)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct tree data, hosts;
    AUTO_FREE char *a = NULL, *b = NULL, *again = NULL;

    start(ctx, &f);
    make_dir(&f, "data");
    put(&f, "data/in", "in");
    put(&f, "hosts", "127.0.0.1");
    ASSERT_OK(tree_open(&f.limited, tempdir_path(&f.fixture.temp, "data"), &(struct tree_opts){ 0 },
                        &data, &err),
              err);
    ASSERT_OK(tree_open(&f.limited, tempdir_path(&f.fixture.temp, "hosts"),
                        &(struct tree_opts){ .read_only = true }, &hosts, &err),
              err);
    uint64_t one = share(&f, "/data", data.fd, false, false, &a);
    uint64_t two = share(&f, "/data", data.fd, false, false, &again);
    uint64_t file = share(&f, "/hosts", hosts.fd, true, false, &b);

    fd_close(data.fd);
    fd_close(hosts.fd);
    ASSERT_STR(a, again);
    AUTO_FREE char *line = str_format("cat %s/in; echo out > %s/out; cat %s/%s; ls %s; "
                                      "echo no > %s/%s; true",
                                      a, a, b, hosts.name, b, b, hosts.name);
    uint32_t code;
    AUTO_FREE char *said = real_vm_sh(&f.fixture, line, &code);
    ASSERT_HAS(said, "in127.0.0.1hosts\n");
    ASSERT_HAS(said, "Read-only");
    ASSERT_EQ(access(tempdir_path(&f.fixture.temp, "data/out"), F_OK), 0);
    unshare_id(&f, one);
    AUTO_FREE char *still = str_format("cat %s/out", a);
    real_vm_expect(&f.fixture, still, "out\n");
    unshare_id(&f, two);
    unshare_id(&f, file);
    finish(&f);
}

/* The node of a disk is there a moment before it can be opened: each must wait for its own. */
TEST_FIBER(thirty_disks_are_mounted_one_after_the_other_and_go)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct scratch *disks[30];
    uint64_t ids[30];

    start(ctx, &f);
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i < 30; i++) {
            struct ctx limited = ctx_with_timeout(&f.fixture.root, FIXTURE_CALL_NS);
            AUTO_FREE char *name = str_format("disk%u", i), *path = NULL;
            if (round == 0)
                disks[i] = make_scratch(&f, name);
            const struct scsi_disk d = { .host_path = name, .fd = scratch_fd(disks[i]) };

            ASSERT_OK(scsi_reserve(&limited, f.scsi, &d, &(struct guest_disk){ 0 }, &ids[i], &err),
                      err);
            ASSERT_OK(scsi_map(&limited, f.scsi, ids[i], &path, &err), err);
        }
        real_vm_expect(&f.fixture, "grep -c ' /run/mounts/scsi/' /proc/mounts", "31\n");
        for (unsigned i = 0; i < 30; i++) {
            struct ctx limited = ctx_with_timeout(&f.fixture.root, FIXTURE_CALL_NS);
            ASSERT_OK(scsi_unmap(&limited, f.scsi, ids[i], &err), err);
        }
    }
    f.limited = ctx_with_timeout(&f.fixture.root, FIXTURE_CALL_NS);
    for (unsigned i = 0; i < 30; i++)
        drop_scratch(&f, disks[i]);
    finish(&f);
}
