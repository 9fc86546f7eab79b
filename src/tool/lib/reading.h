/* reading.h - the journals of this host's shims, running and exited, as lines in the order of time.
 * Reads files only, so it works even if a shim hangs or has exited.
 *
 * Life: readings_init -> add (which sandboxes) -> more (existing lines, then new ones) …
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
    const char *time; /* as in doc; borrowed, like the others */
    const char *level, *text;
    const char *ns, *id; /* of the sandbox */
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
    int fd; /* kept open, so that the last lines can be read after its removal; -1: not yet open */
    off_t at;
    struct sbuf part; /* the beginning of an incomplete line */
};
/* Opens a regular file; tail_bytes other than 0: only the last of it is read. 0 or -errno. */
int tail_open(struct tail *t, const char *path, off_t tail_bytes);
/* Calls fn for each new complete line. Skips lines longer than twice max. 0 or -errno. */
int tail_read(struct tail *t, size_t max, void (*fn)(void *arg, const char *line, size_t len),
              void *arg);
/* True if the path now names another file than the open one. */
bool tail_is_followed(const struct tail *t, const char *path);
void tail_release(struct tail *t);

/* Nanoseconds since 1970 of "2026-11-16T02:41:24.123456789Z", or with an offset; 0: not a time. */
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
    bool with_output; /* include the output of containers */
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
/* All new lines since the last call, sorted. Caller releases. */
int readings_more(struct readings *r, struct lines *ret, struct err *err);
/* An inotify descriptor that is readable when there may be new lines. Caller closes it after
 * release. */
int readings_watch(struct readings *r, int *ret_fd, struct err *err);
/* Adds the output of a container from the shim's document. Exactly one sandbox must have been
 * added. */
void readings_tell(struct readings *r, const json_t *container);
/* Adds a sentence for each container (cid; NULL: all) whose output is not available. */
void readings_untold(const struct readings *r, const char *cid, struct sbuf *out);
