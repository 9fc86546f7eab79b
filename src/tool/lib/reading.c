#include "tool/lib/reading.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "host/ledger/journal.h"
#include "tool/lib/output.h"
#include "tool/lib/shims.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 16384u
#define READ_BYTES 65536u

const char *const line_source_names[LINE_SOURCE_COUNT] = { "shim", "agent", "kernel", "event",
                                                           "output" };

/* ---- which */

static void reading_free(struct reading *x)
{
    free(x->ns);
    free(x->id);
    free(x->path);
    tail_release(&x->tail);
    outputs_free(x->outputs);
    free(x);
}

static bool is_known(const struct readings *r, const char *path)
{
    for (size_t i = 0; i < r->n; i++)
        if (str_eq(r->v[i]->path, path))
            return true;
    return false;
}

static void keep(struct readings *r, const struct journal_entry *e)
{
    struct reading *x = mem_new(struct reading);

    *x = (struct reading){ .ns = str_dup(e->ns),
                           .id = str_dup(e->id),
                           .path = str_dup(e->path),
                           .alive = e->alive,
                           .tail.fd = -1 };
    x->outputs = outputs_new(x->ns, x->id);
    r->v = mem_grow(r->v, r->n, &r->cap, sizeof(*r->v));
    r->v[r->n++] = x;
}

struct choice {
    struct readings *r;
    struct search search; /* .word NULL: all */
};

static int consider(void *arg, const struct journal_entry *e)
{
    struct choice *c = arg;

    if (!c->search.word) {
        if (!is_known(c->r, e->path))
            keep(c->r, e);
    } else if (search_offer(&c->search, e->ns, e->id)) {
        while (c->r->n > 0)
            reading_free(c->r->v[--c->r->n]);
        keep(c->r, e);
    }
    return 0;
}

int readings_add(struct readings *r, const char *word, struct err *err)
{
    struct choice c = { .r = r };
    struct err none = ERR_INIT;
    int result, found;

    if (!word)
        return journal_each(r->run_root, consider, &c, err);
    search_init(&c.search, word);
    result = journal_each(r->run_root, consider, &c, err);
    found = search_end(&c.search, "there is no log of a sandbox", ", but of ",
                       "running sandboxes: lcow ps", &none);
    if (result == 0 && found < 0)
        *err = none;
    return result < 0 ? -1 : found;
}

int readings_find(struct readings *r, const struct shims *shims, const char *word,
                  const struct shim **ret, const char **ret_container, struct err *err)
{
    struct err unknown = ERR_INIT;

    if (shims_find(shims, word, ret, ret_container, &unknown) == 0) {
        AUTO_FREE char *whole = str_format("%s/%s", (*ret)->ns, (*ret)->id);

        return readings_add(r, whole, err);
    }
    *ret = NULL;
    *ret_container = NULL;
    if (unknown.code != ERR_INVALID)
        return readings_add(r, word, err);
    *err = unknown;
    return -1;
}

void readings_init(struct readings *r, const char *run_root)
{
    *r = (struct readings){ .run_root = str_dup(run_root), .watch_fd = -1 };
}

void readings_release(struct readings *r)
{
    for (size_t i = 0; i < r->n; i++)
        reading_free(r->v[i]);
    free(r->v);
    free(r->run_root);
    *r = (struct readings){ 0 };
}

/* ---- one line */

int64_t line_time(const char *text)
{
    struct tm tm = { 0 }, zone = { 0 };
    const char *rest = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    int64_t ns = 0;

    if (!rest || tm.tm_year < 1700 - 1900 ||
        tm.tm_year > 2200 - 1900) /* out of the range of at_ns */
        return 0;
    if (*rest == '.')
        for (int64_t unit = NS_PER_S / 10; *++rest >= '0' && *rest <= '9'; unit /= 10)
            ns += (*rest - '0') * unit;
    (void)strptime(rest, "%z", &zone); /* "+01:00"; without an offset, UTC */
    return ((int64_t)timegm(&tm) - zone.tm_gmtoff) * (int64_t)NS_PER_S + ns;
}

static enum line_source source_of(const json_t *doc)
{
    const char *source = doc_text(doc, "source");

    if (json_object_get(doc, "event") && json_object_get(doc, "status"))
        return LINE_EVENT; /* journal_event(), serve.c */
    if (str_eq(source, "kernel"))
        return LINE_KERNEL;
    return str_eq(source, "guest") ? LINE_AGENT : LINE_SHIM;
}

void lines_release(struct lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        json_decref(l->v[i].doc);
    free(l->v);
    *l = (struct lines){ 0 };
}

void lines_add(struct lines *l, const struct line *line)
{
    l->v = mem_grow(l->v, l->n, &l->cap, sizeof(*l->v));
    l->v[l->n] = *line;
    l->v[l->n].order = l->n;
    l->n++;
}

static void add_line(void *arg, const char *text, size_t len)
{
    const struct reading *x = arg;
    AUTO(json_decref) json_t *doc = NULL;
    struct err ignored = ERR_INIT; /* an incomplete line: the shim was killed while writing it */

    if (js_parse(text, len, LINE_MAX_BYTES, &doc, &ignored) < 0 || !json_is_object(doc))
        return;

    struct line line = { .source = source_of(doc), .ns = x->ns, .id = x->id };
    const char *at = doc_text(doc, "at");

    line.time = at[0] ? at : doc_text(doc, "time");
    line.at_ns = line_time(line.time);
    line.level = doc_text(doc, "level");
    line.text =
        doc_text(doc, line.source == LINE_AGENT || line.source == LINE_KERNEL ? "text" : "msg");
    line.doc = TAKE_PTR(doc);
    if (line.source == LINE_SHIM && json_object_get(line.doc, "log-directory"))
        outputs_add(x->outputs, &line);
    lines_add(x->out, &line);
}

/* ---- what is new */

int tail_open(struct tail *t, const char *path, off_t tail_bytes)
{
    struct stat st;
    int r = 0;

    fd_close(t->fd);
    t->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    t->at = 0;
    t->part.len = 0;
    if (t->fd < 0 || fstat(t->fd, &st) < 0)
        r = -errno;
    else if (!S_ISREG(st.st_mode))
        r = -EINVAL;
    if (r < 0) {
        fd_close(TAKE_FD(t->fd));
    } else if (tail_bytes && st.st_size > tail_bytes) {
        char c = ' ';

        t->at = st.st_size - tail_bytes;
        while (c != '\n' && pread(t->fd, &c, 1, t->at) == 1) /* skip to the next line's start */
            t->at++;
    }
    return r;
}

/* Reads up to the current size only, since a writer may be faster than we read. */
int tail_read(struct tail *t, size_t max, void (*fn)(void *arg, const char *line, size_t len),
              void *arg)
{
    struct stat st;
    ssize_t n = 1;

    if (fstat(t->fd, &st) < 0)
        return -errno;
    if (st.st_size < t->at) { /* the file was truncated */
        t->at = 0;
        t->part.len = 0;
    }
    while (t->at < st.st_size && n > 0) {
        const char *from, *nl;

        n = pread(t->fd, sbuf_room(&t->part, READ_BYTES), READ_BYTES, t->at);
        if (n < 0)
            return -errno;
        t->at += n;
        t->part.len += (size_t)n;
        from = t->part.data;
        while ((nl = memchr(from, '\n', t->part.len - (size_t)(from - t->part.data)))) {
            fn(arg, from, (size_t)(nl - from));
            from = nl + 1;
        }
        sbuf_consume(&t->part, (size_t)(from - t->part.data));
        if (t->part.len > 2 * max)
            t->part.len = 0;
    }
    return 0;
}

bool tail_is_followed(const struct tail *t, const char *path)
{
    struct stat held, there;

    return fstat(t->fd, &held) < 0 || (stat(path, &there) == 0 && there.st_ino != held.st_ino);
}

void tail_release(struct tail *t)
{
    fd_close(t->fd);
    sbuf_release(&t->part);
}

static int read_one(struct reading *x, struct err *err)
{
    AUTO_FREE char *older = str_format("%s@1", x->path);
    int r = 0;

    if (x->tail.fd >= 0 || tail_open(&x->tail, older, 0) == 0)
        r = tail_read(&x->tail, LINE_MAX_BYTES, add_line, x);
    if (r == 0 && (x->tail.fd < 0 || tail_is_followed(&x->tail, x->path))) {
        r = tail_open(&x->tail, x->path, 0);
        if (r == 0)
            r = tail_read(&x->tail, LINE_MAX_BYTES, add_line, x);
        else if (r == -ENOENT)
            r = 0; /* the shim removes its journal when it exits without an error */
    }
    return r < 0 ? err_sys(err, -r, "read %s", x->path) : 0;
}

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    if (x->at_ns != y->at_ns)
        return x->at_ns < y->at_ns ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

int readings_more(struct readings *r, struct lines *ret, struct err *err)
{
    *ret = (struct lines){ 0 };
    for (size_t i = 0; i < r->n; i++) {
        r->v[i]->out = ret;
        if (read_one(r->v[i], err) < 0) {
            lines_release(ret);
            return -1;
        }
        if (r->with_output)
            outputs_more(r->v[i]->outputs, r->watch_fd, ret);
    }
    if (ret->n > 0)
        qsort(ret->v, ret->n, sizeof(*ret->v), by_time);
    return 0;
}

int readings_watch(struct readings *r, int *ret_fd, struct err *err)
{
    AUTO_FREE char *dir = str_format("%s/.journal", r->run_root);
    AUTO_FD int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    if (fd < 0)
        return err_sys(err, errno, "inotify");
    (void)dir_make(dir, 0700); /* otherwise the first shim creates it */
    if (inotify_add_watch(fd, dir, IN_MODIFY | IN_CREATE | IN_MOVED_TO | IN_DELETE) < 0)
        return err_sys(err, errno, "watch %s", dir);
    *ret_fd = r->watch_fd = TAKE_FD(fd);
    return 0;
}

void readings_tell(struct readings *r, const json_t *container)
{
    if (r->n == 1)
        outputs_tell(r->v[0]->outputs, container);
}

void readings_untold(const struct readings *r, const char *cid, struct sbuf *out)
{
    for (size_t i = 0; i < r->n; i++)
        outputs_untold(r->v[i]->outputs, cid, out);
}
