/* event_wire.h - an event as containerd's envelope: topic, type, fields. Never waits. */
#pragma once
#include "api/forward.pb-c.h"

struct event;

/* Caller frees with pb_free. NULL: an event that cannot be said (text that is none). */
ForwardRequest *event_wire(const struct event *e, const char *ns);
