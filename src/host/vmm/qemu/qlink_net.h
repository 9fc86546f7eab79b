/* qlink_net.h - making the link's network namespace. */
#pragma once
struct ctx;
struct err;

struct qlink_net {
    int tap, listener; /* caller closes; the listener does not block */
};

/* Waits (a thread). Remedies are in the error: no tun, no permission. */
int qlink_net_make(struct ctx *ctx, struct qlink_net *ret, struct err *err);
