#include "base/str.h"
#include "harness/tap.h"
#include "oci/document.h"
#include <stdlib.h>
#include <string.h>

static const char given_spec[] =
    "{\"ociVersion\":\"1.0.2\",\"hostname\":\"h\",\"unknown\":{\"kept\":18446744073709551615},"
    "\"process\":{\"args\":[\"x\"],\"cwd\":\"/\",\"noNewPrivileges\":true},"
    "\"root\":{\"path\":\"/host/rootfs\",\"readonly\":true},"
    "\"hooks\":{\"prestart\":[{\"path\":\"/bin/evil\"}]},\"windows\":{\"layerFolders\":[\"a\"]},"
    "\"annotations\":{\"io.kubernetes.cri.sandbox-id\":\"old\",\"other\":\"1\"},"
    "\"linux\":{\"cgroupsPath\":\"/host/cg\",\"seccomp\":{\"defaultAction\":\"SCMP_ACT_ERRNO\"},"
    "\"resources\":{\"devices\":[{\"allow\":false}],\"pids\":{\"limit\":5},\"blockIO\":{},"
    "\"memory\":{\"limit\":1000},\"cpu\":{\"period\":0,\"quota\":0,\"shares\":2}},"
    "\"namespaces\":[{\"type\":\"pid\",\"path\":\"/proc/4711/ns/pid\"},{\"type\":\"mount\"},"
    "{\"type\":\"network\",\"path\":\"/var/run/netns/cni-1\"},"
    "{\"type\":\"ipc\",\"path\":\"/proc/4711/ns/ipc\"}]}}";

static json_t *build(const char *text, const struct document_opts *o)
{
    AUTO(spec_free) struct spec *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_parse(text, strlen(text), &s, &err), err);
    document_fit(s, o);
    return json_incref(spec_json(s));
}

static const struct document_opts standalone = { .root_path = "/run/gcs/pods/a/a/rootfs",
                                                 .kind = SPEC_STANDALONE,
                                                 .pod_id = "a" };

static const json_t *dig(const json_t *at, const char *path)
{
    AUTO_FREE char *copy = str_dup(path);
    char *rest = NULL;

    for (char *key = strtok_r(copy, ".", &rest); key && at; key = strtok_r(NULL, ".", &rest))
        at = json_object_get(at, key);
    return at;
}

static const char *ns_path(const json_t *doc, const char *type)
{
    const json_t *list = dig(doc, "linux.namespaces"), *item;
    const char *found = NULL;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (str_eq(json_string_value(json_object_get(item, "type")), type)) {
            ASSERT(!found); /* once only */
            found = json_string_value(json_object_get(item, "path"));
            found = found ? found : "new";
        }
    }
    return found;
}

TEST(what_belongs_to_the_host_is_left_out)
{
    AUTO(json_decref) json_t *doc = build(given_spec, &standalone);

    ASSERT_STR(json_string_value(dig(doc, "root.path")), "/run/gcs/pods/a/a/rootfs");
    ASSERT(dig(doc, "hooks") == NULL);
    ASSERT(dig(doc, "windows") == NULL);
    ASSERT(dig(doc, "linux.cgroupsPath") == NULL);
    ASSERT(dig(doc, "linux.resources.devices") == NULL);
    ASSERT_EQ(json_integer_value(dig(doc, "linux.resources.pids.limit")), 5);
    ASSERT(dig(doc, "linux.resources.blockIO") == NULL);
    ASSERT_EQ(json_integer_value(dig(doc, "linux.resources.memory.limit")), 1000);
    ASSERT_EQ(json_integer_value(dig(doc, "linux.resources.cpu.period")), 100000);
    ASSERT_EQ(json_integer_value(dig(doc, "linux.resources.cpu.quota")), -1);
    ASSERT_EQ(json_integer_value(dig(doc, "linux.resources.cpu.shares")), 2);
}

TEST(what_is_not_known_passes_through)
{
    AUTO(json_decref) json_t *doc = build(given_spec, &standalone);
    uint64_t kept = 0;
    struct err err = ERR_INIT;

    ASSERT_OK(js_u64(dig(doc, "unknown"), "kept", &kept, &err), err);
    ASSERT(kept == UINT64_MAX);
    ASSERT(json_is_true(dig(doc, "process.noNewPrivileges")));
    ASSERT(json_is_true(dig(doc, "root.readonly")));
    ASSERT(dig(doc, "linux.seccomp") != NULL);
    ASSERT(dig(doc, "annotations.other") == NULL);
}

TEST(namespaces_of_the_host_become_new_ones)
{
    AUTO(json_decref) json_t *doc = build(given_spec, &standalone);

    ASSERT_STR(ns_path(doc, "pid"), "new");
    ASSERT_STR(ns_path(doc, "ipc"), "new");
    ASSERT_STR(ns_path(doc, "network"), "new");
    ASSERT_STR(ns_path(doc, "mount"), "new");
    ASSERT_STR(ns_path(doc, "cgroup"), "new");
}

TEST(a_debug_container_sees_the_processes_of_its_target)
{
    struct document_opts o = standalone;

    o.kind = SPEC_WORKLOAD;
    o.pod_id = "pod";
    o.pod_pid = 99;
    o.target_pid = 101;
    AUTO(json_decref) json_t *doc = build(given_spec, &o);

    ASSERT_STR(ns_path(doc, "pid"), "/proc/101/ns/pid");
    ASSERT_STR(ns_path(doc, "ipc"), "/proc/99/ns/ipc");
}

TEST(a_pod_has_one_user_namespace)
{
    static const char text[] =
        "{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{\"namespaces\":["
        "{\"type\":\"user\"},{\"type\":\"ipc\"}]}}";
    struct document_opts o = standalone;
    AUTO(json_decref) json_t *own = build(text, &o);

    ASSERT_STR(ns_path(own, "user"), "new");
    o.kind = SPEC_WORKLOAD;
    o.pod_id = "pod";
    o.pod_pid = 99;
    AUTO(json_decref) json_t *doc = build(text, &o);

    ASSERT_STR(ns_path(doc, "user"), "/proc/99/ns/user");
    ASSERT_STR(ns_path(doc, "ipc"), "new");
}

TEST(a_workload_shares_its_pods_namespaces)
{
    struct document_opts o = standalone;

    o.kind = SPEC_WORKLOAD;
    o.pod_id = "pod";
    o.pod_pid = 99;
    AUTO(json_decref) json_t *doc = build(given_spec, &o);

    ASSERT_STR(ns_path(doc, "pid"), "/proc/99/ns/pid");
    ASSERT_STR(ns_path(doc, "ipc"), "/proc/99/ns/ipc");
    ASSERT_STR(ns_path(doc, "network"), "/proc/99/ns/net");
    ASSERT_STR(ns_path(doc, "mount"), "new");

    const json_t *annotations = dig(doc, "annotations");

    ASSERT_STR(json_string_value(json_object_get(annotations, "io.kubernetes.cri.sandbox-id")),
               "pod");
}

TEST(no_container_gets_the_vms_own_network)
{
    AUTO(json_decref)
    json_t *doc = build("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{}}",
                        &standalone);

    ASSERT_STR(ns_path(doc, "network"), "new");
}

TEST(privileged_has_no_seccomp_and_is_a_field_of_lcow)
{
    struct document_opts o = standalone;

    o.privileged = true;
    AUTO(json_decref) json_t *doc = build(given_spec, &o);

    ASSERT(dig(doc, "linux.seccomp") == NULL);
}

TEST(no_annotation_makes_a_container_privileged)
{
    AUTO(json_decref)
    json_t *doc = build("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":"
                        "{\"seccomp\":{}},\"annotations\":{\"Privileged\":\"true\","
                        "\"io.microsoft.virtualmachine.lcow.privileged\":\"true\"}}",
                        &standalone);

    ASSERT(dig(doc, "linux.seccomp") != NULL);
    ASSERT_EQ(json_object_size(dig(doc, "annotations")), 0);
}

TEST(the_guest_sees_the_annotations_that_the_agent_reads_and_no_others)
{
    AUTO(json_decref)
    json_t *doc = build("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{},"
                        "\"annotations\":{\"run.oci.seccomp_bpf_data\":\"AAAA\",\"x\":\"y\","
                        "\"run.oci.hooks.stdout\":\"/etc/x\",\"io.lcow.resolv-conf\":\"r\","
                        "\"io.microsoft.lcow.shm.size-kb\":\"64\"}}",
                        &standalone);
    const json_t *left = dig(doc, "annotations");

    ASSERT_EQ(json_object_size(left), 2);
    ASSERT_STR(json_string_value(json_object_get(left, "io.lcow.resolv-conf")), "r");
    ASSERT_STR(json_string_value(json_object_get(left, "io.microsoft.lcow.shm.size-kb")), "64");
}

static int look(const char *text, struct document_mount *ret, struct err *err)
{
    static json_t *m; /* what was found borrows from it */

    json_decref(m);
    m = json_loads(text, 0, NULL);
    return document_mount(m, ret, err);
}

TEST(kinds_of_mounts_are_distinguished)
{
    struct document_mount m;
    struct err err = ERR_INIT;

    ASSERT_OK(
        look("{\"type\":\"bind\",\"source\":\"/a\",\"options\":[\"rbind\",\"RO\"]}", &m, &err),
        err);
    ASSERT(m.kind == DOCUMENT_MOUNT_HOST && m.read_only && m.recursive && m.top_only && !m.follow);
    ASSERT_OK(look("{\"type\":\"none\",\"source\":\"/a\",\"options\":[\"bind\"]}", &m, &err), err);
    ASSERT(m.kind == DOCUMENT_MOUNT_HOST && !m.read_only && !m.recursive);
    ASSERT_OK(look("{\"source\":\"/a\",\"options\":[\"rbind\",\"rro\"]}", &m, &err), err);
    ASSERT(m.kind == DOCUMENT_MOUNT_HOST && m.read_only && !m.top_only);
    ASSERT_OK(look("{\"source\":\"/a\",\"options\":[\"rbind\",\"rslave\"]}", &m, &err), err);
    ASSERT(m.follow);
    ASSERT_OK(look("{\"type\":\"bind\",\"source\":\"sandbox:///a\"}", &m, &err), err);
    ASSERT(m.kind == DOCUMENT_MOUNT_GUEST);
    ASSERT_OK(look("{\"type\":\"tmpfs\",\"source\":\"\"}", &m, &err), err);
    ASSERT(m.kind == DOCUMENT_MOUNT_GUEST);
    ASSERT_FAIL(
        look("{\"type\":\"ext4\",\"source\":\"/dev/sda\",\"destination\":\"/d\"}", &m, &err), err,
        ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "mount on /d: a file system of type \"ext4\"");
    ASSERT_MSG_HAS(err.msg, "use a bind mount");
    ASSERT_FAIL(look("{\"type\":\"bind\",\"source\":\"rel\",\"destination\":\"/d\"}", &m, &err),
                err, ERR_INVALID);
}

TEST(disks_are_mounts_of_their_own_kinds)
{
    struct document_mount m;
    struct err err = ERR_INIT;

    ASSERT_OK(look("{\"type\":\"virtual-disk\",\"source\":\"/a.img\",\"destination\":\"/"
                   "d\",\"options\":[\"ro\"]}",
                   &m, &err),
              err);
    ASSERT(m.kind == DOCUMENT_MOUNT_IMAGE && m.read_only && !m.raw);
    ASSERT_OK(look("{\"type\":\"physical-disk\",\"source\":\"/dev/x\",\"destination\":\"blockdev://"
                   "/dev/y\"}",
                   &m, &err),
              err);
    ASSERT(m.kind == DOCUMENT_MOUNT_DEVICE && !m.read_only && m.raw);
    ASSERT_FAIL(
        look("{\"type\":\"virtual-disk\",\"source\":\"a.img\",\"destination\":\"/d\"}", &m, &err),
        err, ERR_INVALID);
}

TEST(a_directory_with_writable_mounts_below_it_is_not_read_only_in_the_guest)
{
    AUTO(json_decref) json_t *m = json_pack("{s:[s,s,s]}", "options", "rbind", "RO", "nosuid");
    AUTO_FREE char *text = NULL;

    document_mount_writable(m);
    text = json_dumps(m, JSON_COMPACT);
    ASSERT_STR(text, "{\"options\":[\"rbind\",\"nosuid\"]}");
}

TEST(a_disk_is_bound_once_it_is_mounted)
{
    AUTO(json_decref) json_t *m = json_pack("{s:s,s:s}", "type", "virtual-disk", "source", "/a");
    AUTO_FREE char *text = NULL;

    document_mount_set(m, "/run/x");
    text = json_dumps(m, JSON_COMPACT | JSON_SORT_KEYS);
    ASSERT_STR(text, "{\"options\":[\"rbind\"],\"source\":\"/run/x\",\"type\":\"bind\"}");
}

TEST(a_device_that_was_asked_for_is_not_one_of_all)
{
    static const char text[] =
        "{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{\"devices\":["
        "{\"path\":\"/dev/a\",\"type\":\"b\",\"major\":7,\"minor\":1},"
        "{\"path\":\"/dev/b\",\"type\":\"b\",\"major\":7,\"minor\":2},"
        "{\"path\":\"/dev/c\",\"type\":\"c\",\"major\":7,\"minor\":1},"
        "{\"path\":\"rel\",\"type\":\"c\"}],\"resources\":{\"devices\":["
        "{\"allow\":true,\"access\":\"rwm\"},"
        "{\"allow\":true,\"type\":\"b\",\"major\":7,\"minor\":1,\"access\":\"rm\"},"
        "{\"allow\":false,\"type\":\"b\",\"major\":7,\"minor\":2,\"access\":\"rwm\"}]}}}";
    AUTO(spec_free) struct spec *s = NULL;
    struct document_device d;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_parse(text, sizeof(text) - 1, &s, &err), err);
    const json_t *list = js_get(js_get(spec_json(s), "linux"), "devices");
    ASSERT_OK(document_device(s, json_array_get(list, 0), &d, &err), err);
    ASSERT(d.asked && !d.writable && d.type == 'b' && d.minor == 1);
    ASSERT_OK(document_device(s, json_array_get(list, 1), &d, &err), err);
    ASSERT(!d.asked);
    ASSERT_OK(document_device(s, json_array_get(list, 2), &d, &err), err);
    ASSERT(!d.asked);
    ASSERT_FAIL(document_device(s, json_array_get(list, 3), &d, &err), err, ERR_INVALID);
}

TEST(pci_devices_are_described_as_in_the_original)
{
    AUTO(strv_release) struct strv places = { 0 };
    struct document_opts o = standalone;

    strv_add(&places, "0000:00:10.0/00.0");
    o.devices = &places;
    o.network_namespace = "n";
    AUTO(json_decref) json_t *doc = build(given_spec, &o);
    const json_t *list = dig(doc, "windows.devices");
    ASSERT_EQ(json_array_size(list), 1);
    ASSERT_STR(json_string_value(dig(json_array_get(list, 0), "id")), "0000:00:10.0/00.0");
    ASSERT_STR(json_string_value(dig(json_array_get(list, 0), "idType")), "vpci-instance-id");
    ASSERT_STR(json_string_value(dig(doc, "windows.network.networkNamespace")), "n");
    ASSERT(dig(doc, "windows.layerFolders") == NULL);
}
