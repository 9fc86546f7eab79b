/* Files, and invalid paths. */
#include "fixture/io_fixture.h"

#include <sys/un.h>

#define MIB (UINT64_C(1024) * 1024)

static void expect_text(const char *path, const char *want)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(path, 4096, &text, &len), 0);
    ASSERT_STR(text, want);
}

static void expect_refusal(struct fixture *r, const char *name, const char *why)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(io_open(r->ctx, r->ctx->loop, &r->spec, &r->io, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, name);
    ASSERT_MSG_HAS(err.msg, why);
}

TEST_FIBER(a_file_uri_creates_directories_and_appends)
{
    FIXTURE(r);
    AUTO_FREE char *path = str_format("%s/a b/c/log", r.temp.dir),
                   *uri = str_format("file://%s/a%%20b/c/log", r.temp.dir);
    struct err err = ERR_INIT;
    struct stat st;
    mode_t old = umask(0);

    r.spec.out = uri;
    for (int i = 0; i < 2; i++) {
        fixture_open(&r);
        fixture_attach(&r);
        fixture_put(&r, r.guest[1], "line\n");
        stream_free(TAKE_PTR(r.guest[1]));
        ASSERT_OK(io_drain(ctx, r.io, &err), err);
        io_free(TAKE_PTR(r.io));
    }
    umask(old);
    expect_text(path, "line\nline\n");
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0644);
    ASSERT_EQ(stat(tempdir_path(&r.temp, "a b/c"), &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0755);
}

TEST_FIBER(both_outputs_into_one_file_open_it_once)
{
    FIXTURE(r);
    AUTO_FREE char *uri = str_format("file://%s", r.paths[1]);
    struct stat st = { 0 };
    struct err err = ERR_INIT;

    r.spec.out = r.spec.err = uri;
    fixture_open(&r);
    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "out\n");
    stream_free(TAKE_PTR(r.guest[1]));
    while (stat(r.paths[1], &st) < 0 || st.st_size < 4)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    fixture_put(&r, r.guest[2], "err\n");
    stream_free(TAKE_PTR(r.guest[2]));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    expect_text(r.paths[1], "out\nerr\n");
}

TEST_FIBER(sixty_four_mebibytes_are_in_the_file_when_it_is_drained)
{
    FIXTURE(r);
    AUTO_FREE char *uri = str_format("file://%s", r.paths[1]);
    struct fixture_writer w;
    struct err err = ERR_INIT;

    r.spec.out = uri;
    fixture_open(&r);
    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 64 * MIB);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    fixture_expect_file(&r, r.paths[1], 64 * MIB);
}

TEST_FIBER(a_plain_path_to_a_file_is_appended_to)
{
    FIXTURE(r);
    struct err err = ERR_INIT;

    ASSERT_EQ(file_write(r.paths[1], "old\n", 4, 0600), 0);
    r.spec.out = r.spec.err = r.paths[1];
    fixture_open(&r);
    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "new\n");
    stream_free(TAKE_PTR(r.guest[1]));
    stream_free(TAKE_PTR(r.guest[2]));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    expect_text(r.paths[1], "old\nnew\n");
}

TEST_FIBER(input_may_be_a_file)
{
    FIXTURE(r);

    ASSERT_EQ(file_write(r.paths[0], "from a file", 11, 0600), 0);
    r.spec.in = r.paths[0];
    fixture_open(&r);
    fixture_attach(&r);
    fixture_get(&r, r.guest[0], "from a file");
    fixture_get_end(&r, r.guest[0]);
}

TEST_FIBER(unread_input_from_a_large_file_ends_with_io)
{
    FIXTURE(r);
    AUTO_FREE char *data = mem_zalloc(4 * MIB);

    ASSERT_EQ(file_write(r.paths[0], data, 4 * MIB, 0600), 0);
    r.spec.in = r.paths[0];
    fixture_open(&r);
    fixture_attach(&r);
    fixture_get(&r, r.guest[0], "");
}

/* The rest is in a pipe, and is written although io is freed. */
TEST_FIBER(a_file_gets_output_that_was_read_before_io_was_freed)
{
    FIXTURE(r);
    AUTO_FREE char *uri = str_format("file://%s", r.paths[1]);
    struct fixture_writer w;
    struct err err = ERR_INIT;
    struct stat st = { 0 };

    r.spec.out = uri;
    fixture_open(&r);
    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 60000);
    while (r.io->relays[1].running)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    io_free(TAKE_PTR(r.io));
    while (stat(r.paths[1], &st) < 0 || st.st_size < 60000)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    fixture_expect_file(&r, r.paths[1], 60000);
}

/* A file that cannot grow behaves like a full disk. */
TEST_FIBER(a_full_disk_does_not_stop_the_process)
{
    FIXTURE(r);
    AUTO_FREE char *uri = str_format("file://%s", r.paths[1]);
    struct fixture_writer w;
    struct err err = ERR_INIT;

    if (access("/dev/full", W_OK) < 0)
        tap_skip("no /dev/full here");
    r.spec.out = uri;
    fixture_open(&r);

    /* Replaces io's file by one that is always full. */
    char link[256], path[64];
    bool found = false;

    for (int fd = 3; fd < 256 && !found; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);

        ssize_t n = readlink(path, link, sizeof(link) - 1);

        if (n > 0 && (size_t)n == strlen(r.paths[1]) && memcmp(link, r.paths[1], (size_t)n) == 0) {
            AUTO_FD int full = open("/dev/full", O_WRONLY | O_CLOEXEC);

            ASSERT(dup3(full, fd, O_CLOEXEC) == fd);
            found = true;
        }
    }
    ASSERT(found);
    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 2 * MIB);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    ASSERT_EQ(w.written, 2 * MIB);
    ASSERT_EQ(io_lost_bytes(r.io), 2 * MIB);
}

TEST_FIBER(a_directory_is_refused)
{
    FIXTURE(r);

    ASSERT_EQ(mkdir(r.paths[1], 0700), 0);
    r.spec.out = r.paths[1];
    expect_refusal(&r, "/out", "is neither a FIFO nor a regular file");
}

TEST_FIBER(a_socket_is_refused)
{
    FIXTURE(r);
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    AUTO_FD int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", r.paths[2]);
    ASSERT_EQ(bind(s, (struct sockaddr *)&a, sizeof(a)), 0);
    r.spec.err = r.paths[2];
    expect_refusal(&r, "stderr", "is neither a FIFO nor a regular file");
    fd_close(TAKE_FD(s)); /* before the fixture counts */
}

TEST_FIBER(a_device_is_refused_without_being_opened)
{
    FIXTURE(r);

    r.spec.in = "/dev/null";
    expect_refusal(&r, "stdin: /dev/null", "is neither a FIFO nor a regular file");
}

TEST_FIBER(a_loop_of_symbolic_links_is_refused)
{
    FIXTURE(r);

    ASSERT_EQ(symlink(r.paths[2], r.paths[1]), 0);
    ASSERT_EQ(symlink(r.paths[1], r.paths[2]), 0);
    r.spec.out = r.paths[1];
    expect_refusal(&r, "/out", "symbolic links");
}

TEST_FIBER(a_name_of_four_kibibytes_is_refused_with_the_reason)
{
    FIXTURE(r);
    char name[4200];

    memset(name, 'n', sizeof(name));
    name[0] = '/';
    name[sizeof(name) - 1] = '\0';
    r.spec.out = name;
    expect_refusal(&r, "/nnnn", "File name too long");

    AUTO_FREE char *uri = str_format("file://%s", name);

    r.spec.out = uri;
    expect_refusal(&r, "/nnnn", "File name too long");
}

TEST_FIBER(a_missing_path_is_refused)
{
    FIXTURE(r);

    r.spec.out = r.paths[1];
    expect_refusal(&r, "/out", "No such file");
}

TEST_FIBER(descriptors_opened_before_a_refusal_are_closed)
{
    FIXTURE(r);

    fixture_fifos(&r, 3);
    r.spec.err = r.paths[2]; /* not there */
    expect_refusal(&r, "stderr", "No such file");
    fixture_settle(&r);
    ASSERT_EQ(open(r.paths[1], O_WRONLY | O_NONBLOCK), -1);
}

TEST_FIBER(a_fifo_uri_needs_a_fifo_and_a_file_uri_a_file)
{
    FIXTURE(r);
    AUTO_FREE char *file = NULL, *fifo = NULL;

    fixture_fifos(&r, 2);
    ASSERT_EQ(file_write(r.paths[2], "", 0, 0600), 0);
    r.spec.out = file = str_format("file://%s", r.paths[1]);
    expect_refusal(&r, "/out", "is not a regular file");
    r.spec.out = fifo = str_format("fifo://%s", r.paths[2]);
    expect_refusal(&r, "/err", "is not a FIFO");
}

TEST_FIBER(a_fifo_uri_is_a_fifo)
{
    FIXTURE(r);
    AUTO_FREE char *fifo = str_format("fifo://%s", r.paths[1]);

    fixture_fifos(&r, 2);
    r.spec.out = fifo;
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);

    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "x");
    fixture_get(&r, out, "x");
}

TEST_FIBER(a_parent_that_is_a_file_is_refused)
{
    FIXTURE(r);
    AUTO_FREE char *uri = str_format("file://%s/log", r.paths[1]);

    ASSERT_EQ(file_write(r.paths[1], "", 0, 0600), 0);
    r.spec.out = uri;
    expect_refusal(&r, "/out", "Not a directory");
}
