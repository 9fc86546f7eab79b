/* timeline.h - where the time went: a fixed table of spans and marks, always on, no allocation.
 * Host and guest stamps share one axis, loop_now()'s. Full means the newest are counted as lost,
 * because the start of things is what is looked at. Never waits. */
#pragma once
#include <stdint.h>

enum timeline_track {
    TRACK_HOST,   /* shim or tool */
    TRACK_VMM,    /* QEMU process */
    TRACK_KERNEL, /* guest kernel */
    TRACK_GUEST,  /* gcs */
    TRACK_COUNT
};

#define TIMELINE_SPANS 96
#define TIMELINE_NAME 28

struct timeline_span {
    uint64_t start, end; /* equal: a mark; end 0: still open */
    char name[TIMELINE_NAME];
    uint8_t track;
};

struct timeline {
    struct timeline_span spans[TIMELINE_SPANS];
    unsigned n, lost;
};

/* All accept a NULL timeline. begin returns a handle for end (-1 when full, which end accepts). */
int timeline_begin(struct timeline *t, enum timeline_track track, const char *name, uint64_t now);
void timeline_end(struct timeline *t, int handle, uint64_t now);
void timeline_mark(struct timeline *t, enum timeline_track track, const char *name, uint64_t now);
void timeline_add(struct timeline *t, enum timeline_track track, const char *name, uint64_t start,
                  uint64_t end);
const char *timeline_track_name(enum timeline_track track);
