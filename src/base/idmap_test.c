#include "base/err.h"
#include "base/fd.h"
#include "base/idmap.h"
#include "base/str.h"
#include "harness/tap.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void refused(const char *map, const char *message)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(idmap_check(map, "uidMappings", &err), err, ERR_INVALID);
    ASSERT_MSG(err.msg, message);
}

TEST(each_error_of_a_map_is_named)
{
    struct sbuf many = { 0 };
    struct err err = ERR_INIT;

    ASSERT_EQ(idmap_check("0:100000:65536,65536:1000:1", "uidMappings", &err), 0);
    ASSERT_EQ(idmap_check("0:100000:4294867295", "uidMappings", &err), 0);
    refused("", "uidMappings is empty");
    refused("0:100000:0", "uidMappings[0] has size 0");
    refused("0:100000:65536,65535:300000:1", "uidMappings[1] overlaps uidMappings[0]");
    refused("0:100000:65536,65536:165535:1", "uidMappings[1] overlaps uidMappings[0]");
    refused("0:4294967000:1000", "uidMappings[0]: its ids exceed 4294967294");
    refused("4294967000:0:1000", "uidMappings[0]: its ids exceed 4294967294");
    refused("0:1", "uidMappings[0] is not CONTAINER:HOST:SIZE");
    refused("0:1:2:3", "uidMappings[0] is not CONTAINER:HOST:SIZE");
    refused("0:-1:2", "uidMappings[0] is not CONTAINER:HOST:SIZE");
    refused("0:1:4294967296", "uidMappings[0] is not CONTAINER:HOST:SIZE");
    for (unsigned i = 0; i < IDMAP_LINES_MAX + 1; i++)
        sbuf_addf(&many, "%s%u:%u:1", i ? "," : "", i, 1000 + i);
    refused(many.data, "uidMappings has more than 339 lines");
    many.len = 0;
    for (unsigned i = 0; i < 150; i++)
        sbuf_addf(&many, "%s%u:%u:1000000", i ? "," : "", 1000000000 + i * 1000000,
                  2000000000 + i * 1000000);
    refused(many.data, "uidMappings has more than 4062 bytes of text");
    sbuf_release(&many);
}

TEST(ids_are_looked_up)
{
    uint32_t id = 7;

    ASSERT(idmap_outside("0:100000:10,10:5:1", 0, &id));
    ASSERT_EQ(id, 100000);
    ASSERT(idmap_outside("0:100000:10,10:5:1", 10, &id));
    ASSERT_EQ(id, 5);
    ASSERT(!idmap_outside("0:100000:10,10:5:1", 11, &id));
    ASSERT(!idmap_outside(NULL, 0, &id));
}

TEST(a_line_for_the_users_of_vms_never_overlaps)
{
    struct idmap m = { .uid = (char *)"0:100000:65536", .gid = (char *)"0:1:4200000000" }, with;
    struct err err = ERR_INIT;

    ASSERT_FAIL(idmap_with(&m, 2000000000, 4096, &with, &err), err, ERR_INVALID);
    ASSERT_MSG(err.msg, "the mapping 0:1:4200000000 overlaps the user ids of VMs, "
                        "2000000000–2000004095: change vm_uid_base");
    m.gid = (char *)"0:0:1999999999,1999999999:2000004096:2294963199";
    ASSERT_FAIL(idmap_with(&m, 2000000000, 4096, &with, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "leaves fewer than 4096 ids for VMs");
    m.gid = (char *)"3999999999:100000:65536";
    ASSERT_EQ(idmap_with(&m, 2000000000, 4096, &with, &err), 0);
    ASSERT_STR(with.uid, "0:100000:65536,4000000000:2000000000:4096");
    ASSERT_EQ(idmap_check(with.gid, "gidMappings", &err), 0);
    ASSERT(!idmap_eq(&m, &with));
    ASSERT(idmap_eq(&with, &with));
    idmap_release(&with);
}

TEST(a_mount_shows_mapped_ids)
{
    struct idmap m = { .uid = (char *)"0:100000:65536", .gid = (char *)"0:200000:65536" };
    char dir[] = "/var/tmp/idmap-XXXXXX";
    struct err err = ERR_INIT;
    struct stat st;

    if (geteuid() != 0)
        tap_skip("needs root");
    ASSERT(mkdtemp(dir));
    AUTO_FD int tree = open_tree(AT_FDCWD, dir, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    AUTO_FD int userns = idmap_userns(&m, &err);
    ASSERT(userns >= 0);
    if (idmap_mount(tree, userns, false, dir, &err) == 0) {
        ASSERT_EQ(fstat(tree, &st), 0);
        ASSERT_EQ(st.st_uid, 100000);
        ASSERT_EQ(st.st_gid, 200000);
        err_clear(&err);
        ASSERT_FAIL(idmap_mount(tree, userns, false, dir, &err), err, ERR_UNIMPLEMENTED);
        ASSERT_EQ(err.reason, REASON_IDMAP_UNSUPPORTED);
    } else {
        ASSERT_EQ(err.code, ERR_UNIMPLEMENTED);
    }
    (void)rmdir(dir);
}
