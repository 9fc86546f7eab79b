#include "base/fd.h"
#include "base/str.h"
#include "guest/bridge/hotplug.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <stdlib.h>
#include <string.h>

static void put(const char *root, const char *name, const char *value)
{
    AUTO_FREE char *path = str_format("%s/%s", root, name);

    ASSERT_EQ(file_write(path, value, strlen(value), 0644), 0);
}

static char *get(const char *root, const char *name)
{
    AUTO_FREE char *path = str_format("%s/%s", root, name);
    char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(path, 4096, &text, &len), 0);
    return text;
}

TEST(what_is_low_is_raised_and_nothing_is_lowered)
{
    TEMPDIR(p);
    const char *root = p.dir;
    AUTO_FREE char *kernel = str_format("%s/kernel", root), *ipv4 = str_format("%s/net/ipv4", root),
                   *fs = str_format("%s/fs/epoll", root);
    ASSERT_EQ(dir_make(kernel, 0755), 0);
    ASSERT_EQ(dir_make(ipv4, 0755), 0);
    ASSERT_EQ(dir_make(fs, 0755), 0);
    put(root, "kernel/threads-max", "832\n");
    put(root, "fs/file-max", "9223372036854775807\n");
    put(root, "fs/epoll/max_user_watches", "1800000\n");
    put(root, "net/ipv4/tcp_mem", "1113\t1484\t2226\n");
    put(root, "net/ipv4/tcp_rmem", "4096\t131072\t800000\n");
    limits_raise(root, UINT64_C(8) << 30);

    AUTO_FREE char *threads = get(root, "kernel/threads-max"), *files = get(root, "fs/file-max"),
                   *watches = get(root, "fs/epoll/max_user_watches"),
                   *mem = get(root, "net/ipv4/tcp_mem"), *rmem = get(root, "net/ipv4/tcp_rmem");
    ASSERT_STR(threads, "65536");
    ASSERT_STR(files, "9223372036854775807\n");
    ASSERT_STR(watches, "67108864"); /* 8 GiB of them */
    ASSERT_STR(mem, "98304 131072 196608");
    ASSERT_STR(rmem, "4096 131072 6291456");
}
