#include "base/fd.h"
#include "base/sha256.h"
#include "harness/tap.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(const char *text, const char *want)
{
    struct sha256 s;
    char hex[SHA256_HEX_SIZE];

    sha256_init(&s);
    sha256_add(&s, text, strlen(text));
    sha256_hex(&s, hex);
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
    char path[] = "/tmp/lcow-sha-XXXXXX", hex[SHA256_HEX_SIZE];
    AUTO_FD int fd = mkstemp(path);

    ASSERT(fd >= 0);
    ASSERT_EQ(fd_write_full(fd, "abc", 3), 0);
    ASSERT_EQ(sha256_file(path, hex), 0);
    ASSERT_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    ASSERT_EQ(unlink(path), 0);
    ASSERT_EQ(sha256_file(path, hex), -ENOENT);
}
