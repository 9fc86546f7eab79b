/* A container's mounts and devices over the fake VMM and a scripted guest: what becomes a disk,
 * what a share, what stays in the VM; and that delete releases it. */
#include "fixture/registry_fixture.h"
#include "host/config/volumes.h"

#define ANNOTATED(type, more)                                                                      \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"" type                               \
    "\",\"io.kubernetes.cri.sandbox-id\":\"pod\"" more "}"
#define POD(type) ANNOTATED(type, "")
#define NO_WRITABLE ",\"io.microsoft.virtualmachine.fileshares.disablewritable\":\"true\""
#define EMPTY "/k/pods/u/volumes/kubernetes.io~empty-dir/run"
#define EMPTY_MOUNT                                                                                \
    ",\"mounts\":[{\"destination\":\"/run\",\"type\":\"bind\",\"source\":\"" EMPTY                 \
    "\",\"options\":[\"rbind\"]}]"

static void write_linux(struct fixture *r, const char *id, const char *linux_part)
{
    AUTO_FREE char *path = str_format("%s/%s/config.json", r->dir, id);
    AUTO_FREE char *text = str_format("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{"
                                      "\"path\":\"rootfs\"},\"linux\":{%s}}",
                                      linux_part);

    fixture_write_spec(r, id, "");
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

TEST_VIRTUAL(images_and_block_devices_become_disks_and_are_released)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other"); /* so that the VM stays */
    ASSERT_EQ(r.guest.disks, 1);      /* scratch */
    fixture_write_spec(&r, "a",
                       ",\"mounts\":[{\"destination\":\"/d\",\"type\":\"virtual-disk\",\"source\":"
                       "\"/a.img\",\"options\":[\"ro\"]}]");
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_EQ(r.guest.disks, 2);
    ASSERT(!container_parts(fixture_find(&r, "a"))->writes_host);
    fixture_delete(&r, ctx, "a", "");
    ASSERT_EQ(r.guest.disks, 1);

    write_linux(&r, "b",
                "\"devices\":[{\"path\":\"/dev/x\",\"type\":\"b\",\"major\":7,\"minor\":0},"
                "{\"path\":\"/dev/sda\",\"type\":\"b\",\"major\":8,\"minor\":0},"
                "{\"path\":\"/dev/kvm\",\"type\":\"c\",\"major\":10,\"minor\":232}],"
                "\"resources\":{\"devices\":[{\"allow\":true,\"access\":\"rwm\"},{\"allow\":true,"
                "\"type\":\"b\",\"major\":7,\"minor\":0,\"access\":\"rwm\"}]}");
    ASSERT_OK(fixture_try_create(&r, ctx, "b", &err), err);
    ASSERT_EQ(r.guest.disks, 2); /* not the host's sda, which is unrequested */
    ASSERT(container_parts(fixture_find(&r, "b"))->writes_host);
    fixture_delete(&r, ctx, "b", "");
    ASSERT_EQ(r.guest.disks, 1);
    fixture_close(&r, ctx);
}

static int fail_disk(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    return str_eq(op, "disk") ? err_set(err, ERR_STATE, "it is in use on the host") : 0;
}

TEST_VIRTUAL(a_disk_that_cannot_be_opened_names_the_mount_and_leaves_nothing)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    r.host.step = fail_disk;
    fixture_write_spec(&r, "a",
                       ",\"mounts\":[{\"destination\":\"/d\",\"type\":\"physical-disk\",\"source\":"
                       "\"/dev/x\"}]");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_MOUNT_FAILED);
    ASSERT_MSG_HAS(err.msg, "mount /dev/x on /d: it is in use");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(an_empty_dir_of_a_pod_is_not_a_share_unless_configured)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;
    unsigned before;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "pod", POD("sandbox"));
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    fixture_start(&r, ctx, "pod", "");
    before = r.guest.shares;
    fixture_write_spec(&r, "w", POD("container") EMPTY_MOUNT);
    ASSERT_OK(fixture_try_create(&r, ctx, "w", &err), err);
    ASSERT_EQ(r.guest.shares, before + 1); /* its root */
    ASSERT(!container_parts(fixture_find(&r, "w"))->writes_host);
    fixture_delete(&r, ctx, "w", "");

    r.config.shared_empty_dirs = true; /* the pod was made before: it counts for all in it */
    ASSERT_OK(fixture_try_create(&r, ctx, "w", &err), err);
    ASSERT_EQ(r.guest.shares, before + 1);
    fixture_delete(&r, ctx, "w", "");
    fixture_write_spec(&r, "w",
                       ANNOTATED("container", ",\"io.lcow.empty_dir\":\"shared\"") EMPTY_MOUNT);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "w", &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "io.lcow.empty_dir is \"shared\", and \"guest\" in its pod pod");
    ASSERT_OK(registry_close(ctx, r.registry, &err), err);
    fixture_close(&r, ctx);
}

/* The path is not there on this host. */
TEST_VIRTUAL(an_empty_dir_of_the_host_is_shared_if_the_pod_says_so)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "pod", ANNOTATED("sandbox", ",\"io.lcow.empty_dir\":\"shared\""));
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    fixture_start(&r, ctx, "pod", "");
    fixture_write_spec(&r, "w", POD("container") EMPTY_MOUNT);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "w", &err), err, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "mount " EMPTY " on /run");
    fixture_write_spec(&r, "w", ANNOTATED("container", NO_WRITABLE) EMPTY_MOUNT);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "w", &err), err, ERR_PERMISSION);
    ASSERT_MSG_HAS(err.msg, "though an emptyDir, on the host");
    ASSERT_EQ(err.reason, REASON_WRITABLE_SHARE_FORBIDDEN);
    ASSERT_OK(registry_close(ctx, r.registry, &err), err);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(an_empty_dir_in_the_vm_is_not_a_writable_share)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "pod", POD("sandbox"));
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    fixture_start(&r, ctx, "pod", "");
    fixture_write_spec(&r, "w", ANNOTATED("container", NO_WRITABLE) EMPTY_MOUNT);
    ASSERT_OK(fixture_try_create(&r, ctx, "w", &err), err);
    ASSERT(!container_parts(fixture_find(&r, "w"))->writes_host);
    ASSERT_OK(registry_close(ctx, r.registry, &err), err);
    fixture_close(&r, ctx);
}

#define VOLUME "/k/pods/u/volumes/kubernetes.io~csi/pv1/mount"
#define VOLUME_AT(path)                                                                            \
    ",\"mounts\":[{\"destination\":\"/d\",\"type\":\"bind\",\"source\":\"" path                    \
    "\",\"options\":[\"rbind\",\"ro\"]}]"

static int count_disks(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    *(unsigned *)arg += str_eq(op, "disk");
    return 0;
}

TEST_VIRTUAL(a_recorded_volume_is_one_disk_of_all_containers_that_name_it)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    AUTO(volumes_release) struct volumes_record v = { 0 };
    struct err err = ERR_INIT;
    unsigned opened = 0, shares;

    fixture_open(&r, ctx);
    ASSERT_OK(volumes_read(json_pack("{ss ss ss s[s]}", "volume-path", VOLUME, "device", "/dev/x",
                                     "fstype", "ext4", "options", "ro"),
                           &v, &err),
              err);
    ASSERT_OK(volumes_put(r.config.run_root, &v, &err), err);
    r.host.step = count_disks;
    r.host.step_arg = &opened;
    fixture_write_spec(&r, "pod", POD("sandbox"));
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    fixture_start(&r, ctx, "pod", "");
    shares = r.guest.shares;
    fixture_write_spec(&r, "a", POD("container") VOLUME_AT(VOLUME));
    fixture_write_spec(&r, "b", POD("container") VOLUME_AT(VOLUME "/sub"));
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_OK(fixture_try_create(&r, ctx, "b", &err), err);
    ASSERT_EQ(r.guest.disks, 2);           /* with the scratch disk */
    ASSERT_EQ(r.guest.shares, shares + 2); /* their roots */
    ASSERT_EQ(opened, 1);
    fixture_delete(&r, ctx, "a", "");
    ASSERT_EQ(r.guest.disks, 2);
    fixture_delete(&r, ctx, "b", "");
    ASSERT_EQ(r.guest.disks, 1);

    ASSERT_OK(volumes_drop(r.config.run_root, VOLUME, &err), err);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err,
                ERR_NOT_FOUND); /* a path of the host */
    ASSERT_OK(registry_close(ctx, r.registry, &err), err);
    fixture_close(&r, ctx);
}

/* --- user namespaces --- */

#define LINE "[{\"containerID\":0,\"hostID\":%u,\"size\":65536}]"

/* A spec whose ids begin at `first` (0: no user namespace), with more behind it. */
static void write_userns(struct fixture *r, const char *id, unsigned first, const char *more)
{
    AUTO_FREE char *ids =
        str_format(",\"uidMappings\":" LINE ",\"gidMappings\":" LINE, first, first);
    AUTO_FREE char *linux_part = str_format("\"namespaces\":[{\"type\":\"pid\"}%s]%s",
                                            first ? ",{\"type\":\"user\"}" : "", first ? ids : "");
    AUTO_FREE char *path = str_format("%s/%s/config.json", r->dir, id);
    AUTO_FREE char *text =
        str_format("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{\"path\":\"rootfs\"},"
                   "\"linux\":{%s}%s}",
                   linux_part, more);

    fixture_write_spec(r, id, "");
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

static enum reason expect_refused(struct fixture *r, struct ctx *ctx, const char *id,
                                  const char *words)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(fixture_try_create(r, ctx, id, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, words);
    return err.reason;
}

TEST_VIRTUAL(a_pod_has_one_user_namespace)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    write_userns(&r, "pod", 100000, POD("sandbox"));
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    fixture_start(&r, ctx, "pod", "");
    write_userns(&r, "w", 200000, POD("container"));
    expect_refused(&r, ctx, "w",
                   "container w: its user namespace (uids 0:200000:65536, gids 0:200000:65536) "
                   "differs from that of pod pod (uids 0:100000:65536, gids 0:100000:65536): a pod "
                   "has one mapping");
    write_userns(&r, "w", 0, POD("container"));
    expect_refused(&r, ctx, "w", "its user namespace (uids none, gids none) differs");
    write_userns(&r, "w", 100000,
                 POD("container") ",\"mounts\":[{\"destination\":\"/d\",\"type\":\"virtual-disk\","
                                  "\"source\":\"/a.img\"}]");
    ASSERT_EQ(expect_refused(&r, ctx, "w", "a container with a user namespace cannot have a disk"),
              REASON_USERNS_DEVICE);
    AUTO(volumes_release) struct volumes_record v = { 0 };
    ASSERT_OK(volumes_read(json_pack("{ss ss ss}", "volume-path", VOLUME, "device", "/dev/x",
                                     "fstype", "ext4"),
                           &v, &err),
              err);
    ASSERT_OK(volumes_put(r.config.run_root, &v, &err), err);
    write_userns(&r, "w", 100000, POD("container") VOLUME_AT(VOLUME));
    ASSERT_EQ(expect_refused(&r, ctx, "w", ""), REASON_USERNS_DEVICE);
    write_userns(&r, "w", 100000, POD("container"));
    ASSERT_OK(fixture_try_create(&r, ctx, "w", &err), err);
    ASSERT_OK(registry_close(ctx, r.registry, &err), err);
    fixture_close(&r, ctx);
}

#define BIND(options)                                                                              \
    ",\"mounts\":[{\"destination\":\"/d\",\"type\":\"bind\",\"source\":\"/\"" options "}]"

TEST_VIRTUAL(a_mount_is_mapped_if_it_says_so_and_for_the_users_of_vms)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    r.config.vm_uid_base = 2000000000;
    r.config.vm_uid_count = 4096;
    fixture_create(&r, ctx, "other"); /* so that the VM stays */
    write_userns(&r, "a", 100000, BIND(",\"options\":[\"rbind\",\"idmap\"]"));
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_STR(r.host.mapped, "0:100000:65536,4000000000:2000000000:4096");
    fixture_delete(&r, ctx, "a", "");
    write_userns(&r, "a", 100000, BIND(",\"options\":[\"rbind\"]"));
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_STR(r.host.mapped, "");
    fixture_delete(&r, ctx, "a", "");
    r.config.vm_uid_base = 100001;
    write_userns(&r, "a", 100000, BIND(",\"options\":[\"idmap\"]"));
    expect_refused(&r, ctx, "a",
                   "mount / on /d: the mapping 0:100000:65536 overlaps the user ids of VMs");
    fixture_delete(&r, ctx, "other", "");
    fixture_close(&r, ctx);
}
