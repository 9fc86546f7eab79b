#include "base/str.h"
#include "harness/tap.h"
#include "host/control/config.h"
#include "host/control/sizing.h"
#include "oci/spec.h"
#include <stdlib.h>
#include <string.h>

static struct spec *spec_with(const char *resources, const char *annotations)
{
    AUTO_FREE char *text = str_format("{\"process\":{\"args\":[\"x\"],\"cwd\":\"/\"},\"root\":{},"
                                      "\"linux\":{\"resources\":{%s}},\"annotations\":{%s}}",
                                      resources, annotations);
    struct spec *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_parse(text, strlen(text), &s, &err), err);
    return s;
}

static void expect(const char *resources, const char *annotations, uint32_t mib, uint32_t cpus)
{
    AUTO(config_release) struct config c;
    AUTO(spec_free) struct spec *s = spec_with(resources, annotations);
    struct options o;
    struct sizing size;
    struct err err = ERR_INIT;

    config_init(&c);
    c.max_memory_mib = 4096;
    c.max_cpus = 8;
    ASSERT_OK(options_read(&c, s, &o, &err), err);
    ASSERT_OK(sizing_of(&c, s, &o, &size, &err), err);
    ASSERT_EQ(size.memory_mib, mib);
    ASSERT_EQ(size.cpus, cpus);
}

TEST(without_limits_the_configuration_decides)
{
    expect("", "", 256, 1);
    expect("\"memory\":{\"limit\":-1},\"cpu\":{\"quota\":-1,\"period\":100000}", "", 256, 1);
}

TEST(limits_and_overhead_make_the_size)
{
    expect("\"memory\":{\"limit\":536870912}", "", 512 + 128, 1);
    expect("\"memory\":{\"limit\":536870913}", "", 513 + 128, 1);
    expect("\"memory\":{\"limit\":4096}", "", 1 + 128, 1);
    expect("\"cpu\":{\"quota\":150000,\"period\":100000}", "", 256, 2);
    expect("\"cpu\":{\"quota\":300000}", "", 256, 3);
    expect("\"cpu\":{\"quota\":1}", "", 256, 1);
}

TEST(nothing_is_larger_than_the_maximum)
{
    expect("\"memory\":{\"limit\":9223372036854775807},"
           "\"cpu\":{\"quota\":9223372036854775807,\"period\":1}",
           "", 4096, 8);
}

TEST(annotations_win_if_they_are_allowed)
{
    AUTO(config_release) struct config c;
    AUTO(spec_free)
    struct spec *s = spec_with("", "\"io.lcow.memory_mib\":\"512\",\"io.lcow.rootfs\":\"shared\"");
    struct options o;
    struct err err = ERR_INIT;

    expect("\"memory\":{\"limit\":536870912}",
           "\"io.lcow.memory_mib\":\"1024\",\"io.lcow.cpus\":\"4\"", 1024, 4);
    config_init(&c);
    ASSERT_OK(options_read(&c, s, &o, &err), err);
    ASSERT_EQ(o.memory_mib, 512);
    ASSERT(o.shared_rootfs);
    free(c.allow_annotations);
    c.allow_annotations = str_dup("io.lcow.memory_mi io.lcow.memory_mibs, io.lcow.cpus");
    ASSERT_OK(options_read(&c, s, &o, &err), err);
    ASSERT_EQ(o.memory_mib, 0);
    ASSERT(!o.shared_rootfs);
}
