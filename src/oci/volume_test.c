#include "base/err.h"
#include "harness/tap.h"
#include "oci/volume.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>

static const char *dir_of(const char *path)
{
    static char found[256];
    AUTO_FREE char *dir = NULL;

    snprintf(found, sizeof(found), "%s", volume_is_empty_dir(path, &dir) ? dir : "no");
    return found;
}

TEST(the_kubelets_paths_are_known)
{
    const char *v = "/k/pods/u/volumes/kubernetes.io~empty-dir/cache";

    ASSERT_STR(dir_of(v), v);
    ASSERT_STR(dir_of("/k/pods/u/volumes/kubernetes.io~empty-dir/cache/a/b"), v);
    ASSERT_STR(dir_of("/k/pods/u/volume-subpaths/cache/web/0"), v);
    ASSERT_STR(dir_of("/k/pods/u/volumes/kubernetes.io~configmap/cache"), "no");
    ASSERT_STR(dir_of("/k/pods/u/volumes/kubernetes.io~empty-dir/"), "no");
    ASSERT_STR(dir_of("/k/pods/u/volumes/kubernetes.io~empty-dir/cache/../../x"), "no");
    ASSERT_STR(dir_of("/k/pods/u/volume-subpaths/cache"), "no");
    ASSERT_STR(dir_of("/data"), "no");
}

TEST(a_subpath_of_a_csi_volume_is_known)
{
    AUTO_FREE char *dir = NULL;

    ASSERT(volume_is_csi_subpath("/k/pods/u/volume-subpaths/pv1/web/0", &dir));
    ASSERT_STR(dir, "/k/pods/u/volumes/kubernetes.io~csi/pv1/mount");
    ASSERT(!volume_is_csi_subpath("/k/pods/u/volume-subpaths/pv1", &dir));
    ASSERT(!volume_is_csi_subpath("/k/pods/../volume-subpaths/pv1/web/0", &dir));
    ASSERT(!volume_is_csi_subpath("/k/pods/u/volumes/x", &dir));
}

TEST(only_known_mount_options_count)
{
    unsigned long flags = 1;

    ASSERT_EQ(volume_option("rw", &flags), 0);
    ASSERT_EQ(flags, 0);
    ASSERT_EQ(volume_option("noexec", &flags), 0);
    ASSERT_EQ(flags, MS_NOEXEC);
    ASSERT_EQ(volume_option("discard", &flags), 1);
    ASSERT_EQ(volume_option("errors=panic", &flags), -1);
    ASSERT_EQ(volume_option("", &flags), -1);
}

TEST(what_the_host_writes_the_guest_reads)
{
    AUTO(json_decref) json_t *mount = json_pack("{s:s}", "source", "/k");
    AUTO(volume_release) struct volume v = { .tmpfs = true, .bytes = 1 << 20 }, got = { 0 };
    struct err err = ERR_INIT;
    bool there;

    v.at = str_dup("sandbox://empty-dir/x");
    volume_add_dir(&v, "", 02777, 0, 2000);
    volume_add_dir(&v, "a", 0750, 1, 2);
    volume_write(&v, "a", mount);
    ASSERT_STR(json_string_value(js_get(mount, "source")), "sandbox://empty-dir/x/a");
    ASSERT_OK(volume_read(mount, &got, &there, &err), err);
    ASSERT(there && got.tmpfs);
    ASSERT_STR(got.at, "sandbox://empty-dir/x");
    ASSERT_EQ(got.bytes, 1 << 20);
    ASSERT_EQ(got.n, 2);
    ASSERT_EQ(got.dirs[0].mode, 02777);
    ASSERT_EQ(got.dirs[0].gid, 2000);
    ASSERT_STR(got.dirs[1].path, "a");
    ASSERT_EQ(json_object_size(mount), 1); /* crun does not see it */
    volume_release(&got);
    ASSERT_OK(volume_read(mount, &got, &there, &err), err);
    ASSERT(!there);
}

TEST(invalid_volumes_are_refused)
{
    static const char *const bad[] = { "{\"lcow.volume\":1}", "{\"lcow.volume\":{\"At\":1}}",
                                       "{\"lcow.volume\":{\"Dirs\":[1]}}",
                                       "{\"lcow.volume\":{\"Dirs\":[{\"Mode\":-1}]}}" };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO(json_decref) json_t *mount = json_loads(bad[i], 0, NULL);
        struct volume v = { 0 };
        struct err err = ERR_INIT;
        bool there;

        ASSERT_FAIL(volume_read(mount, &v, &there, &err), err, ERR_INVALID);
    }
}
