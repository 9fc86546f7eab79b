/* plan9_priv.h - the states of shares. */
#pragma once
#include "base/fsm.h"
#include "host/device/plan9.h"

enum share_state {
    SHARE_RESERVED,
    SHARE_ADDED,
    SHARE_INVALID, /* the VMM refused it, or nobody knows: only to be taken back */
    SHARE_REMOVED,
    SHARE_STATE_COUNT
};
enum share_event {
    SHARE_EV_ADDED,
    SHARE_EV_ADD_FAILED,
    SHARE_EV_REMOVED,
    SHARE_EV_DROPPED, /* never added, and nobody wants it any more */
    SHARE_EV_COUNT
};
