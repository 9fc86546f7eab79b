#include "base/str.h"
#include "harness/tap.h"
#include "oci/pods.h"
#include "oci/volume.h"
#include <stdio.h>
#include <string.h>

#define MOUNTS_NONE "[]"
#define NS_ALL                                                                                     \
    "{\"type\":\"mount\"},{\"type\":\"network\",\"path\":\"/var/run/netns/n\"},"                   \
    "{\"type\":\"pid\"},{\"type\":\"ipc\"},{\"type\":\"uts\"}"

static struct spec *spec(const char *namespaces, const char *mounts)
{
    AUTO_FREE char *text =
        str_format("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{"
                   "\"namespaces\":[%s]},\"mounts\":%s}",
                   namespaces, mounts);
    struct spec *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_parse(text, strlen(text), &s, &err), err);
    return s;
}

static void refused(const char *namespaces, const char *mounts, enum spec_kind kind,
                    const char *words)
{
    AUTO(spec_free) struct spec *s = spec(namespaces, mounts);
    struct err err = ERR_INIT;

    ASSERT_FAIL(pods_check(s, kind, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, words);
}

static void accepted(const char *namespaces, const char *mounts, enum spec_kind kind)
{
    AUTO(spec_free) struct spec *s = spec(namespaces, mounts);
    struct err err = ERR_INIT;

    ASSERT_OK(pods_check(s, kind, &err), err);
}

TEST(the_hosts_namespaces_are_refused_by_their_names)
{
    const char *no_network = "{\"type\":\"mount\"},{\"type\":\"pid\"},{\"type\":\"ipc\"}";
    const char *no_pid = "{\"type\":\"mount\"},{\"type\":\"network\"},{\"type\":\"ipc\"}";
    const char *no_ipc = "{\"type\":\"mount\"},{\"type\":\"network\"},{\"type\":\"pid\"}";

    accepted(NS_ALL, MOUNTS_NONE, SPEC_SANDBOX);
    refused(no_network, MOUNTS_NONE, SPEC_SANDBOX, "hostNetwork");
    refused(no_network, MOUNTS_NONE, SPEC_STANDALONE, "--net-host");
    refused(no_pid, MOUNTS_NONE, SPEC_SANDBOX, "hostPID");
    refused(no_pid, MOUNTS_NONE, SPEC_STANDALONE, "--pid=host");
    refused(no_ipc, MOUNTS_NONE, SPEC_SANDBOX, "hostIPC");
    refused(no_ipc, MOUNTS_NONE, SPEC_STANDALONE, "--ipc=host");
    accepted(no_network, MOUNTS_NONE, SPEC_WORKLOAD);
    accepted("{\"type\":\"pid\"}", MOUNTS_NONE, SPEC_SANDBOX);
}

TEST(namespaces_of_others_are_refused_but_for_a_network_and_within_a_pod)
{
    const char *pid1 = "{\"type\":\"mount\"},{\"type\":\"network\",\"path\":\"/run/netns/a\"},"
                       "{\"type\":\"ipc\"},{\"type\":\"pid\",\"path\":\"/proc/1/ns/pid\"}";

    refused(pid1, MOUNTS_NONE, SPEC_STANDALONE, "pid namespace /proc/1/ns/pid cannot be joined");
    refused(pid1, MOUNTS_NONE, SPEC_SANDBOX, "/proc/1/ns/pid");
    accepted(pid1, MOUNTS_NONE, SPEC_WORKLOAD);
}

TEST(mounts_that_reach_back_are_refused)
{
    refused(NS_ALL,
            "[{\"destination\":\"/v\",\"type\":\"bind\",\"source\":\"/s\",\"options\":[\"rbind\","
            "\"rshared\"]}]",
            SPEC_WORKLOAD, "mount on /v: rshared propagation");
    accepted(
        NS_ALL,
        "[{\"destination\":\"/v\",\"type\":\"bind\",\"source\":\"/s\",\"options\":[\"rbind\","
        "\"rprivate\"]},{\"destination\":\"/w\",\"type\":\"bind\",\"source\":\"/s\",\"options\":"
        "[\"rslave\"]},{\"destination\":\"/x\",\"type\":\"bind\",\"source\":\"sandbox://x\","
        "\"options\":[\"rshared\"]}]",
        SPEC_WORKLOAD);
}

static const char *shm_after(const char *namespaces, const char *mount, enum spec_kind kind)
{
    static char source[128];
    AUTO_FREE char *mounts = str_format("[{\"destination\":\"/dev/shm\",%s}]", mount);
    AUTO(spec_free) struct spec *s = spec(namespaces, mounts);

    struct err err = ERR_INIT;
    ASSERT_OK(pods_fit(s, kind, "p1", &err), err);
    snprintf(
        source, sizeof(source), "%s",
        json_string_value(js_get(json_array_get(js_get(spec_json(s), "mounts"), 0), "source")));
    return source;
}

TEST(shared_memory_is_the_pods_own_in_the_vm)
{
    const char *shared = NS_ALL ",{\"type\":\"cgroup\"}";
    const char *joined = "{\"type\":\"ipc\",\"path\":\"/proc/7/ns/ipc\"}";
    const char *bind = "\"type\":\"bind\",\"source\":\"/run/c/sandboxes/p1/shm\"";
    const char *other = "\"type\":\"bind\",\"source\":\"/var/lib/kubelet/pods/u/volumes/shm\"";
    const char *tmpfs = "\"type\":\"tmpfs\",\"source\":\"shm\"";

    ASSERT_STR(shm_after(shared, bind, SPEC_SANDBOX), "sandbox-tmp://shm");
    ASSERT_STR(shm_after(joined, bind, SPEC_WORKLOAD), "sandbox-tmp://shm");
    ASSERT_STR(shm_after(joined, tmpfs, SPEC_WORKLOAD), "sandbox-tmp://shm");
    ASSERT_STR(shm_after(shared, tmpfs, SPEC_WORKLOAD), "shm"); /* an IPC namespace of its own */
    ASSERT_STR(shm_after(joined, other, SPEC_WORKLOAD), "/var/lib/kubelet/pods/u/volumes/shm");
    ASSERT_STR(shm_after(shared, bind, SPEC_STANDALONE), "/run/c/sandboxes/p1/shm");
}

static uint64_t shm_size(const char *mount, const char *annotation, struct err *err)
{
    AUTO_FREE char *mounts = str_format("[{\"destination\":\"/dev/shm\",%s}]", mount);
    AUTO(spec_free)
    struct spec *s = spec("{\"type\":\"ipc\",\"path\":\"/proc/7/ns/ipc\"}", mounts);
    AUTO(volume_release) struct volume v = { 0 };
    bool there = false;

    if (annotation)
        spec_annotation_default(s, "io.microsoft.lcow.shm.size-kb", annotation);
    if (pods_fit(s, SPEC_WORKLOAD, "p1", err) < 0)
        return 0;
    ASSERT_OK(volume_read(json_array_get(js_get(spec_json(s), "mounts"), 0), &v, &there, err),
              *err);
    ASSERT(there && v.tmpfs && v.n == 1 && v.dirs[0].mode == 01777);
    ASSERT(spec_annotation(s, "io.microsoft.lcow.shm.size-kb") == NULL);
    return v.bytes;
}

TEST(shared_memory_has_the_size_that_was_said)
{
    const char *bind = "\"type\":\"bind\",\"source\":\"/run/c/sandboxes/p1/shm\"";
    struct err err = ERR_INIT;

    ASSERT_EQ(shm_size(bind, NULL, &err), 64 << 20);
    ASSERT_EQ(
        shm_size("\"type\":\"tmpfs\",\"options\":[\"mode=1777\",\"size=32768k\"]", NULL, &err),
        32 << 20);
    ASSERT_EQ(shm_size("\"type\":\"tmpfs\",\"options\":[\"size=1G\"]", NULL, &err), 1 << 30);
    ASSERT_EQ(shm_size("\"type\":\"tmpfs\",\"options\":[\"size=134217728\"]", NULL, &err),
              128 << 20);
    ASSERT_EQ(shm_size("\"type\":\"tmpfs\",\"options\":[\"size=50%\"]", NULL, &err), 64 << 20);
    ASSERT_EQ(shm_size(bind, "1024", &err), 1 << 20);
    ASSERT_EQ(shm_size(bind, "much", &err), 0);
    ASSERT(err.code == ERR_INVALID);
}

TEST(the_process_whose_namespace_is_meant)
{
    AUTO(spec_free)
    struct spec *s = spec("{\"type\":\"pid\",\"path\":\"/proc/4711/ns/pid\"},{\"type\":\"ipc\"},"
                          "{\"type\":\"network\",\"path\":\"/run/netns/4712\"},"
                          "{\"type\":\"uts\",\"path\":\"/proc/self/ns/uts\"}",
                          MOUNTS_NONE);

    ASSERT_EQ(pods_namespace_pid(s, "pid"), 4711);
    ASSERT_EQ(pods_namespace_pid(s, "ipc"), 0);
    ASSERT_EQ(pods_namespace_pid(s, "network"), 0);
    ASSERT_EQ(pods_namespace_pid(s, "uts"), 0);
    ASSERT_EQ(pods_namespace_pid(s, "user"), 0);
}

TEST(interfaces_and_cache_classes_of_the_host_are_refused_by_name)
{
    static const struct {
        const char *linux_part, *message;
    } cases[] = {
        { "\"netDevices\":{\"eth5\":{}}",
          "linux.netDevices: the host's interface eth5 cannot be moved into the VM; attach it by "
          "CNI, or as a PCI device (allow_devices)" },
        { "\"intelRdt\":{\"closID\":\"gold\"}",
          "linux.intelRdt (class \"gold\") is unsupported: the VM has no resctrl; remove the "
          "class" },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE char *text =
            str_format("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},"
                       "\"linux\":{%s}}",
                       cases[i].linux_part);
        AUTO(spec_free) struct spec *s = NULL;
        struct err err = ERR_INIT;

        ASSERT_OK(spec_parse(text, strlen(text), &s, &err), err);
        ASSERT_FAIL(pods_check(s, SPEC_WORKLOAD, &err), err, ERR_INVALID);
        ASSERT_MSG(err.msg, cases[i].message);
    }
}

#define PAUSE "\"args\":[\"/pause\"],\"cwd\":\"/\""
#define CRI_MOUNTS                                                                                 \
    "{\"destination\":\"/proc\",\"type\":\"proc\",\"source\":\"proc\"},"                           \
    "{\"destination\":\"/etc/resolv.conf\",\"type\":\"bind\",\"source\":\"/run/p1/resolv.conf\"}," \
    "{\"destination\":\"/dev/shm\",\"type\":\"bind\",\"source\":\"/run/c/sandboxes/p1/shm\"}"

static struct spec *pause_spec(const char *process, const char *mount, const char *linux_part,
                               const char *namespaces)
{
    AUTO_FREE char *text =
        str_format("{\"process\":{%s},\"root\":{},\"mounts\":[%s%s],\"linux\":{%s"
                   "\"namespaces\":[%s]}}",
                   process, mount, CRI_MOUNTS, linux_part, namespaces);
    struct spec *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_parse(text, strlen(text), &s, &err), err);
    ASSERT_OK(pods_fit(s, SPEC_SANDBOX, "p1", &err), err);
    return s;
}

TEST(a_pause_program_with_what_a_cri_gives_it_needs_no_files)
{
    AUTO(spec_free)
    struct spec *s = pause_spec(PAUSE, "",
                                "\"sysctl\":{\"net.ipv4.ping_group_range\":\"0 9\","
                                "\"kernel.shmmni\":\"5\",\"kernel.sem\":\"1 2 3 4\"},",
                                NS_ALL);
    const json_t *mounts = js_get(spec_json(s), "mounts");

    ASSERT(pods_can_hold(s));
    pods_drop_files(s);
    ASSERT_EQ(json_array_size(mounts), 1);
    ASSERT_STR(spec_text(json_array_get(mounts, 0), "source"), "sandbox-tmp://shm");
}

TEST(what_else_a_pods_first_container_asks_for_needs_a_root)
{
    static const struct {
        const char *process, *mount, *linux_part, *namespaces;
    } cases[] = {
        { "\"args\":[\"/pause\",\"x\"],\"cwd\":\"/\"", "", "", NS_ALL },
        { "\"args\":[\"/bin/pause\"],\"cwd\":\"/\"", "", "", NS_ALL },
        { PAUSE ",\"terminal\":true", "", "", NS_ALL },
        { PAUSE ",\"user\":{\"username\":\"nobody\"}", "", "", NS_ALL },
        { PAUSE, "{\"destination\":\"/data\",\"type\":\"tmpfs\",\"source\":\"tmpfs\"},", "",
          NS_ALL },
        { PAUSE, "{\"destination\":\"/run\",\"type\":\"bind\",\"source\":\"/run\"},", "", NS_ALL },
        { PAUSE, "", "\"devices\":[{\"path\":\"/dev/x\",\"type\":\"c\"}],", NS_ALL },
        { PAUSE, "", "\"sysctl\":{\"vm.swappiness\":\"1\"},", NS_ALL },
        { PAUSE, "", "\"sysctl\":{\"net/../vm\":\"1\"},", NS_ALL },
        { PAUSE, "", "\"sysctl\":{\"net.x\":1},", NS_ALL },
        { PAUSE, "", "", NS_ALL ",{\"type\":\"user\"}" },
        { PAUSE, "", "", "{\"type\":\"mount\"},{\"type\":\"pid\"},{\"type\":\"ipc\"}" },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO(spec_free)
        struct spec *s =
            pause_spec(cases[i].process, cases[i].mount, cases[i].linux_part, cases[i].namespaces);

        if (pods_can_hold(s))
            tap_fail(__FILE__, __LINE__, "case %zu", i);
    }
}
