/* spec_test.c - which fields a spec must have, what is read, and what is refused by name. */
#include "base/err.h"
#include "harness/tap.h"
#include "oci/spec.h"
#include <stdlib.h>
#include <string.h>

#define GOOD                                                                                       \
    "\"ociVersion\":\"1.0.2\",\"process\":{\"args\":[\"/bin/true\"],\"cwd\":\"/\",\"env\":[]},"    \
    "\"root\":{\"path\":\"rootfs\",\"readonly\":true},\"linux\":{}"

static int parse(const char *text, struct spec **ret, struct err *err)
{
    return spec_parse(text, strlen(text), ret, err);
}

static void refused(const char *text, const char *because)
{
    struct spec *s;
    struct err err = ERR_INIT;

    ASSERT_FAIL(parse(text, &s, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, because);
}

TEST(a_plain_spec_is_taken_and_gets_resources)
{
    AUTO(spec_free) struct spec *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(parse("{" GOOD "}", &s, &err), err);
    ASSERT(json_is_object(json_object_get(json_object_get(spec_json(s), "linux"), "resources")));
    ASSERT(spec_root_readonly(s));
    ASSERT_STR(spec_root_path(s), "rootfs");
    ASSERT(!spec_terminal(s));
    ASSERT_STR(spec_cgroups_path(s), "");
}

TEST(what_the_guest_would_crash_on_is_refused_by_name)
{
    refused("{\"process\":{},\"root\":{}}", "linux is missing");
    refused("{\"linux\":{},\"root\":{}}", "process is missing");
    refused("{\"linux\":{},\"process\":{\"args\":[\"a\"],\"cwd\":\"/\"}}", "root is missing");
    refused("[]", "not an object");
    refused("{", "OCI spec");
    refused("", "OCI spec");
    refused("{\"linux\":[],\"process\":{},\"root\":{}}", "linux");
    refused("{\"linux\":{},\"root\":{},\"process\":{\"args\":[],\"cwd\":\"/\"}}", "args is empty");
    refused("{\"linux\":{},\"root\":{},\"process\":{\"args\":[1],\"cwd\":\"/\"}}", "args[0]");
    refused("{\"linux\":{},\"root\":{},\"process\":{\"args\":[\"a\"],\"cwd\":\"x\"}}", "cwd");
    refused("{" GOOD ",\"mounts\":[{}]}", "mounts[0] has no destination");
    refused("{" GOOD ",\"mounts\":[7]}", "mounts[0]");
    refused("{" GOOD ",\"annotations\":{\"a\":1}}", "annotation \"a\"");
    refused("{" GOOD ",\"linux\":{\"namespaces\":[{}]}}", "namespaces[0]");
}

TEST(too_many_mounts_are_refused_with_their_number)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };

    sbuf_adds(&b, "{" GOOD ",\"mounts\":[");
    for (int i = 0; i < SPEC_MAX_MOUNTS + 1; i++)
        sbuf_addf(&b, "%s{\"destination\":\"/m\"}", i ? "," : "");
    sbuf_adds(&b, "]}");
    refused(b.data, "4097 mounts, at most 4096");
}

static void kind_is(const char *annotations, enum spec_kind kind, const char *pod)
{
    AUTO_FREE char *text = str_format("{" GOOD ",\"annotations\":{%s}}", annotations);
    AUTO(spec_free) struct spec *s = NULL;
    struct err err = ERR_INIT;
    enum spec_kind got;
    const char *got_pod;

    ASSERT_OK(parse(text, &s, &err), err);
    ASSERT_OK(spec_kind(s, "own", &got, &got_pod, &err), err);
    ASSERT_EQ(got, kind);
    ASSERT_STR(got_pod, pod);
}

#define TYPE "\"io.kubernetes.cri.container-type\":"
#define SANDBOX "\"io.kubernetes.cri.sandbox-id\":"

TEST(annotations_tell_the_kind)
{
    kind_is("", SPEC_STANDALONE, "own");
    kind_is(TYPE "\"sandbox\"," SANDBOX "\"p1\"", SPEC_SANDBOX, "p1");
    kind_is(TYPE "\"container\"," SANDBOX "\"p1\"", SPEC_WORKLOAD, "p1");
}

static void kind_refused(const char *annotations, const char *because)
{
    AUTO_FREE char *text = str_format("{" GOOD ",\"annotations\":{%s}}", annotations);
    AUTO(spec_free) struct spec *s = NULL;
    struct err err = ERR_INIT;
    enum spec_kind got;
    const char *pod;

    ASSERT_OK(parse(text, &s, &err), err);
    ASSERT_FAIL(spec_kind(s, "own", &got, &pod, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, because);
}

TEST(half_a_kind_is_refused)
{
    kind_refused(TYPE "\"sandbox\"", "sandbox-id is not");
    kind_refused(SANDBOX "\"p1\"", "container-type is not");
    kind_refused(TYPE "\"pod\"," SANDBOX "\"p1\"", "\"pod\"");
}

TEST(limits_are_read_and_unlimited_is_zero)
{
    AUTO(spec_free) struct spec *s = NULL, *none = NULL, *bad = NULL;
    struct spec_limits l;
    struct err err = ERR_INIT;

    ASSERT_OK(parse("{" GOOD ",\"linux\":{\"resources\":{\"memory\":{\"limit\":1048576},"
                    "\"cpu\":{\"quota\":150000,\"period\":100000,\"shares\":512}}}}",
                    &s, &err),
              err);
    ASSERT_OK(spec_limits(s, &l, &err), err);
    ASSERT_EQ(l.memory_bytes, 1048576);
    ASSERT_EQ(l.cpu_quota, 150000);
    ASSERT_EQ(l.cpu_period, 100000);
    ASSERT_EQ(l.cpu_shares, 512);
    ASSERT_OK(
        parse("{" GOOD ",\"linux\":{\"resources\":{\"memory\":{\"limit\":-1}}}}", &none, &err),
        err);
    ASSERT_OK(spec_limits(none, &l, &err), err);
    ASSERT_EQ(l.memory_bytes, 0);
    ASSERT_OK(
        parse("{" GOOD ",\"linux\":{\"resources\":{\"memory\":{\"limit\":\"1G\"}}}}", &bad, &err),
        err);
    ASSERT_FAIL(spec_limits(bad, &l, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "linux.resources.memory");
}

TEST(the_limits_of_a_pod_are_those_of_all_its_containers)
{
    AUTO(spec_free) struct spec *pod = NULL, *member = NULL, *unsaid = NULL;
    struct spec_limits l;
    struct err err = ERR_INIT;
    static const char own[] = "\"linux\":{\"resources\":{\"cpu\":{\"shares\":2}}}";
#define SAYS(type, memory)                                                                         \
    "\"annotations\":{\"io.kubernetes.cri.container-type\":\"" type                                \
    "\",\"io.kubernetes.cri.sandbox-id\":\"p\",\"io.kubernetes.cri.sandbox-memory\":\"" memory     \
    "\",\"io.kubernetes.cri.sandbox-cpu-period\":\"100000\","                                      \
    "\"io.kubernetes.cri.sandbox-cpu-quota\":\"200000\"}"

    AUTO_FREE char *a = str_format("{" GOOD ",%s," SAYS("sandbox", "734003200") "}", own);
    AUTO_FREE char *b = str_format("{" GOOD ",%s," SAYS("container", "734003200") "}", own);
    AUTO_FREE char *c = str_format("{" GOOD ",%s," SAYS("sandbox", "0") "}", own);

    ASSERT_OK(parse(a, &pod, &err), err);
    ASSERT_OK(spec_limits(pod, &l, &err), err);
    ASSERT_EQ(l.memory_bytes, 734003200);
    ASSERT_EQ(l.cpu_quota, 200000);
    ASSERT_EQ(l.cpu_period, 100000);
    ASSERT_EQ(l.cpu_shares, 2);
    ASSERT_OK(parse(b, &member, &err), err);
    ASSERT_OK(spec_limits(member, &l, &err), err);
    ASSERT_EQ(l.memory_bytes, 0);
    ASSERT_OK(parse(c, &unsaid, &err), err);
    ASSERT_OK(spec_limits(unsaid, &l, &err), err);
    ASSERT_EQ(l.memory_bytes, 0);
}

TEST(namespaces_and_oom_score_are_found)
{
    AUTO(spec_free) struct spec *s = NULL;
    struct err err = ERR_INIT;
    const char *path;
    bool set;

    ASSERT_OK(parse("{\"root\":{\"path\":\"r\"},\"process\":{\"args\":[\"a\"],\"cwd\":\"/\","
                    "\"oomScoreAdj\":-998},\"linux\":{\"namespaces\":[{\"type\":\"pid\"},"
                    "{\"type\":\"network\",\"path\":\"/var/run/netns/x\"}]}}",
                    &s, &err),
              err);
    ASSERT(spec_namespace(s, "network", &path));
    ASSERT_STR(path, "/var/run/netns/x");
    ASSERT(spec_namespace(s, "pid", &path));
    ASSERT_STR(path, "");
    ASSERT(!spec_namespace(s, "user", &path));
    ASSERT_EQ(spec_oom_score_adj(s, &set), -998);
    ASSERT(set);
}

TEST(a_copy_is_independent)
{
    AUTO(spec_free) struct spec *s = NULL, *copy = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(parse("{" GOOD "}", &s, &err), err);
    copy = spec_copy(s);
    json_object_del(spec_json(copy), "root");
    ASSERT_STR(spec_root_path(s), "rootfs");
}

TEST(a_process_for_exec_is_checked_and_takes_the_requests_terminal)
{
    static const char text[] = "{\"args\":[\"sh\"],\"cwd\":\"/\",\"terminal\":false,\"x\":1}";
    AUTO(json_decref) json_t *p = NULL, *q = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_process_parse(text, strlen(text), true, &p, &err), err);
    ASSERT(json_is_true(json_object_get(p, "terminal")));
    ASSERT_EQ(json_integer_value(json_object_get(p, "x")), 1);
    ASSERT_FAIL(spec_process_parse(NULL, 0, true, &q, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "missing");
    ASSERT_FAIL(spec_process_parse("{}", 2, true, &q, &err), err, ERR_INVALID);
    ASSERT_FAIL(spec_process_parse("3", 1, true, &q, &err), err, ERR_INVALID);
}

TEST(default_annotations_fill_gaps_only)
{
    static const char *const texts[] = {
        "{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{},"
        "\"annotations\":{\"a\":\"1\"}}",
        "{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{}}",
        "{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},\"linux\":{},"
        "\"annotations\":null}",
    };

    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        AUTO(spec_free) struct spec *s = NULL;
        struct err err = ERR_INIT;

        ASSERT_OK(spec_parse(texts[i], strlen(texts[i]), &s, &err), err);
        spec_annotation_default(s, "a", "2");
        spec_annotation_default(s, "b", "3");
        ASSERT_STR(spec_annotation(s, "a"), i == 0 ? "1" : "2");
        ASSERT_STR(spec_annotation(s, "b"), "3");
    }
}
