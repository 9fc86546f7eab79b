#include "base/str.h"
#include "harness/tap.h"
#include "host/config/config.h"
#include <string.h>

static int parse(struct config *c, const char *text, struct err *err)
{
    return config_parse_toml(c, "options", text, err);
}

static void refused(const char *text, const char *part, const char *other)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT_FAIL(parse(&c, text, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, part);
    ASSERT_HAS(err.msg, other);
}

TEST(what_containerd_writes_is_read)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    config_init(&c);
    /* BurntSushi's and go-toml's forms: nested tables indented, single and double quotes. */
    ASSERT_OK(parse(&c,
                    "TypeUrl = ''\nConfigPath = \"\"\n\n[vm]\n  allow_emulation = true\n"
                    "  memory_mib = 1_024 # comment\n  qemu = \"/opt/a \\\"b\\\"\"\n  rootfs = "
                    "'shared'\r\n\n[host]\n  allow_annotations = [\n    \"io.lcow.cpus\", # one\n"
                    "    'io.lcow.rootfs',\n  ]\n  'log_level' = \"debug\"",
                    &err),
              err);
    ASSERT(c.allow_emulation && c.rootfs == CONFIG_ROOTFS_SHARED);
    ASSERT_EQ(c.memory_mib, 1024);
    ASSERT_STR(c.qemu, "/opt/a \"b\"");
    ASSERT_STR(c.allow_annotations, "io.lcow.cpus io.lcow.rootfs");
    ASSERT_EQ(c.log_level, LOG_DEBUG);
}

TEST(tables_may_be_left_out)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;

    config_init(&c);
    ASSERT_OK(parse(&c, "cpus=+4\nrun_root=\"/r\"\nallow_annotations=[]\n", &err), err);
    ASSERT_EQ(c.cpus, 4);
    ASSERT_STR(c.run_root, "/r");
    ASSERT_STR(c.allow_annotations, "");
    ASSERT_OK(parse(&c, "", &err), err);
    ASSERT_OK(parse(&c, "\n  # nothing\n", &err), err);
}

TEST(keys_and_values_are_checked_as_in_a_file)
{
    refused("\nmemory_mb = 5\n", "options:2: unknown key memory_mb", "did you mean memory_mib?");
    refused("SystemdCgroup = true\n", "options:1: unknown key SystemdCgroup", "");
    refused("[vn]\ncpus = 5\n", "cpus belongs below [vm]", "not below [vn]");
    refused("[vm]\ncpus = 500\n", "options:2: cpus = 500:", "from 1 to 64");
    refused("[vm]\ncpus = -1\n", "options:2: cpus = -1:", "from 1");
    refused("image_dir = 'x'\n", "image_dir = x:", "absolute path");
}

TEST(toml_beyond_that_is_named)
{
    refused("a = {b = 1}\n", "options:1: an inline table", "not taken");
    refused("vm.cpus = 1\n", "dotted key", "[vm]");
    refused("[[vm]]\n", "array of tables", "not taken");
    refused("[vm.x]\n", "tables in tables", "not taken");
    refused("cpus = 1.5\n", "options:1: a value that is not a", "quotes");
    refused("cpus = 2026-01-01\n", "cpus = 2026-01-01:", "from 1");
    refused("cpus = 0x10\n", "a value that is not a", "quotes");
    refused("rootfs = shared\n", "a value that is not a", "quotes");
    refused("rootfs = \"\"\"shared\"\"\"\n", "several lines", "not taken");
    refused("rootfs = 'shared\n", "options:1: a string is not closed", "");
    refused("rootfs = 'shared", "options:1: a string is not closed", "");
    refused("rootfs = \"\\u0041\"\n", "an escape", "not taken");
    refused("rootfs = \"a\\nb\"\n", "several lines", "options:1");
    refused("allow_annotations = [1, 2]\n", "an array of anything but strings", "not taken");
    refused("allow_annotations = ['a' 'b']\n", "a comma is missing", "");
    refused("allow_annotations = ['a',\n", "an array is not closed", "");
    refused("cpus = 1 cpus = 2\n", "something follows the value", "options:1");
    refused("cpus =\n", "a value is missing", "");
    refused("cpus\n", "neither [table] nor key = value", "");
    refused("= 1\n", "neither [table] nor key = value", "");
    refused("[vm\ncpus = 1\n", "no ]", "");
}

TEST(the_size_is_bounded)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;
    AUTO_FREE char *big = mem_zalloc(70000);

    config_init(&c);
    memset(big, '\n', 69999);
    ASSERT_FAIL(config_parse_toml(&c, "options", big, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "more than");
}
