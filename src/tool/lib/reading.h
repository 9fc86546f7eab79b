/* reading.h - the journals of this host's shims, living and dead, as lines in the order of time.
 * Reads files only: a shim that hangs or is gone keeps nothing back.
 *
 * Life: readings_init -> add (which ones) -> more (what is there, then what was added since) …
 * -> release. */
#pragma once
#include "base/json.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ctx;
struct err;
struct outputs;
struct shim;
struct shims;

enum line_source { LINE_SHIM, LINE_AGENT, LINE_KERNEL, LINE_EVENT, LINE_OUTPUT, LINE_SOURCE_COUNT };
extern const char *const line_source_names[LINE_SOURCE_COUNT];

struct line {
    enum line_source source;
    int64_t at_ns;    /* wall clock, since 1970 */
    const char *time; /* as it stands in doc; borrowed, as the others */
    const char *level, *text;
    const char *ns, *id; /* whose */
    json_t *doc;         /* owned */
    size_t order;        /* of two at the same time; by lines_add() */
};
struct lines {
    struct line *v;
    size_t n, cap;
};
void lines_release(struct lines *l);
void lines_add(struct lines *l, const struct line *line); /* takes its doc */
/* A file that is read by lines while it grows: open -> read … -> release. */
struct tail {
    int fd; /* held: what it says last can be read although it was removed; -1: none yet */
    off_t at;
    struct sbuf part; /* of a line whose end is not there yet */
};
/* Only the last tail_bytes, if that is not 0. 0 or -errno; only a plain file will do. */
int tail_open(struct tail *t, const char *path, off_t tail_bytes);
/* Calls fn for each whole line that is new. One longer than twice max is left out. 0 or -errno. */
int tail_read(struct tail *t, size_t max, void (*fn)(void *arg, const char *line, size_t len),
              void *arg);
/* Is there another file now at the path of the one that is held? */
bool tail_is_followed(const struct tail *t, const char *path);
void tail_release(struct tail *t);

/* Nanoseconds since 1970 of "2026-11-16T02:41:24.123456789Z", or with an offset; 0: it is none. */
int64_t line_time(const char *text);
AUTO_VALUE(struct lines, lines_release);

struct reading { /* the journal of one sandbox */
    char *ns, *id, *path;
    bool alive; /* its shim is */
    struct tail tail;
    struct outputs *outputs;
    struct lines *out; /* while it is read */
};
struct readings {
    char *run_root;
    struct reading **v;
    size_t n, cap;
    bool with_output; /* of containers, too */
    int watch_fd;     /* borrowed; -1: none */
};
void readings_init(struct readings *r, const char *run_root);
void readings_release(struct readings *r);
AUTO_VALUE(struct readings, readings_release);
/* word as in shims_find; NULL: all. With a word, exactly one must match: ERR_NOT_FOUND names the
 * nearest, ERR_INVALID those that match. Repeated with NULL it adds what is new. */
int readings_add(struct readings *r, const char *word, struct err *err);
/* The same for the sandbox of a living shim, or of its container, else of one that is gone: then
 * *ret is NULL. Both are borrowed from shims. */
int readings_find(struct readings *r, const struct shims *shims, const char *word,
                  const struct shim **ret, const char **ret_container, struct err *err);
/* All that came since the last call, sorted. Caller releases. */
int readings_more(struct readings *r, struct lines *ret, struct err *err);
/* An inotify descriptor that is readable when there may be more. Caller closes, after release. */
int readings_watch(struct readings *r, int *ret_fd, struct err *err);
/* What the shim's document says of one of its containers: its output is read, too. One that was
 * added must be the only one. */
void readings_tell(struct readings *r, const json_t *container);
/* A sentence for each container (cid; NULL: all) whose output nobody keeps. */
void readings_untold(const struct readings *r, const char *cid, struct sbuf *out);
