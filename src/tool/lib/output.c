#include "tool/lib/output.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "tool/lib/reading.h"
#include "tool/lib/shims.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#define TAIL_BYTES (1 << 20) /* read of each file at first */
#define WHOLE_MAX 65536u     /* bytes of a line that consists of parts */

/* A container. Of several with one name, each wrote the output after its own line in the journal.
 */
struct writer {
    char *cid, *pod, *name;
    char *uri; /* its stdout as in the request; "": it has none */
    char *dir; /* its pod's log directory; "": unknown */
    int64_t since_ns;
};
struct output {
    char *path;
    char *pod, *name; /* a CRI log of these; NULL: a plain file */
    char *cid;        /* of a plain file */
    struct tail tail;
    bool watched;
    struct sbuf whole[2]; /* of stdout and stderr: a line that came in parts */
    struct outputs *all;  /* contains this one */
};
struct outputs {
    const char *ns, *id;
    struct writer *writers;
    size_t n_writers, writers_cap;
    struct output **v;
    size_t n, cap;
    struct lines *out; /* while they are read */
};

struct outputs *outputs_new(const char *ns, const char *id)
{
    struct outputs *o = mem_new(struct outputs);

    *o = (struct outputs){ .ns = ns, .id = id };
    return o;
}

void outputs_free(struct outputs *o)
{
    for (size_t i = 0; o && i < o->n_writers; i++) {
        free(o->writers[i].cid);
        free(o->writers[i].pod);
        free(o->writers[i].name);
        free(o->writers[i].uri);
        free(o->writers[i].dir);
    }
    for (size_t i = 0; o && i < o->n; i++) {
        free(o->v[i]->path);
        free(o->v[i]->pod);
        free(o->v[i]->name);
        free(o->v[i]->cid);
        tail_release(&o->v[i]->tail);
        sbuf_release(&o->v[i]->whole[0]);
        sbuf_release(&o->v[i]->whole[1]);
        free(o->v[i]);
    }
    if (o) {
        free(o->writers);
        free(o->v);
    }
    free(o);
}

/* keys: of cid, pod and log directory. */
static void learn(struct outputs *o, const json_t *doc, const char *const keys[3], int64_t since_ns)
{
    const char *cid = doc_text(doc, keys[0]), *uri = doc_text(doc, "stdout");

    for (size_t i = 0; i < o->n_writers; i++) {
        struct writer *known = &o->writers[i];

        if (!str_eq(known->cid, cid))
            continue;
        if (known->since_ns == 0)
            known->since_ns = since_ns;
        return;
    }
    if (!uri[0] && !doc_text(doc, keys[2])[0])
        return; /* it is being created; the journal names its output later */
    o->writers = mem_grow(o->writers, o->n_writers, &o->writers_cap, sizeof(*o->writers));
    o->writers[o->n_writers++] = (struct writer){ .cid = str_dup(cid),
                                                  .pod = str_dup(doc_text(doc, keys[1])),
                                                  .name = str_dup(doc_text(doc, "name")),
                                                  .uri = str_dup(uri),
                                                  .dir = str_dup(doc_text(doc, keys[2])),
                                                  .since_ns = since_ns };
}

void outputs_add(struct outputs *o, const struct line *line)
{
    static const char *const keys[] = { "cid", "pod-id", "log-directory" };

    learn(o, line->doc, keys, line->at_ns);
}

void outputs_tell(struct outputs *o, const json_t *container)
{
    static const char *const keys[] = { "id", "pod", "log_directory" };

    learn(o, container, keys, 0);
}

/* ---- which files */

static const char *dir_of(const struct outputs *o, const char *pod)
{
    for (size_t i = o->n_writers; i-- > 0;)
        if (o->writers[i].dir[0] == '/' && str_eq(o->writers[i].pod, pod))
            return o->writers[i].dir;
    return NULL;
}

static const char *plain_path(const struct writer *w)
{
    return str_starts(w->uri, "file://") ? w->uri + strlen("file://") : NULL;
}

static bool is_cri(const struct outputs *o, const struct writer *w)
{
    return w->name[0] && w->name[0] != '.' && !strchr(w->name, '/') && dir_of(o, w->pod);
}

static bool is_known(const struct outputs *o, const char *path)
{
    for (size_t i = 0; i < o->n; i++)
        if (str_eq(o->v[i]->path, path))
            return true;
    return false;
}

/* Adds the file if it exists and is a regular file. */
static void add_file(struct outputs *o, const struct writer *w, char *path, bool cri)
{
    struct stat st;

    if (is_known(o, path) || lstat(path, &st) < 0 || !S_ISREG(st.st_mode)) {
        free(path);
        return;
    }
    struct output *x = mem_new(struct output);

    *x = (struct output){ .path = path,
                          .pod = cri ? str_dup(w->pod) : NULL,
                          .name = cri ? str_dup(w->name) : NULL,
                          .cid = cri ? NULL : str_dup(w->cid),
                          .tail.fd = -1,
                          .all = o };
    o->v = mem_grow(o->v, o->n, &o->cap, sizeof(*o->v));
    o->v[o->n++] = x;
}

/* As the kubelet names them: <name>/<attempt>.log; others name them <name>.log. */
static void add_cri_files(struct outputs *o, const struct writer *w)
{
    AUTO_FREE char *dir = str_format("%s/%s", dir_of(o, w->pod), w->name);
    DIR *d = opendir(dir);

    add_file(o, w, str_format("%s.log", dir), true);
    for (struct dirent *e; d && (e = readdir(d));)
        if (str_ends(e->d_name, ".log"))
            add_file(o, w, str_format("%s/%s", dir, e->d_name), true);
    if (d)
        closedir(d);
}

static void find_files(struct outputs *o)
{
    for (size_t i = 0; i < o->n_writers; i++) {
        const struct writer *w = &o->writers[i];

        if (!w->uri[0])
            continue;
        if (is_cri(o, w))
            add_cri_files(o, w);
        else if (plain_path(w))
            add_file(o, w, str_dup(plain_path(w)), false);
    }
}

void outputs_untold(const struct outputs *o, const char *cid, struct sbuf *out)
{
    for (size_t i = 0; i < o->n_writers; i++) {
        const struct writer *w = &o->writers[i];
        bool driver = str_starts(w->uri, "binary://") || str_starts(w->uri, "binary-v2://");

        if (!w->uri[0] || (cid && !str_eq(cid, w->cid)) || is_cri(o, w) || plain_path(w))
            continue;
        sbuf_addf(out, "lcow has no copy of the output of %s: it was written to %s\n", w->cid,
                  driver ? "its log driver" : "its client (a FIFO)");
    }
}

/* ---- lines */

/* NULL: the line is of an earlier pod with the same directory. The list is not sorted: running
 * containers are added from the shim's document before all are added from its journal. */
static const struct writer *writer_at(const struct output *x, int64_t at)
{
    const struct writer *found = NULL;

    for (size_t i = 0; i < x->all->n_writers; i++) {
        const struct writer *w = &x->all->writers[i];

        if (x->cid && str_eq(w->cid, x->cid))
            return w;
        if (!x->cid && w->uri[0] && str_eq(w->pod, x->pod) && str_eq(w->name, x->name) &&
            w->since_ns <= at && (!found || w->since_ns >= found->since_ns))
            found = w;
    }
    return found;
}

static void put_line(struct outputs *o, const struct writer *w, int64_t at, const char *stream,
                     const char *text)
{
    AUTO_FREE char *safe = str_printable(text),
                   *name = str_printable(w->name[0] ? w->name : w->cid);
    char when[CLOCK_RFC3339_SIZE];

    clock_rfc3339((uint64_t)at, when);
    json_t *doc = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "time", when, "source", "output",
                            "cid", w->cid, "container", name, "stream", stream, "text", safe);

    if (!doc)
        return; /* an id that is not UTF-8 */
    lines_add(o->out, &(struct line){ .source = LINE_OUTPUT,
                                      .at_ns = at,
                                      .time = json_string_value(json_object_get(doc, "time")),
                                      .level = "",
                                      .text = json_string_value(json_object_get(doc, "text")),
                                      .ns = o->ns,
                                      .id = o->id,
                                      .doc = doc });
}

/* "2026-11-16T02:41:24.123456789Z stdout F text"; P instead of F: the line continues. */
static void add_cri_line(struct output *x, char *text)
{
    char *stream = strchr(text, ' '), *tag = stream ? strchr(stream + 1, ' ') : NULL;
    char *rest = tag ? strchr(tag + 1, ' ') : NULL;

    if (!rest)
        return;
    *stream++ = *tag++ = *rest++ = '\0';

    struct sbuf *whole = &x->whole[str_eq(stream, "stderr")];
    int64_t at = line_time(text);
    const struct writer *w = writer_at(x, at);

    if (!w)
        return;
    sbuf_adds(whole, rest);
    if (tag[0] == 'P' && whole->len < WHOLE_MAX)
        return;
    put_line(x->all, w, at, str_eq(stream, "stderr") ? "stderr" : "stdout", whole->data);
    whole->len = 0;
}

static void add_line(void *arg, const char *from, size_t len)
{
    struct output *x = arg;
    AUTO_FREE char *text = str_ndup(from, len);
    struct stat st;

    if (x->name) {
        add_cri_line(x, text);
        return;
    }

    const struct writer *w = writer_at(x, 0);

    /* A plain file has no times, so its modification time is used. */
    if (w && fstat(x->tail.fd, &st) == 0)
        put_line(x->all, w, (int64_t)st.st_mtim.tv_sec * (int64_t)NS_PER_S + st.st_mtim.tv_nsec,
                 "stdout", text);
}

void outputs_more(struct outputs *o, int watch_fd, struct lines *out)
{
    o->out = out;
    find_files(o);
    for (size_t i = 0; i < o->n; i++) {
        struct output *x = o->v[i];

        if (x->tail.fd < 0 && tail_open(&x->tail, x->path, TAIL_BYTES) < 0)
            continue;
        if (watch_fd >= 0 && !x->watched) /* on failure, the file is polled */
            x->watched = inotify_add_watch(watch_fd, x->path, IN_MODIFY) >= 0;
        (void)tail_read(&x->tail, WHOLE_MAX, add_line, x); /* on failure, the next call retries */
        /* The kubelet rotates logs that have grown too long. */
        if (tail_is_followed(&x->tail, x->path) && tail_open(&x->tail, x->path, 0) == 0) {
            x->watched = false;
            (void)tail_read(&x->tail, WHOLE_MAX, add_line, x);
        }
    }
}
