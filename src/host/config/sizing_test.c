#include "base/str.h"
#include "harness/tap.h"
#include "host/config/config.h"
#include "host/config/sizing.h"
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
    struct annotations o;
    struct sizing size;
    struct err err = ERR_INIT;

    config_init(&c);
    free(c.allow_annotations);
    c.allow_annotations = str_dup("io.lcow.*");
    c.max_memory_mib = 4096;
    c.max_cpus = 8;
    ASSERT_OK(annotations_read(&c, s, &o, &err), err);
    ASSERT_OK(sizing_of(&c, s, &o, &size, &err), err);
    ASSERT_EQ(size.memory_mib, mib);
    ASSERT_EQ(size.cpus, cpus);
}

TEST(without_limits_the_configuration_decides)
{
    expect("", "", 256, 1);
    expect("\"memory\":{\"limit\":-1},\"cpu\":{\"quota\":-1,\"period\":100000}", "", 256, 1);
}

TEST(the_size_is_the_limits_plus_the_overhead)
{
    expect("\"memory\":{\"limit\":536870912}", "", 512 + 128, 1);
    expect("\"memory\":{\"limit\":536870913}", "", 513 + 128, 1);
    expect("\"memory\":{\"limit\":4096}", "", 1 + 128, 1);
    expect("\"cpu\":{\"quota\":150000,\"period\":100000}", "", 256, 2);
    expect("\"cpu\":{\"quota\":300000}", "", 256, 3);
    expect("\"cpu\":{\"quota\":1}", "", 256, 1);
}

TEST(the_size_does_not_exceed_the_maximum)
{
    expect("\"memory\":{\"limit\":9223372036854775807},"
           "\"cpu\":{\"quota\":9223372036854775807,\"period\":1}",
           "", 4096, 8);
}

TEST(allowed_annotations_override_limits)
{
    AUTO(config_release) struct config c;
    AUTO(spec_free)
    struct spec *s = spec_with("", "\"io.lcow.memory_mib\":\"512\",\"io.lcow.rootfs\":\"shared\"");
    struct annotations o;
    struct err err = ERR_INIT;

    expect("\"memory\":{\"limit\":536870912}",
           "\"io.lcow.memory_mib\":\"1024\",\"io.lcow.cpus\":\"4\"", 1024, 4);
    config_init(&c);
    free(c.allow_annotations);
    c.allow_annotations = str_dup("io.lcow.memory_mib io.lcow.rootfs");
    ASSERT_OK(annotations_read(&c, s, &o, &err), err);
    ASSERT_EQ(o.memory_mib, 512);
    ASSERT_EQ(o.rootfs, CONFIG_ROOTFS_SHARED);
    free(c.allow_annotations);
    c.allow_annotations = str_dup("io.lcow.memory_mi io.lcow.memory_mibs, io.lcow.cpus");
    ASSERT_OK(annotations_read(&c, s, &o, &err), err);
    ASSERT_EQ(o.memory_mib, 0);
    ASSERT_EQ(o.rootfs, CONFIG_ROOTFS_AUTO);
}

static struct sizing_all all_of(const struct sizing_pod *pods, size_t n, uint32_t least_mib)
{
    AUTO(config_release) struct config c;
    struct sizing_all all;

    config_init(&c);
    c.memory_mib = 256;
    c.overhead_mib = 128;
    c.cpus = 1;
    c.max_cpus = 8;
    sizing_of_pods(&c, &(struct sizing){ .memory_mib = least_mib }, pods, n, &all);
    return all;
}

TEST(the_size_is_the_sum_of_all_limits_in_the_vm)
{
    const uint64_t mib = 1 << 20;
    struct sizing_pod pods[2] = {
        { .own = { .memory_bytes = 512 * mib, .cpu_quota = 150000, .cpu_period = 100000 } },
        { .own = { .memory_bytes = 256 * mib, .cpu_quota = 50000 } },
    };
    struct sizing_all one = all_of(pods, 1, 0), two = all_of(pods, 2, 0);

    ASSERT_EQ(one.memory_mib, 640);
    ASSERT_EQ(one.cpus, 2);
    ASSERT_EQ(one.cpu_quota, 150000);
    ASSERT_EQ(two.memory_mib, 896);
    ASSERT_EQ(two.cpus, 2);
    ASSERT_EQ(two.cpu_quota, 200000);
    ASSERT_EQ(all_of(pods, 1, 1024).memory_mib, 1024);
}

TEST(limits_of_containers_count_if_they_exceed_the_pods)
{
    const struct spec_limits half = { .memory_bytes = 300 << 20, .cpu_quota = 250000 };
    const struct spec_limits open = { 0 };
    struct sizing_pod pod = { .own = { .memory_bytes = 100 << 20 } };

    ASSERT_EQ(all_of(&pod, 1, 0).memory_mib, 228);
    sizing_add(&pod, &half);
    ASSERT_EQ(all_of(&pod, 1, 0).memory_mib, 428);
    ASSERT_EQ(all_of(&pod, 1, 0).cpus, 3);
    ASSERT_EQ(all_of(&pod, 1, 0).cpu_quota, 0); /* the pod itself has none */
    sizing_add(&pod, &open);
    ASSERT_EQ(all_of(&pod, 1, 0).memory_mib, 428);
}

TEST(without_limits_the_vm_keeps_its_first_size)
{
    const struct spec_limits small = { .memory_bytes = 10 << 20, .cpu_quota = 1000 };
    struct sizing_pod pod = { .memory_bytes = 0 };

    ASSERT_EQ(all_of(&pod, 1, 0).memory_mib, 256);
    ASSERT_EQ(all_of(&pod, 1, 0).cpus, 1);
    sizing_add(&pod, &small); /* all of its containers are limited */
    ASSERT_EQ(all_of(&pod, 1, 0).memory_mib, 138);
    pod.memory_open = true;
    ASSERT_EQ(all_of(&pod, 1, 0).memory_mib, 256);
}

TEST(absurd_limits_do_not_wrap_around)
{
    struct sizing_pod pods[2] = { { .own = { .memory_bytes = UINT64_MAX, .cpu_quota = INT64_MAX } },
                                  { .own = { .memory_bytes = UINT64_MAX, .cpu_quota = 1 } } };

    ASSERT(all_of(pods, 2, 0).memory_mib > 1 << 30);
    ASSERT_EQ(all_of(pods, 2, 0).cpus, 8);
}
