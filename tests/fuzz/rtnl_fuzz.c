/* Answers of the kernel, as if it lied: whatever the bytes, what is read stays in bounds, texts
 * end, and what we would write of it is read back the same. */
#include "fuzz/on_fiber.h"
#include "proto/rtnl.h"

#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same_route(const struct rtnl_route *r)
{
    struct rtnl_route again;
    struct nl_msg m;

    if (r->destination.family == 0)
        return;
    rtnl_add_route(&m, r); /* of hops any number fits, or none */
    for (again = *r; rtnl_next_hop(&again);) {
        if (again.weight < 1 || again.weight > 256)
            abort();
        rtnl_put_hop(&m, &again);
    }
    rtnl_add_route(&m, r);
    if (m.full || rtnl_read_route(m.data + 16, m.len - 16, &again) < 0 ||
        again.prefix != r->prefix || again.oif != r->oif || again.metric != r->metric ||
        memcmp(&again.gateway, &r->gateway, sizeof(r->gateway)) != 0)
        abort();
}

static void same_rule(const struct rtnl_rule *r)
{
    struct rtnl_rule again;
    struct nl_msg m;

    if (strlen(r->iif) >= sizeof(r->iif) || strlen(r->oif) >= sizeof(r->oif))
        abort();
    rtnl_add_rule(&m, r);
    if (m.full || rtnl_read_rule(m.data + 16, m.len - 16, &again) < 0 ||
        again.priority != r->priority || again.table != r->table || again.mark != r->mark ||
        memcmp(&again.from, &r->from, sizeof(r->from)) != 0)
        abort();
}

static int message(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct rtnl_iface l;
    struct rtnl_address a;
    struct rtnl_route r;
    struct rtnl_neighbour n;
    struct rtnl_rule u;
    char text[RTNL_IP_TEXT];

    (void)arg;
    (void)type; /* each as every kind */
    if (rtnl_read_iface(body, len, &l) == 0 &&
        (strlen(l.name) >= sizeof(l.name) || strlen(l.kind) >= sizeof(l.kind) || l.index <= 0))
        abort();
    if (rtnl_read_address(body, len, &a) == 0)
        rtnl_ip_text(&a.ip, text);
    if (rtnl_read_route(body, len, &r) == 0)
        same_route(&r);
    if (rtnl_read_rule(body, len, &u) == 0 && (u.family == AF_INET || u.family == AF_INET6))
        same_rule(&u);
    if (rtnl_read_neighbour(body, len, &n) == 0)
        rtnl_ip_text(&n.ip, text);
    return 0;
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    struct nl_end end = { 0 };

    (void)nl_parse(in->data, in->size, 1, message, NULL, &end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
