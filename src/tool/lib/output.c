#include "tool/lib/output.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "tool/lib/reading.h"
#include "tool/lib/shims.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TAIL_BYTES (1u << 20) /* of each file, at first */
#define READ_BYTES 65536u
#define WHOLE_MAX 65536u /* of a line that came in parts */

/* A container; of those of one name, each wrote what came after its own note. */
struct writer {
    char *cid, *pod, *name;
    char *uri; /* its stdout as in the request */
    int64_t since_ns;
};
struct output {
    char *path;
    char *pod, *name; /* a CRI log of these; NULL: a plain file */
    char *cid;        /* of a plain file */
    int fd;
    bool watched;
    off_t at;
    struct sbuf part, whole[2]; /* of a line whose end is not there yet; of stdout and stderr */
};
struct pod {
    char *id, *dir;
};
struct outputs {
    struct writer *writers;
    size_t n_writers, writers_cap;
    struct pod *pods;
    size_t n_pods, pods_cap;
    struct output *v;
    size_t n, cap;
};

struct outputs *outputs_new(void)
{
    return mem_new(struct outputs);
}

void outputs_free(struct outputs *o)
{
    if (!o)
        return;
    for (size_t i = 0; i < o->n_writers; i++) {
        free(o->writers[i].cid);
        free(o->writers[i].pod);
        free(o->writers[i].name);
        free(o->writers[i].uri);
    }
    for (size_t i = 0; i < o->n_pods; i++) {
        free(o->pods[i].id);
        free(o->pods[i].dir);
    }
    for (size_t i = 0; i < o->n; i++) {
        free(o->v[i].path);
        free(o->v[i].pod);
        free(o->v[i].name);
        free(o->v[i].cid);
        fd_close(o->v[i].fd);
        sbuf_release(&o->v[i].part);
        sbuf_release(&o->v[i].whole[0]);
        sbuf_release(&o->v[i].whole[1]);
    }
    free(o->writers);
    free(o->pods);
    free(o->v);
    free(o);
}

static struct writer *find_writer(struct outputs *o, const char *cid)
{
    for (size_t i = 0; i < o->n_writers; i++)
        if (str_eq(o->writers[i].cid, cid))
            return &o->writers[i];
    return NULL;
}

static void learn(struct outputs *o, const struct writer *w, const char *dir)
{
    struct writer *known = find_writer(o, w->cid);

    if (dir[0] == '/') {
        o->pods = mem_grow(o->pods, o->n_pods, &o->pods_cap, sizeof(*o->pods));
        o->pods[o->n_pods++] = (struct pod){ str_dup(w->pod), str_dup(dir) };
    }
    if (known && known->since_ns == 0)
        known->since_ns = w->since_ns;
    if (known || !w->uri[0])
        return; /* it has none */
    o->writers = mem_grow(o->writers, o->n_writers, &o->writers_cap, sizeof(*o->writers));
    o->writers[o->n_writers++] = (struct writer){ .cid = str_dup(w->cid),
                                                  .pod = str_dup(w->pod),
                                                  .name = str_dup(w->name),
                                                  .uri = str_dup(w->uri),
                                                  .since_ns = w->since_ns };
}

void outputs_note(struct outputs *o, const struct line *note)
{
    learn(o,
          &(struct writer){ .cid = (char *)doc_text(note->doc, "cid"),
                            .pod = (char *)doc_text(note->doc, "pod-id"),
                            .name = (char *)doc_text(note->doc, "name"),
                            .uri = (char *)doc_text(note->doc, "stdout"),
                            .since_ns = note->at_ns },
          doc_text(note->doc, "log-directory"));
}

void outputs_tell(struct outputs *o, const json_t *container)
{
    learn(o,
          &(struct writer){ .cid = (char *)doc_text(container, "id"),
                            .pod = (char *)doc_text(container, "pod"),
                            .name = (char *)doc_text(container, "name"),
                            .uri = (char *)doc_text(container, "stdout") },
          doc_text(container, "log_directory"));
}

/* ---- which files */

static const char *dir_of(const struct outputs *o, const char *pod)
{
    for (size_t i = o->n_pods; i-- > 0;)
        if (str_eq(o->pods[i].id, pod))
            return o->pods[i].dir;
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
        if (str_eq(o->v[i].path, path))
            return true;
    return false;
}

/* Only what is there, and a plain file. */
static void add_file(struct outputs *o, const struct writer *w, char *path, bool cri)
{
    struct stat st;

    if (is_known(o, path) || lstat(path, &st) < 0 || !S_ISREG(st.st_mode)) {
        free(path);
        return;
    }
    o->v = mem_grow(o->v, o->n, &o->cap, sizeof(*o->v));
    o->v[o->n++] = (struct output){ .path = path,
                                    .pod = cri ? str_dup(w->pod) : NULL,
                                    .name = cri ? str_dup(w->name) : NULL,
                                    .cid = cri ? NULL : str_dup(w->cid),
                                    .fd = -1 };
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
        bool driver = str_starts(w->uri, "binary://");

        if ((cid && !str_eq(cid, w->cid)) || is_cri(o, w) || plain_path(w))
            continue;
        sbuf_addf(out, "the output of %s goes to %s; nobody else keeps it\n", w->cid,
                  driver ? "its log driver" : "its client (a FIFO)");
    }
}

/* ---- lines */

/* NULL: of a pod before this one, in the same directory. They are in no order: a shim tells of
 * those that live before its journal tells of all. */
static const struct writer *writer_at(const struct outputs *o, const struct output *x, int64_t at)
{
    const struct writer *found = NULL;

    for (size_t i = 0; i < o->n_writers; i++) {
        const struct writer *w = &o->writers[i];

        if (x->cid && str_eq(w->cid, x->cid))
            return w;
        if (!x->cid && str_eq(w->pod, x->pod) && str_eq(w->name, x->name) && w->since_ns <= at &&
            (!found || w->since_ns >= found->since_ns))
            found = w;
    }
    return found;
}

static void put_line(struct readings *r, const struct writer *w, int64_t at, const char *stream,
                     const char *text, const char *ns, const char *id, struct lines *out)
{
    AUTO_FREE char *safe = str_printable(text),
                   *name = str_printable(w->name[0] ? w->name : w->cid);
    time_t s = (time_t)(at / (int64_t)NS_PER_S);
    char when[48];
    struct tm tm;

    gmtime_r(&s, &tm);
    size_t n = strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof(when) - n, ".%09dZ", (int)(at % (int64_t)NS_PER_S));

    json_t *doc = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "time", when, "source", "output",
                            "cid", w->cid, "container", name, "stream", stream, "text", safe);

    if (!doc)
        return; /* an id that is no UTF-8 */
    lines_add(out, &(struct line){ .source = LINE_OUTPUT,
                                   .at_ns = at,
                                   .time = json_string_value(json_object_get(doc, "time")),
                                   .level = "",
                                   .text = json_string_value(json_object_get(doc, "text")),
                                   .ns = ns,
                                   .id = id,
                                   .doc = doc,
                                   .order = r->order++ });
}

/* "2026-11-16T02:41:24.123456789Z stdout F text"; P: it goes on. */
static void add_cri_line(struct outputs *o, struct output *x, struct readings *r, char *text,
                         const char *ns, const char *id, struct lines *out)
{
    char *stream = strchr(text, ' '), *tag = stream ? strchr(stream + 1, ' ') : NULL;
    char *rest = tag ? strchr(tag + 1, ' ') : NULL;

    if (!rest)
        return;
    *stream++ = *tag++ = *rest++ = '\0';

    struct sbuf *whole = &x->whole[str_eq(stream, "stderr")];
    int64_t at = line_time(text);
    const struct writer *w = writer_at(o, x, at);

    if (!w)
        return;
    sbuf_adds(whole, rest);
    if (tag[0] == 'P' && whole->len < WHOLE_MAX)
        return;
    put_line(r, w, at, str_eq(stream, "stderr") ? "stderr" : "stdout", whole->data, ns, id, out);
    whole->len = 0;
}

static void add_line(struct outputs *o, struct output *x, struct readings *r, const char *from,
                     size_t len, const char *ns, const char *id, struct lines *out)
{
    AUTO_FREE char *text = str_ndup(from, len);
    struct stat st;

    if (x->name) {
        add_cri_line(o, x, r, text, ns, id, out);
        return;
    }

    const struct writer *w = writer_at(o, x, 0);

    /* Such a file tells no times: the last that something was written to it. */
    if (w && fstat(x->fd, &st) == 0)
        put_line(r, w, (int64_t)st.st_mtim.tv_sec * (int64_t)NS_PER_S + st.st_mtim.tv_nsec,
                 "stdout", text, ns, id, out);
}

/* As far as it goes now: there may be one who writes faster than we read. */
static void read_rest(struct outputs *o, struct output *x, struct readings *r, const char *ns,
                      const char *id, struct lines *out)
{
    struct stat st;
    ssize_t n;

    if (fstat(x->fd, &st) < 0)
        return;
    if (st.st_size < x->at) { /* somebody has emptied it */
        x->at = 0;
        x->part.len = 0;
    }
    while (x->at < st.st_size &&
           (n = pread(x->fd, sbuf_room(&x->part, READ_BYTES), READ_BYTES, x->at)) > 0) {
        const char *from, *nl;

        x->at += n;
        x->part.len += (size_t)n;
        from = x->part.data;
        while ((nl = memchr(from, '\n', x->part.len - (size_t)(from - x->part.data)))) {
            add_line(o, x, r, from, (size_t)(nl - from), ns, id, out);
            from = nl + 1;
        }
        sbuf_consume(&x->part, (size_t)(from - x->part.data));
        if (x->part.len > 2 * WHOLE_MAX)
            x->part.len = 0;
    }
}

static int open_at(struct output *x, bool tail)
{
    struct stat st;

    fd_close(x->fd);
    x->fd = open(x->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    x->at = 0;
    x->part.len = 0;
    if (x->fd < 0 || fstat(x->fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        fd_close(TAKE_FD(x->fd));
        return -1;
    }
    if (tail && st.st_size > (off_t)TAIL_BYTES) {
        char c = ' ';

        x->at = st.st_size - (off_t)TAIL_BYTES;
        while (c != '\n' && pread(x->fd, &c, 1, x->at) == 1) /* not from the midst of a line */
            x->at++;
    }
    x->watched = false;
    return 0;
}

/* The kubelet renames what has grown too long. */
static bool is_followed(const struct output *x)
{
    struct stat held, there;

    return fstat(x->fd, &held) < 0 || (stat(x->path, &there) == 0 && there.st_ino != held.st_ino);
}

void outputs_more(struct outputs *o, struct readings *r, const char *ns, const char *id,
                  int watch_fd, struct lines *out)
{
    find_files(o);
    for (size_t i = 0; i < o->n; i++) {
        struct output *x = &o->v[i];

        if (x->fd < 0 && open_at(x, true) < 0)
            continue;
        if (watch_fd >= 0 && !x->watched) /* a failure: it is looked at again in time */
            x->watched = inotify_add_watch(watch_fd, x->path, IN_MODIFY) >= 0;
        read_rest(o, x, r, ns, id, out);
        if (is_followed(x) && open_at(x, false) == 0)
            read_rest(o, x, r, ns, id, out);
    }
}
