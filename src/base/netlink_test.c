#include "base/fd.h"
#include "base/netlink.h"
#include "harness/tap.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>

struct seen {
    unsigned n;
    uint16_t types[8];
    int fail;
};

static int see(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct seen *s = arg;

    if (s->n < 8)
        s->types[s->n++] = type;
    return s->fail;
}

static size_t add(uint8_t *buf, size_t at, uint16_t type, uint16_t flags, uint32_t seq, int code)
{
    const struct nlmsghdr h = {
        .nlmsg_len = sizeof(h) + 4, .nlmsg_type = type, .nlmsg_flags = flags, .nlmsg_seq = seq
    };

    memcpy(buf + at, &h, sizeof(h));
    memcpy(buf + at + sizeof(h), &code, 4);
    return at + sizeof(h) + 4;
}

TEST(a_dump_is_read_to_its_end)
{
    struct nl_end end = { 0 };
    struct seen s = { 0 };
    uint8_t buf[256];
    size_t n = add(buf, 0, RTM_NEWLINK, NLM_F_MULTI, 1, 0);

    n = add(buf, n, RTM_NEWLINK, NLM_F_MULTI, 7, 0); /* not ours */
    n = add(buf, n, RTM_NEWADDR, NLM_F_MULTI, 1, 0);
    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), 0);
    ASSERT(!end.done);
    ASSERT_EQ(s.n, 2);
    n = add(buf, 0, NLMSG_DONE, NLM_F_MULTI, 1, 0);
    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), 0);
    ASSERT(end.done && !end.disturbed);
    ASSERT_EQ(end.error, 0);
    ASSERT_EQ(s.n, 2);
}

TEST(an_error_and_an_interrupted_dump_are_reported)
{
    struct nl_end end = { 0 };
    struct seen s = { 0 };
    uint8_t buf[256];
    size_t n = add(buf, 0, NLMSG_ERROR, 0, 1, -EEXIST);

    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), 0);
    ASSERT(end.done);
    ASSERT_EQ(end.error, -EEXIST);
    end = (struct nl_end){ 0 };
    n = add(buf, 0, RTM_NEWLINK, NLM_F_MULTI | NLM_F_DUMP_INTR, 1, 0);
    n = add(buf, n, NLMSG_DONE, NLM_F_MULTI, 1, 0);
    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), 0);
    ASSERT(end.done && end.disturbed);
}

TEST(invalid_messages_are_refused)
{
    struct nl_end end = { 0 };
    struct seen s = { 0 };
    uint8_t buf[256];
    size_t n = add(buf, 0, RTM_NEWLINK, 0, 1, 0);
    uint32_t len = 15;

    ASSERT_EQ(nl_parse(buf, n - 1, 1, see, &s, &end), -EBADMSG); /* cut off */
    ASSERT_EQ(nl_parse(buf, 3, 1, see, &s, &end), -EBADMSG);
    memcpy(buf, &len, 4);
    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), -EBADMSG);
    len = UINT32_MAX;
    memcpy(buf, &len, 4);
    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), -EBADMSG);
    n = add(buf, 0, NLMSG_ERROR, 0, 1, 5); /* no errno of a kernel */
    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), -EBADMSG);
    ASSERT_EQ(s.n, 0);
}

TEST(the_reader_can_stop)
{
    struct nl_end end = { 0 };
    struct seen s = { .fail = -ENOSPC };
    uint8_t buf[256];
    size_t n = add(buf, add(buf, 0, RTM_NEWLINK, 0, 1, 0), RTM_NEWLINK, 0, 1, 0);

    ASSERT_EQ(nl_parse(buf, n, 1, see, &s, &end), -ENOSPC);
    ASSERT_EQ(s.n, 1);
}

TEST(attributes_are_read_as_they_were_written)
{
    const struct ifinfomsg body = { 0 };
    struct nl_msg m;
    struct nl_attr a;
    char text[4];

    nl_begin(&m, RTM_NEWLINK, 0, &body, sizeof(body));
    nl_put_str(&m, 3, "abc");
    size_t nest = nl_nest(&m, 18);
    nl_put_u32(&m, 4, 77);
    nl_nest_end(&m, nest);
    size_t skip = sizeof(struct nlmsghdr) + sizeof(body);
    struct nl_iter it = { m.data + skip, m.len - skip };

    ASSERT(nl_next(&it, &a));
    ASSERT_EQ(a.type, 3);
    ASSERT(nl_text(&a, text, sizeof(text)));
    ASSERT_STR(text, "abc");
    ASSERT(!nl_text(&a, text, 3));
    ASSERT(nl_next(&it, &a));
    ASSERT_EQ(a.type, 18);
    struct nl_iter in = { a.data, a.len };
    ASSERT(nl_next(&in, &a));
    ASSERT_EQ(nl_u32(&a), 77);
    ASSERT(!nl_next(&in, &a));
    ASSERT(!nl_next(&it, &a));
}

TEST(an_attribute_never_reaches_beyond_its_message)
{
    uint8_t buf[8] = { 9, 0, 1, 0 };
    struct nl_iter it = { buf, 8 };
    struct nl_attr a;

    ASSERT(!nl_next(&it, &a)); /* longer than what is there */
    buf[0] = 3;
    it = (struct nl_iter){ buf, 8 };
    ASSERT(!nl_next(&it, &a)); /* shorter than its own head */
    buf[0] = 5;
    it = (struct nl_iter){ buf, 5 };
    ASSERT(nl_next(&it, &a)); /* the last one need not be padded */
    ASSERT_EQ(a.len, 1);
    ASSERT(!nl_next(&it, &a));
}

TEST(a_request_that_grows_too_long_is_not_sent)
{
    struct nl_msg m;
    char big[NL_MSG_BYTES];

    memset(big, 'x', sizeof(big));
    nl_begin(&m, RTM_NEWLINK, 0, NULL, 0);
    nl_put(&m, 1, big, sizeof(big));
    ASSERT(m.full);
    ASSERT_EQ(nl_ask(-1, &m, NULL, NULL), -EMSGSIZE);
}

TEST(the_kernel_answers)
{
    AUTO_FD int fd = nl_open(NETLINK_ROUTE, 0);
    const struct ifinfomsg all = { 0 }, none = { .ifi_index = 0x7ffffff0 };
    struct seen s = { 0 };
    struct nl_msg m;

    ASSERT(fd >= 0);
    nl_begin(&m, RTM_GETLINK, NLM_F_DUMP, &all, sizeof(all));
    ASSERT_EQ(nl_ask(fd, &m, see, &s), 0);
    ASSERT(s.n >= 1);
    ASSERT_EQ(s.types[0], RTM_NEWLINK);
    nl_begin(&m, RTM_GETLINK, 0, &none, sizeof(none));
    ASSERT_EQ(nl_ask(fd, &m, see, &s), -ENODEV);
}
