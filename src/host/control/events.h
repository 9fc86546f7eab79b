/* events.h - what happened, in order, for the fiber that publishes it to containerd. Pushing never
 * waits and never fails: the queue is bounded by what exists (one create, start, exit, delete
 * each), and beyond a named limit the oldest *repeatable* ones (paused, resumed, oom) are dropped
 * and counted. One reader. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct saved;
struct events;

enum event_kind {
    EVENT_CREATE,
    EVENT_START,
    EVENT_EXEC_ADDED,
    EVENT_EXEC_STARTED,
    EVENT_OOM,
    EVENT_EXIT,
    EVENT_DELETE,
    EVENT_PAUSED,
    EVENT_RESUMED,
    EVENT_KIND_COUNT
};

struct event_mount {
    const char *type, *source, *target;
    const char *const *options; /* NULL-terminated */
};

/* Strings are borrowed by push, which copies; owned by the event from next(). */
struct event {
    enum event_kind kind;
    uint64_t wall_ns;
    const char *container_id;
    const char *exec_id; /* "" for init */
    uint32_t pid, exit_status;
    uint64_t exited_wall_ns;
    const char *bundle; /* EVENT_CREATE and EVENT_EXIT; else "" */
    /* EVENT_CREATE only: */
    const char *in, *out, *err;
    bool terminal;
    const struct event_mount *rootfs;
    size_t n_rootfs;
};

const char *event_name(enum event_kind kind); /* "create", …, as in containerd's topics */

struct events *events_new(void);
void events_free(struct events *q);
/* fn sees each event when it is pushed, and may not wait. False: it is not queued. */
void events_filter(struct events *q, bool (*fn)(void *arg, const struct event *e), void *arg);
void events_push(struct events *q, const struct event *e);
/* Waits for the oldest. *ret stays valid until events_done, which takes it off the queue. */
int events_next(struct ctx *ctx, struct events *q, const struct event **ret, struct err *err);
void events_done(struct events *q);
void events_give_up(struct events *q); /* the same for one that was not delivered: it is counted */
size_t events_pending(const struct events *q);
uint64_t events_dropped(const struct events *q); /* and given up */
/* Until nothing is pending. */
int events_flush(struct ctx *ctx, struct events *q, struct err *err);

/* For saved.h: the events that are not delivered yet. */
void events_saved(struct saved *s, struct events *q);
