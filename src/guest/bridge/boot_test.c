/* boot_test.c - the small parsers of the boot: command line, stages, kernel messages. */
#include "base/str.h"
#include "guest/bridge/agent.h"
#include "guest/bridge/kmsg.h"
#include "harness/tap.h"
#include <errno.h>
#include <string.h>

TEST(without_options_it_is_tcp_and_info)
{
    struct bootargs a;
    struct err err = ERR_INIT;

    ASSERT_OK(bootargs_parse("quiet panic=-1 console=ttyS0\n", &a, &err), err);
    ASSERT_EQ(a.transport, LINK_TCP);
    ASSERT_EQ(a.level, LOG_INFO);
}

TEST(options_count_up_to_the_double_dash)
{
    struct bootargs a;
    struct err err = ERR_INIT;

    ASSERT_OK(bootargs_parse("lcow.host=vsock lcow.loglevel=debug -- lcow.host=tcp", &a, &err),
              err);
    ASSERT_EQ(a.transport, LINK_VSOCK);
    ASSERT_EQ(a.level, LOG_DEBUG);
}

TEST(invalid_option_values_are_named)
{
    struct bootargs a;
    struct err err = ERR_INIT;

    ASSERT_FAIL(bootargs_parse("lcow.host=pigeon", &a, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "lcow.host=pigeon");
    ASSERT_FAIL(bootargs_parse("lcow.loglevel=", &a, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "lcow.loglevel=");
}

TEST(stages_go_through_an_argument_and_come_out_as_lines)
{
    AUTO(sbuf_release) struct sbuf line = { 0 };
    struct stages s = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(stages_parse(&s, "init=10-20,mounts=12-18446744073709551615", &err), err);
    ASSERT_EQ(s.n, 2);
    stages_line(&s, 1, 0, 99, &line);
    ASSERT_HAS(line.data, "\"level\":\"info\",\"msg\":\"boot stage\",\"stage\":\"mounts\","
                          "\"start_ns\":12,\"end_ns\":18446744073709551615,\"boottime_ns\":99}\n");
    ASSERT_HAS(line.data, "{\"time\":\"1970-01-01T00:00:00");
}

TEST(bad_stages_are_refused_whole)
{
    static const char *const bad[] = {
        "init", "init=", "init=1", "=1-2", "init=1-x", "ok=1-2,bad", "a-name-that-is-too-long=1-2"
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct stages s = { 0 };
        struct err err = ERR_INIT;
        ASSERT_FAIL(stages_parse(&s, bad[i], &err), err, ERR_INVALID);
        ASSERT_EQ(s.n, 0);
    }
}

TEST(too_many_stages_are_left_out)
{
    struct stages s = { 0 };

    for (int i = 0; i < 2 * STAGES_MAX; i++)
        stages_add(&s, "x", 1, 2);
    ASSERT_EQ(s.n, STAGES_MAX);
}

TEST(a_kernel_record_is_taken_apart)
{
    struct kmsg_record r;

    ASSERT_EQ(kmsg_parse("12,339,5140900,-;NET: Registered\n SUBSYSTEM=x\n", &r), 0);
    ASSERT_EQ(r.priority, 4);
    ASSERT_EQ(r.facility, 1);
    ASSERT_EQ(r.seq, 339);
    ASSERT_EQ(r.usec, 5140900);
    ASSERT_EQ(r.flags, '-');
    ASSERT_STR(r.text, "NET: Registered");
    ASSERT_EQ(kmsg_parse("6,1,2,-,caller=T1;a;b", &r), 0);
    ASSERT_STR(r.text, "a;b");
}

TEST(invalid_kernel_records_are_refused)
{
    struct kmsg_record r;

    ASSERT_EQ(kmsg_parse("", &r), -EBADMSG);
    ASSERT_EQ(kmsg_parse("no semicolon", &r), -EBADMSG);
    ASSERT_EQ(kmsg_parse("x,y,z,-;text", &r), -EBADMSG);
    ASSERT_EQ(
        kmsg_parse("1111111111111111111111111111111111111111111111111111111111111111,1;x", &r),
        -EBADMSG);
}

TEST(a_long_kernel_text_is_cut)
{
    AUTO_FREE char *text = mem_alloc(4000);
    struct kmsg_record r;

    memset(text, 'k', 3999);
    memcpy(text, "6,1,2,-;", 8);
    text[3999] = '\0';
    ASSERT_EQ(kmsg_parse(text, &r), 0);
    ASSERT_EQ(strlen(r.text), KMSG_TEXT_MAX - 1);
}
