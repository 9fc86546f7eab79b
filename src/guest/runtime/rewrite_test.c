/* The document as the host sends it, and as crun gets it. */
#include "base/idmap.h"
#include "guest/runtime/rewrite.h"
#include "harness/tap.h"
#include <errno.h>
#include <string.h>

static int find_device(void *arg, const char *path, struct rewrite_device *ret)
{
    if (strcmp(path, "/dev/fuse") == 0)
        *ret = (struct rewrite_device){ 'c', 10, 229, 0, 5 };
    else if (strcmp(path, "/dev/sdb") == 0)
        *ret = (struct rewrite_device){ 'b', 8, 16, 0, 6 };
    else
        return -ENOENT;
    return 0;
}

static int read_symlink(void *arg, const char *path, char **ret)
{
    if (strcmp(path, "/run/dev/d3") != 0)
        return -ENOENT;
    *ret = str_dup("/dev/sdb");
    return 0;
}

static void each_device(void *arg, void (*fn)(void *, const char *, const struct rewrite_device *),
                        void *fn_arg)
{
    fn(fn_arg, "/dev/kvm", &(struct rewrite_device){ 'c', 10, 232, 0, 0 });
}

static int each_node(void *arg, const char *place,
                     void (*fn)(void *, const char *, const struct rewrite_device *), void *fn_arg)
{
    if (strcmp(place, "0000:00:10.0/00.0") != 0)
        return -ENXIO;
    fn(fn_arg, "/dev/nvme0", &(struct rewrite_device){ 'c', 246, 0, 0, 0 });
    fn(fn_arg, "/dev/nvme0n1", &(struct rewrite_device){ 'b', 259, 1, 0, 6 });
    fn(fn_arg, "/dev/../etc", &(struct rewrite_device){ 'b', 259, 2, 0, 6 });
    return 0;
}

struct fixture {
    struct spec *spec;
    struct rewrite_todo todo;
    struct rewrite_env env;
    struct idmap ids;
    bool privileged;
};

static void fixture_release_auto(struct fixture *r)
{
    spec_free(r->spec);
    rewrite_todo_release(&r->todo);
}

static int rewrite(struct fixture *r, enum spec_kind kind, const char *text, struct err *err)
{
    r->env = (struct rewrite_env){
        .kind = kind,
        .id = "c1",
        .pod_id = "p1",
        .pod_root = "/run/gcs/pods/p1/p1",
        .ids = &r->ids,
        .privileged = r->privileged,
        .find_device = find_device,
        .read_symlink = read_symlink,
        .each_device = each_device,
        .each_node = each_node,
    };
    ASSERT_OK(spec_parse(text, strlen(text), &r->spec, err), *err);
    return rewrite_spec(r->spec, &r->env, &r->todo, err);
}

static char *text_of(const struct fixture *r)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_value(&w, NULL, spec_json(r->spec));
    return jsw_take(&w, NULL);
}

#define PROCESS "\"process\":{\"args\":[\"sh\"],\"cwd\":\"/\",\"user\":{\"uid\":1,\"gid\":2}}"
#define ROOT "\"root\":{\"path\":\"/run/r\"}"

TEST(a_workload_golden)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(
        rewrite(&r, SPEC_WORKLOAD,
                "{\"ociVersion\":\"1.0.2\"," PROCESS ",\"root\":{\"path\":\"/run/r\","
                "\"readonly\":true},\"mounts\":["
                "{\"destination\":\"/a\",\"type\":\"bind\",\"source\":\"sandbox://x//y/../z\"},"
                "{\"destination\":\"/b\",\"type\":\"bind\",\"source\":\"sandbox-tmp:///t\"},"
                "{\"destination\":\"/h\",\"type\":\"bind\",\"source\":\"hugepages://2M/h\"},"
                "{\"destination\":\"/u\",\"type\":\"bind\",\"source\":\"uvm:///var/u\"},"
                "{\"destination\":\"blockdev:///dev/d\",\"type\":\"bind\",\"source\":"
                "\"/run/dev/d3\",\"options\":[\"ro\"]},"
                "{\"destination\":\"/dev/shm\",\"type\":\"bind\",\"source\":\"/x\"},"
                "{\"destination\":\"/etc/hosts\",\"type\":\"bind\",\"source\":\"/own\"}],"
                "\"annotations\":{\"io.microsoft.lcow.shm.size-kb\":\"64\","
                "\"io.microsoft.lcow.rlimitcore\":\"1;2\"},"
                "\"linux\":{\"devices\":[{\"path\":\"/dev/fuse\",\"type\":\"c\",\"major\":1}],"
                "\"seccomp\":{\"defaultAction\":\"SCMP_ACT_ALLOW\"}},"
                "\"windows\":{\"network\":{}}}",
                &err),
        err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_STR(
        got,
        "{\"ociVersion\":\"1.0.2\",\"process\":{\"args\":[\"sh\"],\"cwd\":\"/\",\"user\":"
        "{\"uid\":1,\"gid\":2},\"rlimits\":[{\"type\":\"RLIMIT_CORE\",\"soft\":1,\"hard\":2}]},"
        "\"root\":{\"path\":\"/run/r\",\"readonly\":true},\"mounts\":["
        "{\"destination\":\"/a\",\"type\":\"bind\",\"source\":"
        "\"/run/gcs/pods/p1/p1/sandboxMounts/x/z\"},"
        "{\"destination\":\"/b\",\"type\":\"bind\",\"source\":"
        "\"/run/gcs/pods/p1/p1/sandboxTmpfsMounts/t\"},"
        "{\"destination\":\"/h\",\"type\":\"bind\",\"source\":"
        "\"/run/gcs/pods/p1/p1/hugepages/2M/h\"},"
        "{\"destination\":\"/u\",\"type\":\"bind\",\"source\":\"/var/u\"},"
        "{\"destination\":\"/dev/d\",\"type\":\"bind\",\"source\":\"/dev/sdb\",\"options\":"
        "[\"ro\"]},"
        "{\"destination\":\"/dev/shm\",\"type\":\"tmpfs\",\"source\":\"shm\",\"options\":"
        "[\"nosuid\",\"noexec\",\"nodev\",\"mode=1777\",\"size=64k\"]},"
        "{\"destination\":\"/etc/hosts\",\"type\":\"bind\",\"source\":\"/own\"},"
        "{\"destination\":\"/etc/hostname\",\"type\":\"bind\",\"source\":"
        "\"/run/gcs/pods/p1/p1/hostname\",\"options\":[\"bind\",\"ro\"]},"
        "{\"destination\":\"/etc/resolv.conf\",\"type\":\"bind\",\"source\":"
        "\"/run/gcs/pods/p1/p1/resolv.conf\",\"options\":[\"bind\",\"ro\"]}],"
        "\"annotations\":{\"io.microsoft.lcow.shm.size-kb\":\"64\","
        "\"io.microsoft.lcow.rlimitcore\":\"1;2\"},"
        "\"linux\":{\"devices\":[{\"path\":\"/dev/fuse\",\"type\":\"c\",\"major\":10,"
        "\"minor\":229,\"uid\":0,\"gid\":5}],\"seccomp\":{\"defaultAction\":\"SCMP_ACT_ALLOW\"},"
        "\"resources\":{\"devices\":[{\"allow\":true,\"type\":\"b\",\"major\":8,\"minor\":16,"
        "\"access\":\"r\"},{\"allow\":true,\"type\":\"c\",\"major\":10,\"minor\":229,"
        "\"access\":\"rwm\"}]},\"maskedPaths\":[\"/sys/firmware/qemu_fw_cfg\"],"
        "\"cgroupsPath\":\"/pods/p1/c1\"}}");
    ASSERT_EQ(r.todo.dirs.n, 2);
    ASSERT_STR(r.todo.dirs.v[0], "/run/gcs/pods/p1/p1/sandboxMounts/x/z");
    ASSERT_EQ(r.todo.hugepages.n, 1);
    ASSERT_STR(r.todo.sizes.v[0], "2M,uid=0,gid=0");
}

TEST(a_sandbox_gets_no_files_of_the_pod)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_SANDBOX, "{" PROCESS "," ROOT ",\"hostname\":\"pod0\",\"linux\":{}}",
                      &err),
              err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT(!strstr(got, "/etc/"));
    ASSERT_HAS(got, "\"cgroupsPath\":\"/pods/p1/c1\"");
    ASSERT_HAS(got, "\"hostname\":\"pod0\"");
}

TEST(a_standalone_container_is_in_a_cgroup_of_its_own)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_STANDALONE, "{" PROCESS "," ROOT ",\"linux\":{}}", &err), err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got, "\"cgroupsPath\":\"/pods/c1\"");
    ASSERT_HAS(got, "\"destination\":\"/etc/hosts\"");
}

TEST(no_annotation_gives_a_container_devices)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD,
                      "{" PROCESS "," ROOT ",\"linux\":{},\"annotations\":"
                      "{\"io.microsoft.virtualmachine.lcow.privileged\":\"true\"}}",
                      &err),
              err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got, "\"devices\":[]");
    ASSERT(!strstr(got, "\"allow\":true"));
}

TEST(a_privileged_container_gets_all_devices)
{
    AUTO(fixture_release) struct fixture r = { .privileged = true };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD, "{" PROCESS "," ROOT ",\"linux\":{}}", &err), err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got, "\"devices\":[{\"path\":\"/dev/kvm\",\"type\":\"c\",\"major\":10,"
                    "\"minor\":232,\"uid\":0,\"gid\":0,\"fileMode\":438}]");
    ASSERT_HAS(got, "\"resources\":{\"devices\":[{\"allow\":true,\"access\":\"rwm\"}]}");
}

TEST(the_boot_block_is_hidden_unless_the_container_is_privileged)
{
    static const char spec[] =
        "{" PROCESS "," ROOT ",\"linux\":{\"maskedPaths\":[\"/proc/keys\"]}}";
    struct err err = ERR_INIT;

    for (int privileged = 0; privileged < 2; privileged++) {
        AUTO(fixture_release) struct fixture r = { .privileged = privileged };
        ASSERT_OK(rewrite(&r, SPEC_WORKLOAD, spec, &err), err);
        AUTO_FREE char *got = text_of(&r);
        ASSERT_HAS(got, privileged ? "\"maskedPaths\":[\"/proc/keys\"]"
                                   : "[\"/proc/keys\",\"/sys/firmware/qemu_fw_cfg\"]");
    }
}

TEST(volumes_of_the_pod_are_to_be_made_as_the_host_says)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD,
                      "{" PROCESS "," ROOT ",\"linux\":{},\"mounts\":[{\"destination\":\"/v\","
                      "\"source\":\"sandbox://empty-dir/x/sub\",\"lcow.volume\":{\"At\":"
                      "\"sandbox://empty-dir/x\",\"Tmpfs\":true,\"Bytes\":4096,\"Dirs\":["
                      "{\"Path\":\"\",\"Mode\":1535,\"Gid\":7},{\"Path\":\"sub\"}]}}]}",
                      &err),
              err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got, "{\"destination\":\"/v\",\"source\":"
                    "\"/run/gcs/pods/p1/p1/sandboxMounts/empty-dir/x/sub\"}");
    ASSERT_EQ(r.todo.n_volumes, 1);
    ASSERT_STR(r.todo.volumes[0].at, "/run/gcs/pods/p1/p1/sandboxMounts/empty-dir/x");
    ASSERT(r.todo.volumes[0].tmpfs && r.todo.volumes[0].bytes == 4096);
    ASSERT_EQ(r.todo.volumes[0].dirs[0].gid, 7);
}

TEST(a_part_of_a_disk_is_below_its_mount)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD,
                      "{" PROCESS "," ROOT ",\"linux\":{},\"mounts\":[{\"destination\":\"/v\","
                      "\"source\":\"disk://0_1_0/a/b\",\"lcow.volume\":{\"At\":"
                      "\"disk://0_1_0\",\"Dirs\":[{\"Path\":\"a\"},{\"Path\":\"a/b\"}]}}]}",
                      &err),
              err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got, "{\"destination\":\"/v\",\"source\":\"/run/mounts/scsi/0_1_0/a/b\"}");
    ASSERT_STR(r.todo.volumes[0].at, "/run/mounts/scsi/0_1_0");
    ASSERT_STR(r.todo.dirs.v[0], "/run/mounts/scsi/0_1_0/a/b"); /* no symlink is followed there */
}

TEST(volumes_belong_to_the_ids_of_the_user_namespace)
{
    AUTO(fixture_release)
    struct fixture r = { .ids = { (char *)"0:100000:10", (char *)"0:200000:10" } };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD,
                      "{" PROCESS "," ROOT ",\"linux\":{},\"mounts\":[{\"destination\":\"/v\","
                      "\"source\":\"sandbox://x\",\"lcow.volume\":{\"At\":"
                      "\"sandbox://x\",\"Dirs\":[{\"Path\":\"\",\"Gid\":7},"
                      "{\"Path\":\"sub\",\"Uid\":10}]}},"
                      "{\"destination\":\"/h\",\"source\":\"hugepages://2M/h\"}]}",
                      &err),
              err);
    ASSERT_EQ(r.todo.volumes[0].dirs[0].uid, 100000);
    ASSERT_EQ(r.todo.volumes[0].dirs[0].gid, 200007);
    ASSERT_EQ(r.todo.volumes[0].dirs[1].uid, 65534);
    ASSERT_STR(r.todo.sizes.v[0], "2M,uid=100000,gid=200000");
}

TEST(a_disk_of_the_vm_is_the_device_that_was_asked_for)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD,
                      "{" PROCESS "," ROOT ",\"linux\":{\"devices\":[{\"path\":\"/dev/xvdb\","
                      "\"type\":\"b\",\"major\":7,\"minor\":0,\"uid\":1000,\"fileMode\":432,"
                      "\"lcow.link\":\"/run/dev/d3\",\"lcow.readonly\":true},"
                      "{\"path\":\"/dev/gone\",\"type\":\"c\",\"lcow.optional\":true},"
                      "{\"path\":\"/dev/fifo\",\"type\":\"p\"}]}}",
                      &err),
              err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got, "\"devices\":[{\"path\":\"/dev/xvdb\",\"type\":\"b\",\"major\":8,"
                    "\"minor\":16,\"uid\":1000,\"fileMode\":432,\"gid\":6},"
                    "{\"path\":\"/dev/fifo\",\"type\":\"p\"}]");
    ASSERT_HAS(got, "{\"allow\":true,\"type\":\"b\",\"major\":8,\"minor\":16,\"access\":\"rm\"}");
}

TEST(the_pods_logs_appear_where_an_annotation_wants_them)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD,
                      "{" PROCESS "," ROOT ",\"linux\":{},\"annotations\":"
                      "{\"io.microsoft.container.lcow.tee-log-dir-mount\":\"/logs\"}}",
                      &err),
              err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got, "{\"destination\":\"/logs\",\"type\":\"bind\",\"source\":"
                    "\"/run/gcs/pods/p1/p1/logs\",\"options\":[\"rbind\"]}");
    ASSERT_EQ(r.todo.dirs.n, 1);
}

TEST(invalid_fields_are_refused_and_named)
{
#define MOUNT(source, destination)                                                                 \
    "{" PROCESS "," ROOT ",\"linux\":{},\"mounts\":[{\"destination\":\"" destination               \
    "\",\"source\":\"" source "\"}]}"
#define ANNOTATION(key, value)                                                                     \
    "{" PROCESS "," ROOT ",\"linux\":{},\"annotations\":{\"" key "\":\"" value "\"}}"
    static const struct {
        const char *text, *why;
        enum err_code code;
    } bad[] = {
        { MOUNT("sandbox://../x", "/a"), "leaves", ERR_INVALID },
        { MOUNT("sandbox://", "/a"), "must be below", ERR_INVALID },
        { MOUNT("sandbox-tmp://a/../..", "/a"), "leaves", ERR_INVALID },
        { MOUNT("hugepages://2M", "/a"), "SIZE/NAME", ERR_INVALID },
        { MOUNT("hugepages://2M,uid=0/x", "/a"), "SIZE/NAME", ERR_INVALID },
        { MOUNT("hugepages://2M/../../x", "/a"), "leaves", ERR_INVALID },
        { MOUNT("uvm://a", "/a"), "absolute", ERR_INVALID },
        { "{" PROCESS "," ROOT ",\"linux\":{},\"mounts\":[{\"destination\":\"/a\",\"source\":"
          "\"sandbox://a\",\"lcow.volume\":{\"At\":\"/etc\"}}]}",
          "does not belong to the pod", ERR_INVALID },
        { "{" PROCESS "," ROOT ",\"linux\":{},\"mounts\":[{\"destination\":\"/a\",\"source\":"
          "\"sandbox://a\",\"lcow.volume\":{\"At\":\"sandbox://../..\"}}]}",
          "leaves", ERR_INVALID },
        { MOUNT("/run/none", "blockdev:///dev/x"), "/run/none", ERR_NOT_FOUND },
        { ANNOTATION("io.microsoft.lcow.shm.size-kb", "big"), "not a size", ERR_INVALID },
        { ANNOTATION("io.microsoft.lcow.rlimitcore", "7"), "SOFT;HARD", ERR_INVALID },
        { ANNOTATION("io.microsoft.container.lcow.tee-log-dir-mount", "x"), "absolute",
          ERR_INVALID },
        { ANNOTATION("io.microsoft.cri.virtual-pod-id", "v"), "virtual pods", ERR_INVALID },
        { "{" PROCESS "," ROOT ",\"linux\":{},\"hostname\":\"h\"}", "hostname", ERR_INVALID },
        { "{" PROCESS "," ROOT ",\"linux\":{\"devices\":7}}", "not a list", ERR_INVALID },
        { "{" PROCESS "," ROOT ",\"linux\":{\"devices\":[7]}}", "path", ERR_INVALID },
        { "{" PROCESS "," ROOT ",\"linux\":{\"devices\":[{\"path\":\"/dev/x\"}]}}", "/dev/x",
          ERR_NOT_FOUND },
        { "{" PROCESS "," ROOT ",\"linux\":{\"resources\":{\"devices\":{}},"
          "\"devices\":[{\"path\":\"/dev/fuse\"}]}}",
          "not a list", ERR_INVALID },
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO(fixture_release) struct fixture r = { 0 };
        struct err err = ERR_INIT;
        ASSERT_FAIL(rewrite(&r, SPEC_WORKLOAD, bad[i].text, &err), err, bad[i].code);
        ASSERT_MSG_HAS(err.msg, bad[i].why);
        if (strstr(bad[i].text, "hugepages://2M,") || strstr(bad[i].text, "hugepages://2M\""))
            ASSERT_EQ(err.reason, REASON_HUGE_PAGES);
    }
}

TEST(an_exec_has_the_limits_and_the_user_of_the_container)
{
    AUTO(json_decref) json_t *plain = json_pack("{s:{s:i}}", "user", "uid", 7);
    AUTO(json_decref) json_t *named = json_pack("{s:{s:s}}", "user", "username", "app");
    AUTO(json_decref) json_t *limits = json_pack("[{s:s}]", "type", "RLIMIT_NOFILE");
    AUTO(json_decref) json_t *user = json_pack("{s:i,s:i}", "uid", 1000, "gid", 1001);

    rewrite_exec(plain, limits, user);
    ASSERT(json_equal(json_object_get(plain, "user"), user));
    ASSERT(json_equal(json_object_get(plain, "rlimits"), limits));
    rewrite_exec(named, NULL, user);
    ASSERT_STR(rewrite_username(named), "app");
    rewrite_set_user(named, 5, 6);
    ASSERT_STR(rewrite_username(named), "");
    ASSERT_EQ(json_integer_value(json_object_get(json_object_get(named, "user"), "gid")), 6);
}

TEST(a_process_without_a_user_can_be_given_one)
{
    AUTO(json_decref) json_t *process = json_object();

    ASSERT_STR(rewrite_username(process), "");
    rewrite_set_user(process, 1, 2);
    ASSERT_EQ(json_integer_value(json_object_get(json_object_get(process, "user"), "uid")), 1);
}

TEST(crun_gets_a_version_that_it_knows)
{
    static const char *const given[] = { "1.3.0", "1.2.0-rc.1", "1.0.0" };

    for (size_t i = 0; i < ARRAY_LEN(given); i++) {
        AUTO(fixture_release) struct fixture r = { 0 };
        struct err err = ERR_INIT;
        AUTO_FREE char *spec = str_format(
            "{\"ociVersion\":\"%s\"," PROCESS "," ROOT ",\"linux\":{\"netDevices\":{}}}", given[i]);

        ASSERT_OK(rewrite(&r, SPEC_STANDALONE, spec, &err), err);
        AUTO_FREE char *got = text_of(&r);
        ASSERT_HAS(got, "{\"ociVersion\":\"1.0.2\",");
        ASSERT_HAS(got, "\"netDevices\""); /* what is new in it stays: crun leaves it out */
    }
}

#define WITH_DEVICE(id, type)                                                                      \
    "{\"ociVersion\":\"1.0.2\"," PROCESS "," ROOT ",\"linux\":{},\"windows\":{\"devices\":[{"      \
    "\"id\":\"" id "\",\"idType\":\"" type "\"}]}}"

TEST(pci_devices_bring_their_nodes)
{
    AUTO(fixture_release) struct fixture r = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(rewrite(&r, SPEC_WORKLOAD, WITH_DEVICE("0000:00:10.0/00.0", "vpci"), &err), err);
    AUTO_FREE char *got = text_of(&r);
    ASSERT_HAS(got,
               "\"devices\":[{\"path\":\"/dev/nvme0\",\"type\":\"c\",\"major\":246,\"minor\":0,"
               "\"uid\":0,\"gid\":0,\"fileMode\":432},{\"path\":\"/dev/nvme0n1\",\"type\":"
               "\"b\",\"major\":259,\"minor\":1,\"uid\":0,\"gid\":6,\"fileMode\":432}]");
    ASSERT_HAS(got,
               "{\"allow\":true,\"type\":\"b\",\"major\":259,\"minor\":1,\"access\":\"rwm\"}]");
    ASSERT(!strstr(got, "windows"));
}

TEST(invalid_pci_devices_are_named)
{
    struct err err = ERR_INIT;

    {
        AUTO(fixture_release) struct fixture r = { 0 };
        ASSERT_FAIL(rewrite(&r, SPEC_WORKLOAD, WITH_DEVICE("0000:00:11.0/00.0", "vpci"), &err), err,
                    ERR_NOT_FOUND);
        ASSERT_EQ(err.reason, REASON_DEVICE_FAILED);
        ASSERT_HAS(err.msg, "0000:00:11.0/00.0");
    }
    {
        AUTO(fixture_release) struct fixture r = { 0 };
        ASSERT_FAIL(rewrite(&r, SPEC_WORKLOAD, WITH_DEVICE("0000:00:10.0/00.0", "usb"), &err), err,
                    ERR_INVALID);
        ASSERT_HAS(err.msg, "usb");
    }
}
