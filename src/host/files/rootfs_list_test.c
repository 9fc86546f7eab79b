/* Lists of mounts as containerd 2.2 gives them. */
#include "base/str.h"
#include "fixture/rootfs_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/rootfs.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct typed {
    char *top, *bottom;
    struct rootfs_mount m[4];
    const char *overlay[8];
};

static const char *const made[] = { "X-containerd.mkfs.fs=ext4", "X-containerd.mkfs.size=1048576",
                                    "rw", "loop", NULL };
static const char *const layer_options[] = { "ro", "loop", NULL };

/* As its erofs snapshotter gives it. */
static void typed_init(struct typed *t, struct tempdir *p, const char *lower)
{
    *t = (struct typed){ .top = str_format("%s/top", p->dir),
                         .bottom = str_format("%s/bottom", p->dir) };
    t->m[0] = (struct rootfs_mount){ "mkfs/ext4", "/none/rwlayer.img", made };
    t->m[1] = (struct rootfs_mount){ "erofs", t->top, layer_options };
    t->m[2] = (struct rootfs_mount){ "erofs", t->bottom, layer_options };
    t->m[3] = (struct rootfs_mount){ "format/mkdir/overlay", "overlay", t->overlay };
    t->overlay[0] = "X-containerd.mkdir.path={{ mount 0 }}/upper:0755";
    t->overlay[1] = "workdir={{ mount 0 }}/work";
    t->overlay[2] = "upperdir={{ mount 0 }}/upper";
    t->overlay[3] = lower;
}

static void typed_release_auto(struct typed *t)
{
    free(t->top);
    free(t->bottom);
}

TEST_FIBER(a_typed_list_is_its_images_in_the_order_of_the_overlay)
{
    static const struct {
        const char *lower;
        bool reversed;
    } cases[] = {
        { "lowerdir={{ overlay 1 2 }}", false },
        { "lowerdir={{overlay 2 1}}", true },
        { "lowerdir={{ mount 1 }}:{{ mount 2 }}", false },
    };
    TEMPDIR(p);
    struct err err = ERR_INIT;
    struct rootfs fs = { .tree = -1 };

    fixture_image(&p, "top");
    fixture_image(&p, "bottom");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO(typed_release) struct typed t;

        typed_init(&t, &p, cases[i].lower);
        ASSERT_OK(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err);
        ASSERT_EQ(fs.n_disks, 2);
        ASSERT_STR(fs.disks[cases[i].reversed].path, t.top);
        ASSERT_STR(fs.disks[!cases[i].reversed].path, t.bottom);
        ASSERT_STR(fs.disks[0].filesystem, "erofs");
        ASSERT(!fs.disks[0].writable && fixture_mode_of(&fs, 0) == O_RDONLY);
        rootfs_release(&fs);
        ASSERT_OK(rootfs_open(ctx, t.m, 4, NULL, ROOTFS_KEPT, NULL, &fs, &err), err);
        ASSERT(fs.n_disks == 2 && !fs.tree_writable);
        rootfs_release(&fs);
        ASSERT_EQ(rootfs_open(ctx, t.m, 4, NULL, ROOTFS_WRITABLE, NULL, &fs, &err), -1);
        ASSERT_MSG_HAS(err.msg, "rootfs = shared");
        err_clear(&err);
    }
}

TEST_FIBER(a_typed_list_with_loop_devices_and_a_directory_to_write_to)
{
    TEMPDIR(p);
    struct err err = ERR_INIT;
    struct rootfs fs = { .tree = -1 };

    fixture_image(&p, "top");
    ASSERT_EQ(mkdir(tempdir_path(&p, "up"), 0755), 0);
    AUTO_FREE char *top = str_format("%s/top", p.dir);
    AUTO_FREE char *upper = str_format("upperdir=%s/up", p.dir);
    const char *const overlay[] = { upper, "workdir=/x", "lowerdir={{ mount 1 }}", "index=off",
                                    NULL };
    const struct rootfs_mount m[] = { { "loop", top, NULL },
                                      { "format/ext4", "{{ mount 0 }}", layer_options },
                                      { "format/overlay", "overlay", overlay } };

    ASSERT_OK(rootfs_open(ctx, m, 3, NULL, false, NULL, &fs, &err), err);
    ASSERT_EQ(fs.n_disks, 1);
    ASSERT_STR(fs.disks[0].path, top);
    ASSERT_STR(fs.disks[0].filesystem, "ext4");
    rootfs_release(&fs);
    ASSERT_EQ(file_write(tempdir_path(&p, "up/x"), "", 0, 0644), 0);
    ASSERT_FAIL(rootfs_open(ctx, m, 3, NULL, false, NULL, &fs, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "/up");
}

TEST_FIBER(a_typed_list_that_makes_no_sense_is_refused)
{
    static const char *const lowers[] = {
        "lowerdir={{ overlay 1 3 }}", /* itself */
        "lowerdir={{ overlay 0 2 }}", /* what is written to */
        "lowerdir={{ overlay 1 99999999999999999999 }}",
        "lowerdir={{ overlay 1 }}",
        "lowerdir={{ mount -1 }}",
        "lowerdir={{ target 1 }}",
        "lowerdir={{ mount 1",
        "lowerdir={{ mount 1 }}/usr",
        "lowerdir={{ mount 1 }}:",
        "lowerdir=#1x",
        "lowerdir=/etc",
        "lowerdir=",
        "X-containerd.mkdir.path=/x",
        "xino=on",
    };
    static const char *const types[] = { "mkfs/", "/erofs", "evil/erofs", "bind", "overlay", "" };
    static const char *const odd[] = { "device=/x", "X-containerd.dmverity=x",
                                       "X-containerd.mkfs.size=1" };
    TEMPDIR(p);
    struct err err = ERR_INIT;
    struct rootfs fs = { .tree = -1 };

    fixture_image(&p, "top");
    fixture_image(&p, "bottom");
    for (size_t i = 0; i < ARRAY_LEN(lowers); i++) {
        AUTO(typed_release) struct typed t;

        typed_init(&t, &p, lowers[i]);
        if (rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err) == 0)
            tap_fail(__FILE__, __LINE__, "%s was taken", lowers[i]);
        ASSERT_EQ(err.code, ERR_INVALID);
        err_clear(&err);
    }
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        AUTO(typed_release) struct typed t;

        typed_init(&t, &p, "lowerdir={{ overlay 1 2 }}");
        t.m[1].type = types[i];
        ASSERT_FAIL(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    }
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        const char *const options[] = { "ro", odd[i], NULL };
        AUTO(typed_release) struct typed t;

        typed_init(&t, &p, "lowerdir={{ overlay 1 2 }}");
        t.m[1].options = options;
        ASSERT_FAIL(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
        ASSERT_HAS(err.msg, odd[i]);
    }
    AUTO(typed_release) struct typed t;
    typed_init(&t, &p, "lowerdir={{ overlay 1 2 }}");
    t.m[2].type = "format/erofs";
    t.m[2].source = ""; /* which is text, too */
    ASSERT_FAIL(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "is not an absolute path");
    typed_release_auto(&t);
    typed_init(&t, &p, "lowerdir={{ overlay 1 2 }}");
    t.m[0] = (struct rootfs_mount){ "ext4", "/none/rwlayer.img", made + 2 }; /* may hold files */
    ASSERT_FAIL(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "/none/rwlayer.img");
    t.m[0] = (struct rootfs_mount){ "mkfs/ext4", "/none/rwlayer.img", made };
    ASSERT_FAIL(rootfs_open(ctx, t.m, 1, NULL, false, NULL, &fs, &err), err,
                ERR_INVALID); /* mkfs only */
    ASSERT_FAIL(rootfs_open(ctx, t.m, 3, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "does not end in an overlay");
    ASSERT_EQ(err.reason, REASON_SNAPSHOTTER_UNSUPPORTED);
    ASSERT_EQ(unlink(t.bottom), 0);
    ASSERT_FAIL(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "layer 2 of 2 from the top");
}

static char *repeated(const char *begin, const char *word, size_t n)
{
    struct sbuf b = { 0 };

    sbuf_adds(&b, begin);
    while (n-- > 0)
        sbuf_adds(&b, word);
    return sbuf_take(&b);
}

/* As much as a request holds: a million times a million would be asked of the shim. */
TEST_FIBER(a_typed_list_cannot_be_blown_up)
{
    TEMPDIR(p);
    struct err err = ERR_INIT;
    struct rootfs fs = { .tree = -1 };
    AUTO_FREE char *many = repeated("lowerdir=", "{{source 1}}", 5000);
    AUTO_FREE char *size = repeated("/", "x", 60000), *huge = repeated("/", "x", 3 << 20);
    AUTO(typed_release) struct typed t;

    typed_init(&t, &p, many);
    t.m[1].source = size;
    ASSERT_FAIL(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "its templates yield more than");
    t.m[1].source = huge;
    ASSERT_FAIL(rootfs_open(ctx, t.m, 4, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "3145729 bytes of text");

    static const struct rootfs_mount mounts[300] = { { "erofs", "/x", NULL } };
    ASSERT_FAIL(rootfs_open(ctx, mounts, 300, NULL, false, NULL, &fs, &err), err, ERR_EXHAUSTED);
    ASSERT_MSG_HAS(err.msg, "a list of 300 mounts");
}
