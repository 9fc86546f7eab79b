#include "base/timeline.h"
#include <stddef.h>
#include <string.h>

static int add_span(struct timeline *t, enum timeline_track track, const char *name, uint64_t start,
                    uint64_t end)
{
    struct timeline_span *s;
    size_t len;

    if (!t)
        return -1;
    if (t->n >= TIMELINE_SPANS) {
        t->lost++;
        return -1;
    }
    s = &t->spans[t->n];
    len = strnlen(name, TIMELINE_NAME - 1);
    /* A name that is cut must not end in half a character. */
    if (name[len])
        while (len > 0 && ((unsigned char)name[len] & 0xc0) == 0x80)
            len--;
    memcpy(s->name, name, len);
    memset(s->name + len, 0, TIMELINE_NAME - len);
    s->start = start;
    s->end = end;
    s->track = (uint8_t)track;
    return (int)t->n++;
}

int timeline_begin(struct timeline *t, enum timeline_track track, const char *name, uint64_t now)
{
    return add_span(t, track, name, now, 0);
}

void timeline_end(struct timeline *t, int handle, uint64_t now)
{
    struct timeline_span *s;

    if (!t || handle < 0 || (unsigned)handle >= t->n)
        return;
    s = &t->spans[handle];
    if (s->end == 0)
        s->end = now < s->start ? s->start : now;
}

void timeline_mark(struct timeline *t, enum timeline_track track, const char *name, uint64_t now)
{
    (void)add_span(t, track, name, now, now);
}

void timeline_add(struct timeline *t, enum timeline_track track, const char *name, uint64_t start,
                  uint64_t end)
{
    /* Guest stamps are translated to our axis and may come out a little reversed. */
    (void)add_span(t, track, name, start, end < start ? start : end);
}

const char *timeline_track_name(enum timeline_track track)
{
    static const char *const names[TRACK_COUNT] = {
        [TRACK_HOST] = "host",
        [TRACK_VMM] = "vmm",
        [TRACK_KERNEL] = "kernel",
        [TRACK_GUEST] = "guest",
    };

    return (unsigned)track < TRACK_COUNT ? names[track] : "?";
}
