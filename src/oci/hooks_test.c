#include "base/err.h"
#include "harness/tap.h"
#include "oci/hooks.h"
#include "oci/spec.h"
#include <string.h>

#define HOOK(kind, more) "{\"" kind "\":[{\"path\":\"/bin/h\"" more "}]}"

static int read_hooks(const char *hooks, bool run, struct hooks **ret, struct err *err)
{
    AUTO_FREE char *text =
        str_format("{\"ociVersion\":\"1.2.0\",\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},"
                   "\"root\":{},\"linux\":{},\"annotations\":{\"k\":\"v\"},\"hooks\":%s}",
                   hooks);
    AUTO(spec_free) struct spec *s = NULL;
    struct err none = ERR_INIT;

    ASSERT_OK(spec_parse(text, strlen(text), &s, &none), none);
    return hooks_read(s, run, ret, err);
}

static void refused(const char *hooks, bool run, const char *message)
{
    struct hooks *h = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(read_hooks(hooks, run, &h, &err), err, ERR_INVALID);
    ASSERT_MSG(err.msg, message);
}

TEST(hooks_of_the_containers_namespaces_are_refused_by_name)
{
    refused("{\"startContainer\":[],\"createContainer\":[{\"path\":\"/usr/bin/nvidia-cdi-hook\"}]}",
            true,
            "hook createContainer[0] (/usr/bin/nvidia-cdi-hook) is unsupported: it runs in the "
            "container's namespaces, which are in the VM; remove it where it comes from (client, "
            "CDI specification or NRI plugin)");
    refused(HOOK("startContainer", ""), false,
            "hook startContainer[0] (/bin/h) is unsupported: it runs in the container's "
            "namespaces, which are in the VM; remove it where it comes from (client, CDI "
            "specification or NRI plugin)");
}

TEST(hooks_of_the_host_are_refused_by_configuration)
{
    refused(HOOK("createRuntime", ""), false,
            "hook createRuntime[0] (/bin/h) is refused by the configuration: set hooks = run in "
            "lcow.conf, or remove it where it comes from (client, CDI specification or NRI "
            "plugin)");
}

TEST(a_hook_that_cannot_be_run_is_named)
{
    refused("{\"prestart\":[{\"path\":\"/a\"},{\"path\":\"b\"}]}", true,
            "invalid hook prestart[1]: path \"b\" is not an absolute path");
    refused(HOOK("poststop", ",\"timeout\":0"), true,
            "invalid hook poststop[0] (/bin/h): timeout must be 1–3600 s");
    refused("{\"poststart\":[7]}", true,
            "invalid hook poststart[0]: path \"\" is not an absolute path");
}

TEST(a_spec_without_hooks_has_none)
{
    struct hooks *h = NULL;
    struct err err = ERR_INIT;
    struct hook hook;

    ASSERT_OK(read_hooks("{}", false, &h, &err), err);
    ASSERT_OK(read_hooks("{\"createContainer\":[]}", false, &h, &err), err);
    ASSERT(!h && !hooks_get(h, "prestart", 0, &hook));
}

TEST(a_hook_has_its_arguments_and_reads_the_state)
{
    AUTO_FREE char *state = NULL, *stopped = NULL;
    struct hooks *h = NULL;
    struct hook hook;
    struct err err = ERR_INIT;

    ASSERT_OK(read_hooks("{\"prestart\":[{\"path\":\"/a\",\"args\":[\"b\",\"c\"],\"env\":[\"D=e\"],"
                         "\"timeout\":7},{\"path\":\"/f\"}]}",
                         true, &h, &err),
              err);
    ASSERT(hooks_get(h, "prestart", 0, &hook));
    ASSERT_STR(hook.path, "/a");
    ASSERT_EQ(hook.argv.n, 2);
    ASSERT_STR(hook.argv.v[1], "c");
    ASSERT_STR(hook.env.v[0], "D=e");
    ASSERT_EQ(hook.timeout_s, 7);
    hook_release(&hook);
    ASSERT(hooks_get(h, "prestart", 1, &hook));
    ASSERT_STR(hook.argv.v[0], "/f");
    ASSERT(hook.env.n == 0 && hook.timeout_s == 0);
    hook_release(&hook);
    ASSERT(!hooks_get(h, "prestart", 2, &hook) && !hooks_get(h, "poststop", 0, &hook));
    state = hooks_state(h, "c1", "/b", "creating", 42);
    ASSERT_STR(state, "{\"ociVersion\":\"1.2.0\",\"annotations\":{\"k\":\"v\"},\"id\":\"c1\","
                      "\"bundle\":\"/b\",\"status\":\"creating\",\"pid\":42}");
    stopped = hooks_state(h, "c1", "/b", "stopped", 0);
    ASSERT(!strstr(stopped, "pid"));
    hooks_free(h);
}
