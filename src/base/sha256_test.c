#include "base/fd.h"
#include "base/sha256.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(const char *text, const char *want)
{
    char hex[SHA256_HEX_SIZE];

    sha256_of(text, strlen(text), hex);
    ASSERT_STR(hex, want);
}

TEST(the_vectors_of_the_standard_hold)
{
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(a_million_bytes_in_uneven_pieces)
{
    struct sha256 s;
    char hex[SHA256_HEX_SIZE], piece[997];
    size_t left = 1000000;

    memset(piece, 'a', sizeof(piece));
    sha256_init(&s);
    for (size_t n = 1; left > 0; n = n % 991 + 7) {
        size_t now = n < left ? n : left;

        sha256_add(&s, piece, now);
        left -= now;
    }
    sha256_hex(&s, hex);
    ASSERT_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(padding_is_right_around_the_block_size)
{
    char text[130], one[SHA256_HEX_SIZE], two[SHA256_HEX_SIZE];

    memset(text, 'x', sizeof(text));
    for (size_t len = 50; len < sizeof(text); len++) {
        struct sha256 a, b;

        sha256_init(&a);
        sha256_init(&b);
        sha256_add(&a, text, len);
        for (size_t i = 0; i < len; i++)
            sha256_add(&b, text + i, 1);
        sha256_hex(&a, one);
        sha256_hex(&b, two);
        ASSERT_STR(one, two);
    }
    check("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
          "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
}

TEST(files_are_read_whole)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "file");
    char hex[SHA256_HEX_SIZE];

    ASSERT_EQ(file_write(path, "abc", 3, 0600), 0);
    ASSERT_EQ(sha256_file(path, hex), 0);
    ASSERT_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    ASSERT_EQ(unlink(path), 0);
    ASSERT_EQ(sha256_file(path, hex), -ENOENT);
}

static void put(const char *path, const void *data, size_t len, off_t at, off_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    ASSERT(fd >= 0 && ftruncate(fd, size) == 0);
    ASSERT_EQ(pwrite(fd, data, len, at), (ssize_t)len);
    ASSERT_EQ(close(fd), 0);
}

TEST(a_sparse_files_sum_knows_what_where_and_how_long_but_no_holes)
{
    AUTO_FREE char *zeros = mem_zalloc(1 << 20);
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "file");
    char sum[6][SHA256_HEX_SIZE];

    put(path, "x", 1, 300000, 1 << 20);
    ASSERT_EQ(sha256_sparse_file(path, sum[0]), 0);
    put(path, zeros, 200000, 0, 1 << 20); /* a hole is filled: the same */
    ASSERT_EQ(sha256_sparse_file(path, sum[1]), 0);
    ASSERT_STR(sum[0], sum[1]);
    put(path, zeros, 1, 300000, (1 << 20) + 1);
    put(path, "x", 1, 300001, 1 << 20); /* elsewhere */
    ASSERT_EQ(sha256_sparse_file(path, sum[2]), 0);
    put(path, "y", 1, 300001, 1 << 20); /* something else */
    ASSERT_EQ(sha256_sparse_file(path, sum[3]), 0);
    put(path, "y", 1, 300001, 2 << 20); /* longer */
    ASSERT_EQ(sha256_sparse_file(path, sum[4]), 0);
    put(path, "y", 1, 300001 + 65536, 2 << 20); /* twice */
    ASSERT_EQ(sha256_sparse_file(path, sum[5]), 0);
    for (int i = 2; i < 6; i++)
        for (int k = 0; k < i; k++)
            ASSERT(strcmp(sum[i], sum[k]) != 0);
    ASSERT_EQ(unlink(path), 0);
    ASSERT_EQ(sha256_sparse_file(path, sum[0]), -ENOENT);
}
