/* rtnl_tc.c - traffic control: what comes in at one interface leaves by another. */
#include "proto/rtnl.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/tc_act/tc_mirred.h>
#include <string.h>
#include <sys/socket.h>

#define INGRESS_HANDLE TC_H_MAKE(TC_H_INGRESS, 0) /* ffff: */
#define PRIORITY 1

static void ingress(struct nl_msg *m, uint16_t type, uint16_t flags, int index)
{
    const struct tcmsg tc = { .tcm_family = AF_UNSPEC,
                              .tcm_ifindex = index,
                              .tcm_handle = INGRESS_HANDLE,
                              .tcm_parent = TC_H_INGRESS };

    nl_begin(m, type, flags, &tc, sizeof(tc));
    nl_put_str(m, TCA_KIND, "ingress");
}

void rtnl_add_ingress(struct nl_msg *m, int index)
{
    ingress(m, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, index);
}

void rtnl_delete_ingress(struct nl_msg *m, int index)
{
    ingress(m, RTM_DELQDISC, 0, index);
}

static void put_mirred(struct nl_msg *m, int to)
{
    const struct tc_mirred parms = { .action = TC_ACT_STOLEN,
                                     .eaction = TCA_EGRESS_REDIR,
                                     .ifindex = (uint32_t)to };
    size_t actions = nl_nest(m, TCA_U32_ACT), first = nl_nest(m, 1);

    nl_put_str(m, TCA_ACT_KIND, "mirred");
    size_t options = nl_nest(m, TCA_ACT_OPTIONS);
    nl_put(m, TCA_MIRRED_PARMS, &parms, sizeof(parms));
    nl_nest_end(m, options);
    nl_nest_end(m, first);
    nl_nest_end(m, actions);
}

/* u32 with one key whose mask is nothing: every packet. matchall is not in every kernel. */
void rtnl_redirect(struct nl_msg *m, int index, int to)
{
    const struct tcmsg tc = { .tcm_family = AF_UNSPEC,
                              .tcm_ifindex = index,
                              .tcm_parent = INGRESS_HANDLE,
                              .tcm_info = TC_H_MAKE(PRIORITY << 16, htons(ETH_P_ALL)) };
    union {
        struct tc_u32_sel sel;
        uint8_t bytes[sizeof(struct tc_u32_sel) + sizeof(struct tc_u32_key)];
    } match;

    memset(&match, 0, sizeof(match));
    match.sel.flags = TC_U32_TERMINAL;
    match.sel.nkeys = 1;
    nl_begin(m, RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &tc, sizeof(tc));
    nl_put_str(m, TCA_KIND, "u32");
    size_t options = nl_nest(m, TCA_OPTIONS);
    nl_put(m, TCA_U32_SEL, &match, sizeof(match));
    put_mirred(m, to);
    nl_nest_end(m, options);
}
