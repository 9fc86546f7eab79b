#include "base/str.h"
#include "harness/tap.h"
#include "host/config/annotations.h"
#include "host/config/config.h"
#include "tool/cmd_config.h"
#include <stdlib.h>
#include <string.h>

static char *stanza(unsigned major, unsigned minor, const struct stanza *with)
{
    struct stanza s = *with;
    struct sbuf out = { 0 };

    s.containerd = (struct doctor_version){ major, minor };
    s.config_path = "/etc/lcow/lcow.conf";
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
    ASSERT_HAS(v16, "\n  pod_annotations = []\n");
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

static char *stanza_for(unsigned major, unsigned minor, const char *toml)
{
    struct stanza s = { .config_exists = true };

    stanza_read(toml, &s);
    return stanza(major, minor, &s);
}

#define OLD_RUNTIMES "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes."

TEST(the_stanza_can_be_appended_to_the_existing_file)
{
    AUTO_FREE char *none = stanza_for(1, 6, "# version = 2\n\n");
    AUTO_FREE char *debian = stanza_for(1, 6, "version = 2\n[plugins]\n  [plugins.x]\n");
    AUTO_FREE char *whole = stanza_for(1, 7, "version=2\n  " OLD_RUNTIMES "runc]\n");
    AUTO_FREE char *first = stanza_for(1, 7, "root = \"/x\"\n[plugins.x]\nversion = 2\n");
    AUTO_FREE char *newer = stanza_for(2, 1, "# of Debian\nversion = 2\n");
    AUTO_FREE char *third = stanza_for(2, 1, "version = 3\n");

    ASSERT_HAS(none, "\nversion = 2\n");
    /* An appended version would be a key of that file's last table. */
    ASSERT(!strstr(debian, "\nversion = "));
    ASSERT_HAS(debian, "\n# That file already has version = 2.\n");
    ASSERT_HAS(first, "\n# FIRST: that file must begin with this line: version = 2\n");
    /* 1.x drops its default runtime when the file names another. */
    ASSERT_HAS(debian, "\n" OLD_RUNTIMES "runc]\n  runtime_type = \"io.containerd.runc.v2\"\n");
    ASSERT(!strstr(whole, "runtimes.runc]"));
    /* 2.x reads a file of version 2 with the names of that version. */
    ASSERT_HAS(newer, "\n" OLD_RUNTIMES "lcow]\n");
    ASSERT_HAS(newer, "\n  sandboxer = \"podsandbox\"\n");
    ASSERT(!strstr(newer, "runtimes.runc]"));
    ASSERT_HAS(third, "\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.lcow]\n");
}

TEST(a_stanza_that_exists_is_printed_as_a_comment)
{
    AUTO_FREE char *again = stanza_for(1, 6, "version = 2\n" OLD_RUNTIMES "lcow]\n");

    ASSERT_HAS(again, "already has a runtime lcow");
    for (const char *line = again; *line; line += strcspn(line, "\n") + 1)
        ASSERT_EQ(*line, '#');
}

TEST(a_missing_configuration_file_is_named_in_a_comment_only)
{
    AUTO_FREE char *s = stanza(2, 1, &(struct stanza){ .shim_path = "/opt/shim" });

    /* A ConfigPath without a file would stop every pod. */
    ASSERT_HAS(s, "\n  # Once /etc/lcow/lcow.conf exists:\n");
    ASSERT_HAS(s, "\n  #   ConfigPath = ");
    ASSERT_HAS(s, "\n  runtime_path = \"/opt/shim\"\n");
}

TEST(the_stanza_lists_exactly_the_annotations_with_an_effect)
{
    AUTO(config_release) struct config c;
    struct stanza with = { 0 };

    config_init(&c);
    annotations_taken(&c, &with.annotations);
    AUTO_FREE char *none = stanza(2, 1, &with);
    strv_release(&with.annotations);
    free(c.allow_annotations);
    c.allow_annotations = str_dup("io.lcow.c* io.microsoft.virtualmachine.lcow.privileged");
    free(c.allow_devices);
    c.allow_devices = str_dup("8086:1572");
    annotations_taken(&c, &with.annotations);
    AUTO_FREE char *some = stanza(2, 1, &with);
    strv_release(&with.annotations);

    /* Annotations that restrict a container need not be allowed. */
    ASSERT_HAS(none, "\n  pod_annotations = [\n"
                     "    \"io.microsoft.virtualmachine.fileshares.disablewritable\",\n"
                     "    \"io.microsoft.disable-unsafe-operations\",\n"
                     "    \"io.microsoft.virtualmachine.storage.scratch.encrypted\"\n"
                     "  ]\n  container_annotations = [\n");
    ASSERT_HAS(some, "\n  container_annotations = [\n"
                     "    \"io.lcow.cpus\",\n"
                     "    \"io.microsoft.virtualmachine.lcow.privileged\",\n");
    ASSERT_HAS(some, ",\n    \"io.lcow.device/*\"\n  ]\n");
    ASSERT(!strstr(some, "io.lcow.memory_mib"));
}

TEST(a_runtime_class_has_the_overhead_and_its_origin)
{
    struct sbuf out = { 0 }, guess = { 0 }, emulated = { 0 };

    runtimeclass_print(&(struct runtimeclass){ .guest_mib = 128, .vmm_mib = 41, .n_measured = 2 },
                       &out);
    ASSERT_HAS(out.data, "\nhandler: lcow\n");
    ASSERT_HAS(out.data, "\n    memory: \"176Mi\"\n"); /* 169, rounded up */
    ASSERT_HAS(out.data, "# 41 MiB for QEMU (the maximum of the VMs that run here)");
    runtimeclass_print(&(struct runtimeclass){ .guest_mib = 128 }, &guess);
    ASSERT_HAS(guess.data, "\n    memory: \"176Mi\"\n");
    ASSERT_HAS(guess.data, "with KVM, not measured");
    runtimeclass_print(&(struct runtimeclass){ .guest_mib = 128, .emulated = true }, &emulated);
    ASSERT_HAS(emulated.data, "\n    memory: \"224Mi\"\n");
    ASSERT_HAS(emulated.data, "of emulation, not measured");
    sbuf_release(&out);
    sbuf_release(&emulated);
    sbuf_release(&guess);
}

TEST(the_guests_memory_is_not_counted_as_qemus)
{
    static const char smaps[] =
        "7f0000000000-7f0010000000 rw-p 00000000 00:00 0 \n"
        "Size:             262144 kB\nPss:              200000 kB\n" /* the guest's 256 MiB */
        "7f0020000000-7f0028000000 rwxp 00000000 00:00 0 \n"
        "Pss:                3000 kB\nPss_Dirty: 1 kB\n" /* translated code */
        "55d000000000-55d000400000 r-xp 00000000 08:01 1 /usr/bin/qemu-system-x86_64\n"
        "Pss:                 500 kB\n"
        "55d001000000-55d001800000 rw-p 00000000 00:00 0 [heap]\n"
        "Pss:                  40 kB\n"
        "7f0030000000-7f0040000000 r--p 00000000 08:01 2 /usr/lib/x\n"
        "Pss:                   2 kB";

    ASSERT_EQ(runtimeclass_own_kib(smaps), 3542);
    ASSERT_EQ(runtimeclass_own_kib(""), 0);
}

static bool has_runtime(const char *toml)
{
    struct stanza s = { 0 };

    stanza_read(toml, &s);
    return s.has_type;
}

static bool is_default(const char *toml)
{
    struct stanza s = { 0 };

    stanza_read(toml, &s);
    return s.is_default;
}

#define OURS OLD_RUNTIMES "vm]\n  runtime_type = \"io.containerd.lcow.v2\"\n"
#define RUNC OLD_RUNTIMES "runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"

TEST(lcow_as_the_default_runtime_is_detected)
{
    ASSERT(is_default("[plugins.x.containerd]\n  default_runtime_name = \"vm\"\n" RUNC OURS));
    ASSERT(is_default(OURS RUNC "[plugins.x.containerd]\n default_runtime_name='vm' # ours\n"));
    ASSERT(is_default("default_runtime_name = 'v.m'\n[plugins.'x'.containerd.runtimes.'v.m']\n"
                      "runtime_type = 'io.containerd.lcow.v2'\n"));
    ASSERT(!is_default("default_runtime_name = \"runc\"\n" OURS RUNC));
    ASSERT(!is_default("# default_runtime_name = \"vm\"\n" OURS));
    ASSERT(!is_default(OURS));
    ASSERT(!is_default("default_runtime_name = \"\"\nruntime_type = 'io.containerd.lcow.v2'\n"));
}

TEST(the_runtime_stanza_must_not_be_a_comment)
{
    ASSERT(has_runtime("version = 2\n[plugins.x.runtimes.lcow]\n  runtime_type = "
                       "\"io.containerd.lcow.v2\"\n"));
    ASSERT(!has_runtime("# runtime_type = \"io.containerd.lcow.v2\"\n"));
    ASSERT(!has_runtime("runtime_type = \"io.containerd.runc.v2\"\n"));
    ASSERT(!has_runtime(""));
}
