#include "base/str.h"
#include "harness/tap.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

TEST(format_is_as_long_as_needed)
{
    AUTO_FREE char *s = str_format("%0*d|%s", 5000, 7, "end");

    ASSERT_EQ(strlen(s), 5004);
    ASSERT_STR(s + 4999, "7|end");
}

TEST(format_of_every_length_is_whole)
{
    for (int n = 0; n < 300; n++) {
        AUTO(sbuf_release) struct sbuf b = { 0 };
        AUTO_FREE char *s = str_format("%0*d", n + 1, 7);

        ASSERT_EQ(strlen(s), n + 1);
        ASSERT_EQ(s[n], '7');
        sbuf_adds(&b, "x");
        sbuf_addf(&b, "%0*d", n + 1, 7);
        ASSERT_EQ(b.len, n + 2);
        ASSERT_STR(b.data + 1, s);
    }
}

TEST(dup_keeps_null)
{
    AUTO_FREE char *s = str_dup("x");

    ASSERT(!str_dup(NULL));
    ASSERT_STR(s, "x");
}

TEST(ndup_stops_at_n_and_at_nul)
{
    AUTO_FREE char *a = str_ndup("abcdef", 3), *b = str_ndup("ab", 10), *c = str_ndup("x", 0);

    ASSERT_STR(a, "abc");
    ASSERT_STR(b, "ab");
    ASSERT_STR(c, "");
}

TEST(null_equals_null_only)
{
    ASSERT(str_eq(NULL, NULL));
    ASSERT(!str_eq(NULL, ""));
    ASSERT(!str_eq("", NULL));
    ASSERT(str_eq("a", "a"));
    ASSERT(!str_eq("a", "A"));
}

TEST(starts_and_ends)
{
    ASSERT(str_starts("abc", "ab"));
    ASSERT(str_starts("abc", ""));
    ASSERT(!str_starts("ab", "abc"));
    ASSERT(str_ends("abc", "bc"));
    ASSERT(str_ends("abc", ""));
    ASSERT(!str_ends("bc", "abc"));
}

TEST(u64_reads_the_whole_range)
{
    uint64_t v = 1;

    ASSERT_EQ(str_to_u64("0", UINT64_MAX, &v), 0);
    ASSERT_EQ(v, 0);
    ASSERT_EQ(str_to_u64("18446744073709551615", UINT64_MAX, &v), 0);
    ASSERT(v == UINT64_MAX);
    ASSERT_EQ(str_to_u64("007", 7, &v), 0);
    ASSERT_EQ(v, 7);
}

TEST(u64_refuses_what_is_too_large_and_leaves_ret)
{
    uint64_t v = 42;

    ASSERT_EQ(str_to_u64("18446744073709551616", UINT64_MAX, &v), -ERANGE);
    ASSERT_EQ(str_to_u64("99999999999999999999999999", UINT64_MAX, &v), -ERANGE);
    ASSERT_EQ(str_to_u64("8", 7, &v), -ERANGE);
    ASSERT_EQ(v, 42);
}

TEST(u64_refuses_anything_but_digits)
{
    static const char *const bad[] = { "",    " 1",  "1 ",  "+1",
                                       "-1",  "0x1", "1\n", "99999999999999999999999x",
                                       "1e3", "1.0", "٣" };
    uint64_t v = 42;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ASSERT_EQ(str_to_u64(bad[i], UINT64_MAX, &v), -EINVAL);
    ASSERT_EQ(str_to_u64(NULL, UINT64_MAX, &v), -EINVAL);
    ASSERT_EQ(v, 42);
}

TEST(utf8_decodes_each_length)
{
    uint32_t c;

    ASSERT_EQ(str_utf8("a", 1, &c), 1);
    ASSERT_EQ(c, 'a');
    ASSERT_EQ(str_utf8("é", 2, &c), 2);
    ASSERT_EQ(c, 0xe9);
    ASSERT_EQ(str_utf8("…", 3, &c), 3);
    ASSERT_EQ(c, 0x2026);
    ASSERT_EQ(str_utf8("😀", 4, &c), 4);
    ASSERT_EQ(c, 0x1f600);
    ASSERT_EQ(str_utf8("\xf4\x8f\xbf\xbf", 4, &c), 4);
    ASSERT_EQ(c, 0x10ffff);
    ASSERT_EQ(str_utf8("\0", 1, &c), 1);
    ASSERT_EQ(c, 0);
}

TEST(utf8_refuses_what_is_not)
{
    static const char *const bad[] = {
        "\x80",             /* continuation alone */
        "\xc0\xaf",         /* overlong '/' */
        "\xc1\xbf",         /* overlong */
        "\xe0\x80\xaf",     /* overlong */
        "\xe0\x9f\xbf",     /* overlong */
        "\xf0\x80\x80\xaf", /* overlong */
        "\xf0\x8f\xbf\xbf", /* overlong */
        "\xed\xa0\x80",     /* surrogate */
        "\xed\xbf\xbf",     /* surrogate */
        "\xf4\x90\x80\x80", /* beyond U+10FFFF */
        "\xf5\x80\x80\x80",
        "\xff",
        "\xc3", /* cut off */
        "\xe2\x80",
        "\xf0\x9f\x98",
        "\xc3(",
        "\xe2\x80(", /* wrong continuation */
    };
    uint32_t c;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ASSERT_EQ(str_utf8(bad[i], strlen(bad[i]), &c), 0);
    ASSERT_EQ(str_utf8("a", 0, &c), 0);
    ASSERT_EQ(str_utf8("…", 2, &c), 0);
}

TEST(distance_counts_edits)
{
    ASSERT_EQ(str_distance("", ""), 0);
    ASSERT_EQ(str_distance("abc", "abc"), 0);
    ASSERT_EQ(str_distance("", "abc"), 3);
    ASSERT_EQ(str_distance("kitten", "sitting"), 3);
    ASSERT_EQ(str_distance("flaw", "lawn"), 2);
}

TEST(distance_of_long_words_is_far)
{
    char a[66], b[66];

    memset(a, 'a', sizeof(a));
    a[65] = '\0';
    memcpy(b, a, sizeof(b));
    b[64] = '\0';
    ASSERT_EQ(str_distance(b, b), 0);
    ASSERT(str_distance(a, a) > 64);
    ASSERT(str_distance(a, "a") > 64);
}

TEST(nearest_finds_the_slip)
{
    static const char *const words[] = { "--memory", "--cpus", "--keep", "--json", NULL };

    ASSERT_STR(str_nearest("--memroy", words), "--memory");
    ASSERT_STR(str_nearest("--cpu", words), "--cpus");
    ASSERT_STR(str_nearest("--json", words), "--json");
}

TEST(nearest_is_null_when_nothing_is_near)
{
    static const char *const words[] = { "--memory", "up", NULL }, *const none[] = { NULL };

    ASSERT(!str_nearest("--verbose", words));
    ASSERT(!str_nearest("it", words));
    ASSERT(!str_nearest("", words));
    ASSERT(!str_nearest("x", none));
}

TEST(strv_is_always_terminated)
{
    AUTO(strv_release) struct strv l = { 0 };

    for (int i = 0; i < 100; i++) {
        strv_addf(&l, "%d", i);
        ASSERT(!l.v[l.n]);
    }
    strv_add(&l, "end");
    ASSERT_EQ(l.n, 101);
    ASSERT_STR(l.v[42], "42");
    ASSERT_STR(l.v[100], "end");
    ASSERT(!l.v[101]);
}

TEST(strv_release_can_be_repeated)
{
    struct strv l = { 0 };

    strv_add(&l, "a");
    strv_release(&l);
    strv_release(&l);
    ASSERT_EQ(l.n, 0);
    strv_add(&l, "b");
    ASSERT_STR(l.v[0], "b");
    strv_release(&l);
}

TEST(sbuf_grows_and_terminates)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };

    for (int i = 0; i < 1000; i++) {
        sbuf_addc(&b, 'x');
        ASSERT_EQ(b.data[b.len], 0);
    }
    sbuf_adds(&b, "yz");
    sbuf_addf(&b, "-%d", 5);
    ASSERT_EQ(b.len, 1004);
    ASSERT_STR(b.data + 1000, "yz-5");
}

TEST(sbuf_holds_nul_bytes)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };

    sbuf_add(&b, "a\0b", 3);
    ASSERT_EQ(b.len, 3);
    ASSERT(memcmp(b.data, "a\0b", 4) == 0);
}

TEST(sbuf_adding_nothing_still_terminates)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };

    sbuf_add(&b, NULL, 0);
    ASSERT_STR(b.data, "");
    ASSERT_EQ(b.len, 0);
}

TEST(sbuf_room_can_be_filled_to_the_last_byte)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };
    char *p;

    sbuf_adds(&b, "ab");
    p = sbuf_room(&b, 4096);
    memset(p, 'c', 4096);
    b.len += 4096;
    sbuf_adds(&b, "d");
    ASSERT_EQ(b.len, 4099);
    ASSERT_STR(b.data + 4097, "cd");
}

TEST(sbuf_consume_drops_the_front)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };

    sbuf_consume(&b, 0);
    sbuf_adds(&b, "hello world");
    sbuf_consume(&b, 6);
    ASSERT_STR(b.data, "world");
    sbuf_consume(&b, 5);
    ASSERT_EQ(b.len, 0);
    ASSERT_STR(b.data, "");
}

static void consume_too_much(void *arg)
{
    sbuf_consume(arg, 3);
}

TEST(sbuf_consume_beyond_the_end_aborts)
{
    AUTO(sbuf_release) struct sbuf b = { 0 };

    sbuf_adds(&b, "ab");
    ASSERT_ABORTS(consume_too_much, &b, "");
}

TEST(sbuf_take_empties_it)
{
    struct sbuf b = { 0 };
    AUTO_FREE char *empty = sbuf_take(&b), *full = NULL;

    ASSERT_STR(empty, "");
    sbuf_adds(&b, "x");
    full = sbuf_take(&b);
    ASSERT_STR(full, "x");
    ASSERT(!b.data && !b.len && !b.cap);
}

TEST(untrusted_text_is_made_printable)
{
    AUTO_FREE char *red = str_printable("\033[31mred\r\n"), *plain = str_printable("a b é €"),
                   *broken = str_printable("x\xff\xc3"),
                   *c1 = str_printable("\xc2\x9b"
                                       "2J"),
                   *turned = str_printable("a\u202eb\u2028"), *empty = str_printable("");

    ASSERT_STR(red, "?[31mred??");
    ASSERT_STR(plain, "a b é €");
    ASSERT_STR(broken, "x??");
    ASSERT_STR(c1, "?2J");
    ASSERT_STR(turned, "a?b?");
    ASSERT_STR(empty, "");
}
