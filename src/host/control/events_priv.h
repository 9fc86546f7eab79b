/* events_priv.h - the inside of the queue of events, for events*.c. */
#pragma once
#include "base/fiber.h"
#include "base/list.h"
#include "host/control/events.h"

struct item {
    struct list in_queue;
    struct event event; /* its strings are ours */
};

struct events {
    struct list items; /* oldest first */
    size_t n;
    uint64_t dropped;
    struct waitq changed;
    bool (*filter)(void *arg, const struct event *e);
    void *filter_arg;
};
