#include "base/str.h"
#include "harness/tap.h"
#include "tool/config_tool.h"
#include <string.h>

static char *stanza(unsigned major, unsigned minor, const struct stanza *with)
{
    struct stanza s = *with;
    struct sbuf out = { 0 };

    s.containerd = (struct doctor_version){ major, minor };
    s.config_path = "/etc/lcow/lcow.conf";
    if (!s.allow_annotations)
        s.allow_annotations = "io.lcow.cpus";
    stanza_print(&s, &out);
    return sbuf_take(&out);
}

TEST(containerd_1_has_version_2_and_its_plugin)
{
    AUTO_FREE char *v16 = stanza(1, 6, &(struct stanza){ .config_exists = true });
    AUTO_FREE char *v17 = stanza(1, 7, &(struct stanza){ .config_exists = true });

    ASSERT_HAS(v16, "\nversion = 2\n");
    ASSERT_HAS(v16, "\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.lcow]\n"
                    "  runtime_type = \"io.containerd.lcow.v2\"\n");
    ASSERT_HAS(v16, "\n  pod_annotations = [\"io.lcow.*\"]\n");
    ASSERT_HAS(v16, "\n  privileged_without_host_devices = true\n");
    ASSERT_HAS(v16, "\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.lcow.options]\n"
                    "    ConfigPath = \"/etc/lcow/lcow.conf\"\n");
    ASSERT(!strstr(v16, "sandbox_mode")); /* 1.6 does not know it */
    ASSERT_HAS(v17, "\n  sandbox_mode = \"podsandbox\"\n");
    ASSERT(!strstr(v17, "sandboxer"));
}

TEST(containerd_2_has_version_3_and_other_names)
{
    AUTO_FREE char *v21 = stanza(2, 1, &(struct stanza){ .config_exists = true });
    AUTO_FREE char *v24 = stanza(2, 4, &(struct stanza){ .config_exists = true });

    ASSERT_HAS(v21, "\nversion = 3\n");
    ASSERT_HAS(v21, "\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.lcow]\n");
    ASSERT_HAS(v21, "\n  sandboxer = \"podsandbox\"\n");
    ASSERT_HAS(v21, "only without the options table");
    ASSERT(!strstr(v21, "grpc.v1.cri"));
    ASSERT(!strstr(v24, "only without the options table"));
}

TEST(what_is_not_there_is_not_named)
{
    AUTO_FREE char *s = stanza(
        2, 1,
        &(struct stanza){ .shim_path = "/opt/shim", .allow_annotations = "io.microsoft.x y" });

    /* A ConfigPath without a file would stop every pod. */
    ASSERT_HAS(s, "\n  # Once /etc/lcow/lcow.conf exists:\n");
    ASSERT_HAS(s, "\n  #   ConfigPath = ");
    ASSERT_HAS(s, "\n  runtime_path = \"/opt/shim\"\n");
    ASSERT_HAS(s, "\n  pod_annotations = [\"io.lcow.*\", \"io.microsoft.*\"]\n");
}
