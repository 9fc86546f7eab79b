#include "base/err.h"
#include "base/sha256.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/config/volumes.h"
#include <sys/stat.h>

#define CSI "/k/pods/u/volumes/kubernetes.io~csi/pv1/mount"

static int parse(const char *text, struct volumes_record *ret, struct err *err)
{
    json_t *doc = NULL;

    return js_parse(text, strlen(text), VOLUMES_INFO_MAX, &doc, err) < 0 ||
                   volumes_read(doc, ret, err) < 0
               ? -1
               : 0;
}

TEST(katas_mount_info_is_read)
{
    AUTO(volumes_release) struct volumes_record v = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(parse("{\"volume-path\":\"/v\",\"volume-type\":\"block\",\"device\":\"/dev/x\","
                    "\"fstype\":\"ext4\",\"metadata\":{\"fsGroup\":\"0\",\"fsGroupChangePolicy\":"
                    "\"OnRootMismatch\"},\"options\":[\"noatime\",\"ro\"]}",
                    &v, &err),
              err);
    ASSERT_STR(v.device, "/dev/x");
    ASSERT_STR(v.fstype, "ext4");
    ASSERT_STR(v.group_policy, "OnRootMismatch");
    ASSERT_EQ(v.group, 0);
    ASSERT(v.read_only);
    ASSERT_STR(v.options[0], "noatime");
    ASSERT(!v.options[2]);
    volumes_release(&v);
    ASSERT_OK(parse("{\"volume-path\":\"/v\",\"device\":\"/d\",\"fstype\":\"xfs\"}", &v, &err),
              err);
    ASSERT(!v.read_only && !v.group_policy && !v.options[0]);
}

TEST(invalid_mount_infos_are_refused_by_name)
{
#define BASE "\"volume-path\":\"/v\",\"device\":\"/d\",\"fstype\":\"ext4\""
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "{", "string or '}' expected near end of file" },
        { "[]", "not a JSON object" },
        { "{}", "the volume path \"\" is not an absolute path" },
        { "{\"volume-path\":\"/v\"}", "device \"\" is not an absolute path" },
        { "{\"volume-path\":\"/a/../v\",\"device\":\"/d\"}", "the volume path \"/a/../v\"" },
        { "{\"volume-path\":\"/v\",\"device\":\"/d\",\"fstype\":\"nfs\"}",
          "unsupported file system type \"nfs\": must be ext4 or xfs" },
        { "{" BASE ",\"volume-type\":\"spdk\"}", "volume-type \"spdk\"" },
        { "{" BASE ",\"options\":[\"errors=panic\"]}",
          "unsupported mount option \"errors=panic\": ro, rw, noatime" },
        { "{" BASE ",\"options\":[7]}", "unsupported mount option \"\"" },
        { "{" BASE ",\"metadata\":{\"key\":\"x\"}}", "unsupported metadata \"key\"" },
        { "{" BASE ",\"metadata\":{\"fsGroup\":\"-1\"}}",
          "invalid fsGroup \"-1\": must be 0–4294967294" },
        { "{" BASE ",\"metadata\":{\"fsGroup\":\"4294967295\"}}", "must be 0–4294967294" },
        { "{" BASE ",\"metadata\":{\"fsGroup\":\"1\",\"fsGroupChangePolicy\":\"Often\"}}",
          "invalid fsGroupChangePolicy \"Often\": must be Always or OnRootMismatch" },
        { "{" BASE ",\"metadata\":{\"fsGroupChangePolicy\":\"Always\"}}", "needs fsGroup" },
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct volumes_record v = { 0 };
        struct err err = ERR_INIT;

        ASSERT_FAIL(parse(bad[i].text, &v, &err), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, bad[i].says);
    }

    AUTO_FREE char *path = mem_zalloc((64u << 10) + 1);
    struct volumes_record v = { 0 };
    struct err err = ERR_INIT;

    memset(path, '/', 1);
    memset(path + 1, 'a', (64u << 10) - 1);
    json_t *doc = json_pack("{ss}", "volume-path", path);
    ASSERT_FAIL(volumes_read(doc, &v, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "the volume path has 65536 bytes; the maximum is 4095");
}

static void put(const char *root, const char *path, const char *device)
{
    AUTO_FREE char *text =
        str_format("{\"volume-path\":\"%s\",\"device\":\"%s\",\"fstype\":\"ext4\"}", path, device);
    AUTO(volumes_release) struct volumes_record v = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(parse(text, &v, &err), err);
    ASSERT_OK(volumes_put(root, &v, &err), err);
    ASSERT_OK(volumes_put(root, &v, &err), err); /* again */
}

static const char *find(const char *root, const char *path, const char **ret_below)
{
    static char device[64];
    AUTO(volumes_release) struct volumes_record v = { 0 };
    struct err err = ERR_INIT;
    bool there = false;

    ASSERT_OK(volumes_find(root, path, &v, &there, ret_below, &err), err);
    snprintf(device, sizeof(device), "%s", there ? v.device : "none");
    return device;
}

TEST(a_volume_is_found_by_its_path_and_by_what_is_below_it)
{
    const char *below = "?";
    struct err err = ERR_INIT;
    TEMPDIR(p);

    ASSERT_STR(find(p.dir, "/k/v", &below), "none"); /* nor is there any record */
    put(p.dir, "/k/v", "/dev/a");
    put(p.dir, CSI, "/dev/b");
    ASSERT_STR(find(p.dir, "/k/v", &below), "/dev/a");
    ASSERT_STR(below, "");
    ASSERT_STR(find(p.dir, "/k/v/a/b", &below), "/dev/a");
    ASSERT_STR(below, "a/b");
    ASSERT_STR(find(p.dir, "/k/v2", &below), "none");
    ASSERT_STR(find(p.dir, "/k", &below), "none");
    ASSERT_STR(find(p.dir, "/k/pods/u/volume-subpaths/pv1/web/0", &below), "/dev/b");
    ASSERT(!below);
    ASSERT_STR(find(p.dir, "/k/pods/u/volume-subpaths/pv2/web/0", &below), "none");
    ASSERT_OK(volumes_drop(p.dir, "/k/v", &err), err);
    ASSERT_OK(volumes_drop(p.dir, "/k/v", &err), err);
    ASSERT_STR(find(p.dir, "/k/v", &below), "none");
}

static void count(void *arg, const struct volumes_record *v, const struct err *err)
{
    *(unsigned *)arg += err ? 100 : 1;
}

TEST(only_root_can_write_a_record_and_it_is_not_overwritten)
{
    AUTO(volumes_release) struct volumes_record v = { 0 };
    char hex[SHA256_HEX_SIZE];
    struct err err = ERR_INIT;
    const char *below;
    struct stat st;
    unsigned n = 0;
    bool there;
    TEMPDIR(p);

    put(p.dir, "/k/v", "/dev/a");
    ASSERT_OK(
        parse("{\"volume-path\":\"/k/v\",\"device\":\"/dev/b\",\"fstype\":\"ext4\"}", &v, &err),
        err);
    ASSERT_FAIL(volumes_put(p.dir, &v, &err), err, ERR_EXISTS);
    ASSERT_MSG_HAS(err.msg,
                   "volume /k/v is already recorded with device /dev/a and other settings");
    sha256_of("/k/v", 4, hex);
    AUTO_FREE char *file = str_format("%s/.volumes/%s", p.dir, hex);
    ASSERT_EQ(stat(file, &st), 0);
    ASSERT_EQ(st.st_mode & 0777, 0600);
    volumes_release(&v);

    ASSERT_EQ(chmod(file, 0620), 0);
    ASSERT_FAIL(volumes_find(p.dir, "/k/v", &v, &there, &below, &err), err, ERR_PERMISSION);
    ASSERT_MSG_HAS(err.msg, "must be a file that root owns and only root can write");
    ASSERT_OK(volumes_each(p.dir, count, &n, &err), err);
    ASSERT_EQ(n, 100);
    ASSERT_EQ(chmod(file, 0600), 0);
    ASSERT_EQ(file_write(file, "{]", 2, 0600), 0);
    ASSERT_FAIL(volumes_find(p.dir, "/k/v", &v, &there, &below, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, hex);
    put(p.dir, "/k/w", "/dev/a");
    n = 0;
    ASSERT_OK(volumes_each(p.dir, count, &n, &err), err);
    ASSERT_EQ(n, 101);
}
