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
    ASSERT_MSG_HAS(err.msg, part);
    ASSERT_EQ(err.reason, REASON_INVALID_CONFIG);
    ASSERT_MSG_HAS(err.msg, other);
}

TEST(tables_as_containerd_writes_them_are_read)
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
    refused("[vn]\ncpus = 5\n", "key cpus belongs to section [vm]", "not to [vn]");
    refused("[vm]\ncpus = 500\n", "options:2: cpus = 500:", "must be 1–64");
    refused("[vm]\ncpus = -1\n", "options:2: cpus = -1:", "must be 1–");
    refused("image_dir = 'x'\n", "image_dir = x:", "absolute path");
}

TEST(unsupported_toml_syntax_is_refused_by_name)
{
    refused("a = {b = 1}\n", "options:1: unsupported", "an inline table");
    refused("vm.cpus = 1\n", "dotted key", "[vm]");
    refused("[[vm]]\n", "unsupported", "array of tables");
    refused("[vm.x]\n", "nested tables", "not supported");
    refused("cpus = 1.5\n", "options:1: invalid value", "quotes");
    refused("cpus = 2026-01-01\n", "cpus = 2026-01-01:", "must be 1–");
    refused("cpus = 0x10\n", "invalid value", "quotes");
    refused("rootfs = shared\n", "invalid value", "quotes");
    refused("rootfs = \"\"\"shared\"\"\"\n", "several lines", "unsupported");
    refused("rootfs = 'shared\n", "options:1: unterminated string", "");
    refused("rootfs = 'shared", "options:1: unterminated string", "");
    refused("rootfs = \"\\u0041\"\n", "unsupported escape", "");
    refused("rootfs = \"a\\nb\"\n", "several lines", "options:1");
    refused("allow_annotations = [1, 2]\n", "an array of values other than strings", "unsupported");
    refused("allow_annotations = ['a' 'b']\n", "missing comma", "");
    refused("allow_annotations = ['a',\n", "unterminated array", "");
    refused("cpus = 1 cpus = 2\n", "unexpected text after the value", "options:1");
    refused("cpus =\n", "missing value", "");
    refused("cpus\n", "must be [table] or key = value", "");
    refused("= 1\n", "must be [table] or key = value", "");
    refused("[vm\ncpus = 1\n", "missing ]", "");
}

TEST(the_size_is_bounded)
{
    AUTO(config_release) struct config c;
    struct err err = ERR_INIT;
    AUTO_FREE char *big = mem_zalloc(70000);

    config_init(&c);
    memset(big, '\n', 69999);
    ASSERT_FAIL(config_parse_toml(&c, "options", big, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "exceeds the limit");
}
