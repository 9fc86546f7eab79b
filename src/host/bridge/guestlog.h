/* guestlog.h - the guest's log stream (port 109): JSON lines as logrus writes them, from a guest
 * that may be hostile. Lines become our own log lines, marked source=guest (source=kernel for what
 * the agent read from the kernel's log, with the time it was said), bounded and rated; lines with
 * the fields of a boot stage go into the timeline, on the host's clock. A line that is not JSON is
 * the crash report of the agent: it and the rest become one "gcs terminated" record. */
#pragma once
#include "base/bucket.h"
#include "base/log.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct stream;
struct timeline;

#define GUESTLOG_LINE_MAX (16 * 1024)
#define GUESTLOG_TEXT_MAX 2048 /* of one field, after escaping */
#define GUESTLOG_LAST_WORDS_MAX (8 * 1024)
/* Lines that become ours: so many in one second, and in the long run so few that 110 pods (as many
 * as a kubelet runs) together stay below the rate at which journald drops lines of containerd and
 * all its shims, 10,000 in 30 s. What is left out is counted. */
#define GUESTLOG_BURST 200
#define GUESTLOG_SLOW_BURST 1000
#define GUESTLOG_SLOW_PER_S 2
/* Bytes that are looked at; more is read and left out. */
#define GUESTLOG_PARSED_BURST (2u << 20)
#define GUESTLOG_PARSED_PER_S (256u << 10)
/* Bytes that are read; the guest has to wait with more. */
#define GUESTLOG_READ_BURST (8u << 20)
#define GUESTLOG_READ_PER_S (4u << 20)
#define GUESTLOG_STAGES 32
#define GUESTLOG_STAGE_NAME 28

struct guestlog_stage {
    char name[GUESTLOG_STAGE_NAME];
    uint64_t start_ns, end_ns; /* on the guest's clock */
};

struct guestlog {
    struct timeline *timeline;
    uint64_t floor_ns; /* nothing in the guest is older than this, on the host's clock */
    struct log_rate rate;
    struct bucket slow, parsed, read;
    uint64_t lost; /* lines that were left out since the last that was not */
    /* Host time minus guest time, the least seen: a line is never received before it was
     * written, so the quickest one is nearest to the truth. */
    bool have_offset;
    int64_t offset;
    struct guestlog_stage stages[GUESTLOG_STAGES]; /* until flushed */
    unsigned n_stages;
    bool flushed;
    /* Of the stream, between two reads. */
    struct sbuf line;
    bool skipping;   /* the rest of a line that is too long */
    bool last_words; /* everything from here on is text */
};

void guestlog_init(struct guestlog *l, struct timeline *timeline, uint64_t now_ns);
void guestlog_release(struct guestlog *l);
/* One line without its newline. False if it is not a JSON object. Never waits. */
bool guestlog_line(struct guestlog *l, const struct ctx *ctx, const char *line, size_t len,
                   uint64_t now_ns);
/* The stages so far go into the timeline; later ones at once. The best moment is when the guest
 * has spoken without delay, that is, when it is up. */
void guestlog_flush(struct guestlog *l, uint64_t now_ns);
/* Reads lines to the stream's end (0) or until ctx ends or the stream fails (-1). A log that was
 * saved is continued within its line. */
int guestlog_read(struct ctx *ctx, struct guestlog *l, struct stream *s, struct err *err);

/* Appends s with everything that could act on a terminal or a log reader escaped (\n, \u001b …),
 * at most max bytes; cut at a character with "…". Text that is not UTF-8 is escaped bytewise. */
void guestlog_escape(struct sbuf *out, const char *s, size_t len, size_t max);
