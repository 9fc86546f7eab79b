#include "base/fd.h"
#include "base/str.h"
#include "guest/bridge/hotplug.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <stdlib.h>
#include <string.h>

TEST(events_of_vcpus_and_memory_are_distinguished_from_the_rest)
{
    ASSERT_EQ(hotplug_read("add@/devices/system/cpu/cpu3"), HOTPLUG_CPU);
    ASSERT_EQ(hotplug_read("online@/devices/system/memory/memory33"), HOTPLUG_MEMORY);
    ASSERT_EQ(hotplug_read("remove@/devices/system/memory/memory33"), HOTPLUG_MEMORY);
    ASSERT_EQ(hotplug_read("remove@/devices/system/cpu/cpu3"), HOTPLUG_NOTHING);
    ASSERT_EQ(hotplug_read("add@/devices/system/cpu/cpufreq"), HOTPLUG_CPU); /* one look too many */
    ASSERT_EQ(hotplug_read("add@/devices/pci0000:00/0000:00:03.0"), HOTPLUG_NOTHING);
    ASSERT_EQ(hotplug_read(""), HOTPLUG_NOTHING);
    ASSERT_EQ(hotplug_read("libudev"), HOTPLUG_NOTHING);
}

static void put(const char *root, const char *name, const char *value)
{
    AUTO_FREE char *dir = str_format("%s/%s", root, name), *path = str_format("%s/online", dir);

    ASSERT_EQ(dir_make(dir, 0755), 0);
    if (value)
        ASSERT_EQ(file_write(path, value, strlen(value), 0644), 0);
}

static char first(const char *root, const char *name)
{
    AUTO_FREE char *path = str_format("%s/%s/online", root, name), *text = NULL;
    size_t len;

    return file_read_all(path, 16, &text, &len) < 0 ? '-' : text[0];
}

TEST(a_vcpu_that_is_offline_is_brought_online)
{
    TEMPDIR(p);
    const char *root = p.dir;

    put(root, "cpu0", NULL);
    put(root, "cpu1", "1\n");
    put(root, "cpu2", "0\n");
    put(root, "cpufreq", "0\n");
    ASSERT_EQ(hotplug_online(root), 1);
    ASSERT_EQ(first(root, "cpu2"), '1');
    ASSERT_EQ(first(root, "cpufreq"), '0');
    ASSERT_EQ(hotplug_online(root), 0);
}
