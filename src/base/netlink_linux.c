#include "base/fd.h"
#include "base/netlink.h"

#include <errno.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>

#define ANSWER_BYTES (64u << 10)
#define ANSWER_S                                                                                   \
    20 /* the kernel always answers; the limit keeps a kernel bug from blocking a thread without   \
          end */
#define SEQ 1 /* one question at a time, each read to its end */

/* --- requests --- */

size_t nl_put_raw(struct nl_msg *m, const void *data, size_t len)
{
    size_t padded = NLMSG_ALIGN(len), at = m->len;

    if (m->full || padded > sizeof(m->data) - m->len) {
        m->full = true;
        return at;
    }
    if (len > 0)
        memcpy(m->data + m->len, data, len);
    memset(m->data + m->len + len, 0, padded - len);
    m->len += padded;
    return at;
}

void nl_begin(struct nl_msg *m, uint16_t type, uint16_t flags, const void *body, size_t len)
{
    const struct nlmsghdr head = { .nlmsg_type = type, .nlmsg_flags = flags | NLM_F_REQUEST };

    m->len = 0;
    m->full = false;
    nl_put_raw(m, &head, sizeof(head));
    nl_put_raw(m, body, len);
}

void nl_put(struct nl_msg *m, uint16_t type, const void *data, size_t len)
{
    const struct nlattr head = { .nla_len = (uint16_t)(sizeof(head) + len), .nla_type = type };

    if (len > NL_MSG_BYTES) {
        m->full = true;
        return;
    }
    nl_put_raw(m, &head, sizeof(head));
    nl_put_raw(m, data, len);
}

void nl_put_u32(struct nl_msg *m, uint16_t type, uint32_t value)
{
    nl_put(m, type, &value, sizeof(value));
}

void nl_put_str(struct nl_msg *m, uint16_t type, const char *value)
{
    nl_put(m, type, value, strlen(value) + 1);
}

size_t nl_nest(struct nl_msg *m, uint16_t type)
{
    size_t at = m->len;

    nl_put(m, type, NULL, 0);
    return at;
}

void nl_nest_end(struct nl_msg *m, size_t nest)
{
    uint16_t len = (uint16_t)(m->len - nest);

    if (!m->full)
        memcpy(m->data + nest + offsetof(struct nlattr, nla_len), &len, sizeof(len));
}

/* --- answers --- */

bool nl_next(struct nl_iter *it, struct nl_attr *ret)
{
    struct nlattr head;

    if (it->len < sizeof(head))
        return false;
    memcpy(&head, it->data, sizeof(head));
    if (head.nla_len < sizeof(head) || head.nla_len > it->len)
        return false;
    *ret = (struct nl_attr){ .type = head.nla_type & NLA_TYPE_MASK,
                             .data = it->data + sizeof(head),
                             .len = head.nla_len - sizeof(head) };
    size_t step = NLA_ALIGN(head.nla_len);
    if (step > it->len)
        step = it->len;
    it->data += step;
    it->len -= step;
    return true;
}

uint32_t nl_u32(const struct nl_attr *a)
{
    uint32_t value = 0;

    if (a->len == sizeof(value))
        memcpy(&value, a->data, sizeof(value));
    return value;
}

bool nl_text(const struct nl_attr *a, char *ret, size_t size)
{
    size_t len = strnlen((const char *)a->data, a->len);

    if (len >= size)
        return false;
    memcpy(ret, a->data, len);
    ret[len] = '\0';
    return true;
}

/* An error or the end of a dump: both begin with a number. */
static int read_end(const uint8_t *body, size_t len, struct nl_end *end)
{
    int32_t code = 0;

    if (len < sizeof(code))
        return -EBADMSG;
    memcpy(&code, body, sizeof(code));
    if (code > 0)
        return -EBADMSG;
    end->done = true;
    end->error = code;
    return 0;
}

int nl_parse(const void *data, size_t len, uint32_t seq, nl_fn *fn, void *arg, struct nl_end *end)
{
    const uint8_t *at = data;
    struct nlmsghdr head;
    int r = 0;

    while (len >= sizeof(head) && !end->done && r == 0) {
        memcpy(&head, at, sizeof(head));
        if (head.nlmsg_len < sizeof(head) || head.nlmsg_len > len)
            return -EBADMSG;
        const uint8_t *body = at + sizeof(head);
        size_t body_len = head.nlmsg_len - sizeof(head), step = NLMSG_ALIGN(head.nlmsg_len);

        at += step < len ? step : len;
        len -= step < len ? step : len;
        if (head.nlmsg_seq != seq)
            continue;
        end->disturbed = end->disturbed || (head.nlmsg_flags & NLM_F_DUMP_INTR);
        if (head.nlmsg_type == NLMSG_ERROR || head.nlmsg_type == NLMSG_DONE)
            r = read_end(body, body_len, end);
        else if (head.nlmsg_type >= NLMSG_MIN_TYPE && fn)
            r = fn(arg, head.nlmsg_type, body, body_len);
    }
    return r < 0 || end->done || len == 0 ? r : -EBADMSG;
}

/* --- the socket --- */

int nl_open(int protocol, uint32_t groups)
{
    AUTO_FD int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    const struct sockaddr_nl us = { .nl_family = AF_NETLINK, .nl_groups = groups };
    const struct timeval limit = { .tv_sec = ANSWER_S };

    if (fd < 0 || bind(fd, (const struct sockaddr *)&us, sizeof(us)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0)
        return -errno;
    return TAKE_FD(fd);
}

/* One datagram of the kernel's. */
static ssize_t receive(int fd, void *buf, size_t size)
{
    struct sockaddr_nl from;
    socklen_t len = sizeof(from);
    ssize_t n;

    do {
        len = sizeof(from);
        n = recvfrom(fd, buf, size, MSG_TRUNC, (struct sockaddr *)&from, &len);
    } while ((n < 0 && errno == EINTR) || (n >= 0 && from.nl_pid != 0));
    if (n < 0)
        return errno == EAGAIN ? -ETIMEDOUT : -errno;
    return (size_t)n > size ? -EMSGSIZE : n;
}

int nl_ask(int fd, struct nl_msg *m, nl_fn *fn, void *arg)
{
    AUTO_FREE uint8_t *buf = mem_alloc(ANSWER_BYTES);
    struct nlmsghdr *head = (struct nlmsghdr *)m->data;
    struct nl_end end = { 0 };

    if (m->full)
        return -EMSGSIZE;
    head->nlmsg_len = (uint32_t)m->len;
    head->nlmsg_seq = SEQ;
    /* Both bits: each of them alone means something else in a request that changes. */
    if ((head->nlmsg_flags & NLM_F_DUMP) != NLM_F_DUMP)
        head->nlmsg_flags |= NLM_F_ACK;
    if (send(fd, m->data, m->len, 0) < 0)
        return -errno;
    while (!end.done) {
        ssize_t n = receive(fd, buf, ANSWER_BYTES);
        int r = n < 0 ? (int)n : nl_parse(buf, (size_t)n, SEQ, fn, arg, &end);
        if (r < 0)
            return r;
    }
    return end.error == 0 && end.disturbed ? -EAGAIN : end.error;
}
