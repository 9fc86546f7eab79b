/* anchor_priv.h - between anchor.c and anchor_save.c. */
#pragma once
#include "host/jail/anchor.h"

struct child;

struct anchor {
    struct child *child;
    struct ledger *ledger;
    uint64_t record; /* 0: none */
    bool by_us;
};
