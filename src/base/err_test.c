#include "base/err.h"
#include "harness/tap.h"
#include <errno.h>
#include <string.h>

TEST(the_struct_fits_into_512_bytes)
{
    ASSERT(sizeof(struct err) <= 512);
}

TEST(set_fills_all_of_it_and_returns_minus_one)
{
    struct err e = { ERR_UNKNOWN, 5, "old", REASON_DISK_FULL };

    ASSERT_EQ(err_set(&e, ERR_NOT_FOUND, "pod %s", "x"), -1);
    ASSERT_EQ(e.code, ERR_NOT_FOUND);
    ASSERT_EQ(e.sys, 0);
    ASSERT_EQ(e.reason, REASON_NONE);
    ASSERT_STR(e.msg, "pod x");
}

TEST(the_innermost_reason_is_kept_when_an_error_is_wrapped)
{
    struct err e = ERR_INIT;

    ASSERT_EQ(err_because(&e, REASON_NO_KVM, ERR_STATE, "no %s", "kvm"), -1);
    ASSERT_EQ(err_wrap(&e, "create the VM"), -1);
    ASSERT_EQ(err_blame(&e, REASON_BOOT_PREPARE), -1);
    ASSERT_EQ(e.code, ERR_STATE);
    ASSERT_EQ(err_reason(&e), REASON_NO_KVM);
    ASSERT_STR(e.msg, "create the VM: no kvm");

    err_set(&e, ERR_DEADLINE, "deadline exceeded");
    ASSERT_EQ(err_reason(&e), REASON_TIMED_OUT); /* told by the code, so a caller may know more */
    ASSERT_EQ(err_wrap_because(&e, REASON_BOOT_KERNEL, "boot stopped at %s", "x"), -1);
    ASSERT_STR(e.msg, "boot stopped at x: deadline exceeded");
    ASSERT_EQ(err_reason(&e), REASON_BOOT_KERNEL);
}

TEST(an_errno_brings_its_reason)
{
    struct err e = ERR_INIT;

    err_sys(&e, -ENOSPC, "write");
    ASSERT_EQ(err_reason(&e), REASON_DISK_FULL);
    err_sys(&e, ENOENT, "open");
    ASSERT_EQ(err_reason(&e), REASON_NONE);
}

TEST(set_may_quote_its_own_message)
{
    struct err e;

    err_set(&e, ERR_UNKNOWN, "inner");
    err_set(&e, ERR_INTERNAL, "outer (%s)", e.msg);
    ASSERT_STR(e.msg, "outer (inner)");
}

TEST(sys_names_errno_and_code)
{
    struct err e;

    ASSERT_EQ(err_sys(&e, ENOENT, "open %s", "/x"), -1);
    ASSERT_EQ(e.code, ERR_NOT_FOUND);
    ASSERT_EQ(e.sys, ENOENT);
    ASSERT_STR(e.msg, "open /x: No such file or directory");
}

TEST(sys_takes_either_sign)
{
    struct err e;

    err_sys(&e, -EEXIST, "make");
    ASSERT_EQ(e.sys, EEXIST);
    ASSERT_EQ(e.code, ERR_EXISTS);
}

TEST(sys_survives_an_unknown_errno)
{
    struct err e;

    err_sys(&e, 99999, "x");
    ASSERT_EQ(e.code, ERR_UNKNOWN);
    ASSERT_HAS(e.msg, "99999");
}

TEST(wrap_keeps_code_and_errno)
{
    struct err e;

    err_sys(&e, EACCES, "open /x");
    ASSERT_EQ(err_wrap(&e, "start vm %d", 7), -1);
    ASSERT_EQ(e.code, ERR_PERMISSION);
    ASSERT_EQ(e.sys, EACCES);
    ASSERT_STR(e.msg, "start vm 7: open /x: Permission denied");
}

TEST(a_message_of_the_full_size_is_not_cut)
{
    char text[ERR_MSG_MAX];
    struct err e;

    memset(text, 'a', sizeof(text));
    text[ERR_MSG_MAX - 1] = '\0';
    err_set(&e, ERR_UNKNOWN, "%s", text);
    ASSERT_STR(e.msg, text);
}

TEST(one_byte_more_ends_with_an_ellipsis)
{
    char text[ERR_MSG_MAX + 1];
    struct err e;

    memset(text, 'a', sizeof(text));
    text[ERR_MSG_MAX] = '\0';
    err_set(&e, ERR_UNKNOWN, "%s", text);
    ASSERT_EQ(strlen(e.msg), ERR_MSG_MAX - 1);
    ASSERT_STR(e.msg + ERR_MSG_MAX - 4, "…");
    ASSERT(strspn(e.msg, "a") == ERR_MSG_MAX - 4);
}

TEST(truncation_never_halves_a_character)
{
    char text[1024];
    struct err e;

    for (int shift = 0; shift < 4; shift++) {
        size_t len = 0, at = 0;

        while (len < (size_t)shift)
            text[len++] = 'a';
        while (len < 900) {
            memcpy(text + len, "😀", 4);
            len += 4;
        }
        text[len] = '\0';
        err_set(&e, ERR_UNKNOWN, "%s", text);
        for (at = (size_t)shift; memcmp(e.msg + at, "😀", 4) == 0;)
            at += 4;
        ASSERT_STR(e.msg + at, "…");
        ASSERT(at > ERR_MSG_MAX - 9);
    }
}

TEST(wrap_that_overflows_keeps_the_beginning)
{
    char text[ERR_MSG_MAX];
    struct err e;

    memset(text, 'b', sizeof(text));
    text[ERR_MSG_MAX - 1] = '\0';
    err_set(&e, ERR_DEADLINE, "%s", text);
    err_wrap(&e, "outer");
    ASSERT(strncmp(e.msg, "outer: bbb", 10) == 0);
    ASSERT_STR(e.msg + strlen(e.msg) - 3, "…");
    ASSERT_EQ(e.code, ERR_DEADLINE);
}

TEST(wrap_whose_own_text_fills_everything_is_cut)
{
    char text[2 * ERR_MSG_MAX];
    struct err e;

    memset(text, 'b', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    err_set(&e, ERR_STATE, "inner");
    err_wrap(&e, "%s", text);
    ASSERT_STR(e.msg + strlen(e.msg) - 3, "…");
    err_sys(&e, EIO, "%s", text);
    ASSERT_STR(e.msg + strlen(e.msg) - 3, "…");
}

TEST(clear_forgets)
{
    struct err e;

    err_sys(&e, EIO, "x");
    err_clear(&e);
    ASSERT_EQ(e.code, ERR_NONE);
    ASSERT_EQ(e.sys, 0);
    ASSERT_STR(e.msg, "");
}

TEST(every_code_has_a_name_of_its_own)
{
    for (int i = 0; i < ERR_COUNT; i++) {
        ASSERT(err_code_name(i)[0]);
        for (int j = 0; j < i; j++)
            ASSERT(strcmp(err_code_name(i), err_code_name(j)) != 0);
    }
    ASSERT_STR(err_code_name(ERR_NOT_FOUND), "not found");
    ASSERT_STR(err_code_name(ERR_DEADLINE), "deadline exceeded");
}

TEST(a_code_out_of_range_has_a_name_too)
{
    ASSERT_STR(err_code_name((enum err_code)99), "invalid code");
    ASSERT_STR(err_code_name((enum err_code) - 1), "invalid code");
}

TEST(errno_becomes_a_code)
{
    static const struct {
        int sys;
        enum err_code code;
    } t[] = {
        { ENOENT, ERR_NOT_FOUND },
        { ESRCH, ERR_NOT_FOUND },
        { EEXIST, ERR_EXISTS },
        { EACCES, ERR_PERMISSION },
        { EPERM, ERR_PERMISSION },
        { EINVAL, ERR_INVALID },
        { ENOSPC, ERR_EXHAUSTED },
        { EDQUOT, ERR_EXHAUSTED },
        { EMFILE, ERR_EXHAUSTED },
        { ENFILE, ERR_EXHAUSTED },
        { ENOMEM, ERR_EXHAUSTED },
        { EFBIG, ERR_EXHAUSTED },
        { ETIMEDOUT, ERR_DEADLINE },
        { EPIPE, ERR_UNAVAILABLE },
        { ECONNRESET, ERR_UNAVAILABLE },
        { ECONNREFUSED, ERR_UNAVAILABLE },
        { ENOTCONN, ERR_UNAVAILABLE },
        { EIO, ERR_UNAVAILABLE },
        { ENOSYS, ERR_UNIMPLEMENTED },
        { EOPNOTSUPP, ERR_UNIMPLEMENTED },
        { EBUSY, ERR_STATE },
        { ECANCELED, ERR_CANCELLED },
        { EXDEV, ERR_UNKNOWN },
        { 0, ERR_UNKNOWN },
    };

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        ASSERT_EQ(err_code_from_errno(t[i].sys), t[i].code);
}
