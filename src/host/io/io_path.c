/* io_path.c - the strings of a request: their forms (docs/reference/containerd-contract.md §5.3),
 * opening paths, and copying to and from regular files.
 *
 * The paths come from a client: a thread opens them with a deadline, and checks the kind before,
 * since opening a device may have an effect. Reading or writing a file blocks, on a dead NFS
 * indefinitely: a thread does this as well, and the relay uses a pipe to it. */
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/waits.h"
#include "host/io/io_priv.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORM_MAX_BYTES (64 * 1024)
#define FORM_MAX_ARGS 512 /* keys and values */
#define OPEN_NS (10 * NS_PER_S)
#define PUMP_BYTES (16 * 1024)  /* on the thread's stack */
#define FIFO_BYTES (128 * 1024) /* of an output */
#define PUMP_AT_ONCE (1024 * 1024)

const char *const io_names[3] = { "stdin", "stdout", "stderr" };

/* --- forms --- */

static const struct {
    const char *scheme;
    enum io_kind kind;
} schemes[] = {
    { "fifo", IO_FIFO },         { "file", IO_FILE },         { "binary", IO_BINARY },
    { "binary-v2", IO_BINARY2 }, { "ttrpc+unix", IO_STREAM },
};

void io_form_release(struct io_form *f)
{
    free(TAKE_PTR(f->path));
    strv_release(&f->args);
    f->kind = IO_NONE;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Percent-decoding; in a query a plus is a blank. Caller frees. */
static int decode(const char *s, size_t n, bool query, char **ret, struct err *err)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    for (size_t i = 0; i < n; i++) {
        if (s[i] != '%') {
            sbuf_addc(&out, query && s[i] == '+' ? ' ' : s[i]);
            continue;
        }
        int high = i + 1 < n ? hex(s[i + 1]) : -1, low = i + 2 < n ? hex(s[i + 2]) : -1;

        if (high < 0 || low < 0 || high + low == 0)
            return err_set(
                err, ERR_INVALID,
                "invalid escape: \"%%\" must be followed by two hex digits other than 00");
        sbuf_addc(&out, (char)(high << 4 | low));
        i += 2;
    }
    *ret = sbuf_take(&out);
    return 0;
}

static bool has_key(const struct strv *args, const char *key)
{
    for (size_t i = 0; i < args->n; i += 2)
        if (str_eq(args->v[i], key))
            return true;
    return false;
}

/* k=v&k=v. Of a repeated key the first counts, as in containerd. */
static int parse_query(const char *query, struct strv *args, struct err *err)
{
    for (const char *p = query; *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t len = strcspn(p, "&"), key_len = strcspn(p, "=&");
        AUTO_FREE char *key = NULL, *value = NULL;

        if (len == 0)
            continue;
        if (args->n >= FORM_MAX_ARGS)
            return err_set(err, ERR_INVALID, "too many arguments: the maximum is %d arguments",
                           FORM_MAX_ARGS / 2);
        if (decode(p, key_len, true, &key, err) < 0)
            return -1;
        if (key_len < len && decode(p + key_len + 1, len - key_len - 1, true, &value, err) < 0)
            return -1;
        if (has_key(args, key))
            continue;
        strv_add(args, key);
        strv_add(args, value ? value : "");
    }
    return 0;
}

static int parse_stream_id(const char *query, struct strv *ret, struct err *err)
{
    AUTO(strv_release) struct strv args = { 0 };

    if (parse_query(query, &args, err) < 0)
        return -1;
    for (size_t i = 0; i < args.n; i += 2)
        if (str_eq(args.v[i], "streaming_id") && *args.v[i + 1]) {
            strv_add(ret, args.v[i + 1]);
            return 0;
        }
    return err_set(err, ERR_INVALID, "streaming_id is missing");
}

static int parse_uri(const char *text, size_t scheme_len, struct io_form *f, struct err *err)
{
    const char *rest = text + scheme_len + 1;

    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (strlen(schemes[i].scheme) == scheme_len &&
            strncasecmp(text, schemes[i].scheme, scheme_len) == 0)
            f->kind = schemes[i].kind;
    if (f->kind == IO_NONE && memchr(text, '+', scheme_len))
        return err_set(err, ERR_UNIMPLEMENTED, "unsupported stream: must be ttrpc+unix://");
    if (f->kind == IO_NONE)
        return err_set(err, ERR_INVALID,
                       "unknown scheme: must be a path, fifo://, file://, binary:// or "
                       "ttrpc+unix://");
    if (!str_starts(rest, "///"))
        return err_set(err, ERR_INVALID, "must have an absolute path: %.*s:///…", (int)scheme_len,
                       text);
    rest += 2;

    size_t path_len = strcspn(rest, "?#");
    const char *query = rest[path_len] == '?' ? rest + path_len + 1 : "";
    AUTO_FREE char *plain = str_ndup(query, strcspn(query, "#"));

    if (decode(rest, path_len, false, &f->path, err) < 0)
        return -1;
    if (f->kind == IO_STREAM)
        return parse_stream_id(plain, &f->args, err);
    return io_form_is_driver(f) ? parse_query(plain, &f->args, err) : 0;
}

int io_form_parse(const char *text, struct io_form *ret, struct err *err)
{
    struct io_form f = { 0 };
    size_t scheme = 0;

    if (!text || !*text) {
        *ret = f;
        return 0;
    }
    if (strnlen(text, FORM_MAX_BYTES + 1) > FORM_MAX_BYTES)
        return err_set(err, ERR_INVALID, "%.*s… is longer than %d bytes", 40, text, FORM_MAX_BYTES);
    while (isalnum((unsigned char)text[scheme]) ||
           (scheme > 0 && strchr("+-.", text[scheme]) && text[scheme] != '\0'))
        scheme++;
    if (text[0] == '/') {
        f.kind = IO_PATH;
        f.path = str_dup(text);
    } else if (scheme == 0 || text[scheme] != ':') {
        return err_set(err, ERR_INVALID, "%.*s: must be an absolute path or a URI", IO_NAME_SHOWN,
                       text);
    } else if (parse_uri(text, scheme, &f, err) < 0) {
        io_form_release(&f);
        return err_wrap(err, "%.*s", IO_NAME_SHOWN, text);
    }
    *ret = f;
    return 0;
}

/* --- opening --- */

struct opening {
    const char *path[3]; /* NULL: nothing to open. The thread has copies (OFFLOAD) */
    enum io_kind kind[3];
    struct io_opened opened[3];
    bool same; /* both outputs name the same path */
};

static void close_opened(void *job)
{
    struct opening *j = job;

    for (int i = 0; i < 3; i++) {
        fd_close_later(j->opened[i].fd);
        fd_close_later(j->opened[i].held);
    }
}

/* A missing path is the client's mistake: ERR_INVALID. containerd would interpret ERR_NOT_FOUND as
 * a missing task. */
static int bad_path(struct err *err, int errnum, const char *path)
{
    err_sys(err, errnum, "open %.*s", IO_NAME_SHOWN, path);
    if (errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == ENAMETOOLONG ||
        errnum == EISDIR || errnum == ENXIO)
        err->code = ERR_INVALID;
    return -1;
}

int io_reopen(int fd, int flags)
{
    char path[40];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    fd = open(path, flags | O_CLOEXEC | O_NOCTTY);
    return fd < 0 ? -errno : fd;
}

/* The kernel does not fill each page that it writes to: at worst every second byte is lost. So much
 * takes what a FIFO of the usual size has, 64 KiB, in parts of any size. */
static void widen(int fifo)
{
    if (fcntl(fifo, F_GETPIPE_SZ) < FIFO_BYTES)
        (void)fcntl(fifo, F_SETPIPE_SZ, FIFO_BYTES); /* a limit of the host's: it stays as it is */
}

/* The shim also keeps the unused end open, so that clients may close and reopen theirs. The reading
 * end is opened first, since without it the writing end cannot be opened. */
static int open_fifo(int which, int seen, const char *path, struct io_opened *o, struct err *err)
{
    AUTO_FD int reader = io_reopen(seen, O_RDONLY | O_NONBLOCK);

    if (reader < 0)
        return bad_path(err, -TAKE_FD(reader), path);

    int writer = io_reopen(seen, O_WRONLY | O_NONBLOCK);

    if (writer < 0)
        return bad_path(err, -writer, path);
    if (which != 0)
        widen(writer);
    o->fd = which == 0 ? TAKE_FD(reader) : writer;
    o->held = which == 0 ? writer : TAKE_FD(reader);
    return 0;
}

static int open_file(int which, int seen, const char *path, struct io_opened *o, struct err *err)
{
    int fd = io_reopen(seen, which == 0 ? O_RDONLY : O_WRONLY | O_APPEND);

    if (fd < 0)
        return bad_path(err, -fd, path);
    o->fd = fd;
    return 0;
}

/* Creates a file:// for output with its directories. Returns an O_PATH descriptor, or -1. */
static int make_file(const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *dir = str_ndup(path, (size_t)(slash - path));
    int r = *dir ? dir_make(dir, 0755) : 0;

    if (r < 0)
        return bad_path(err, -r, dir);

    /* O_NONBLOCK: the path may have become a FIFO. */
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);

    if (fd < 0)
        return bad_path(err, errno, path);
    return fd;
}

static int open_one(int which, enum io_kind kind, const char *path, struct io_opened *o,
                    struct err *err)
{
    AUTO_FD int seen = open(path, O_PATH | O_CLOEXEC);
    struct stat st;

    if (seen < 0 && errno == ENOENT && kind == IO_FILE && which != 0) {
        seen = make_file(path, err);
        if (seen < 0)
            return -1;
    }
    if (seen < 0 || fstat(seen, &st) < 0)
        return bad_path(err, errno, path);
    if (S_ISFIFO(st.st_mode) && kind != IO_FILE)
        return open_fifo(which, seen, path, o, err);
    if (S_ISREG(st.st_mode) && kind != IO_FIFO)
        return open_file(which, seen, path, o, err);
    return err_set(err, ERR_INVALID, "%.*s is %s", IO_NAME_SHOWN, path,
                   kind == IO_FIFO   ? "not a FIFO"
                   : kind == IO_FILE ? "not a regular file"
                                     : "neither a FIFO nor a regular file");
}

static int open_all(void *job, struct err *err)
{
    struct opening *j = job;

    for (int i = 0; i < 3; i++) {
        /* A file for both outputs is opened once. Opening a FIFO twice is harmless. */
        if (i == 2 && j->same && j->opened[1].held < 0)
            j->opened[2].shared = true;
        else if (j->path[i] && open_one(i, j->kind[i], j->path[i], &j->opened[i], err) < 0)
            return err_wrap(err, "%s", io_names[i]);
    }
    return 0;
}

int io_paths_open(struct ctx *ctx, const struct io_form forms[3], struct io_opened ret[3],
                  struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, OPEN_NS);
    struct opening j = { 0 };
    bool any = false;

    for (int i = 0; i < 3; i++) {
        j.opened[i] = (struct io_opened){ .fd = -1, .held = -1 };
        j.kind[i] = forms[i].kind;
        if (forms[i].kind >= IO_PATH && forms[i].kind <= IO_FILE)
            j.path[i] = forms[i].path;
        any = any || j.path[i];
    }
    j.same = j.path[1] && j.kind[1] == j.kind[2] && str_eq(j.path[1], j.path[2]);
    if (any && OFFLOAD(&limited, open_all, &j, 3, close_opened, "open stdio", err) < 0)
        return -1;
    memcpy(ret, j.opened, sizeof(j.opened));
    return 0;
}

/* --- regular files --- */

/* A failed write (full disk) must not block the process: the lost bytes are counted, and the next
 * write is tried again. */
static void to_file(struct io_pump *p, char *buf)
{
    for (size_t moved = 0; p->last || moved < PUMP_AT_ONCE;) {
        ssize_t n = read(p->from, buf, PUMP_BYTES);
        int r = 0;

        if (n < 0 && errno == EINTR)
            continue;
        p->ended = n == 0;
        if (n <= 0)
            return; /* EAGAIN: the pipe is empty */
        r = fd_write_full(p->to, buf, (size_t)n);
        if (r < 0) {
            p->lost += (uint64_t)n;
            p->failed = p->failed ? p->failed : -r;
        }
        moved += (size_t)n;
    }
}

/* What the pipe has no room for is read again later. */
static int from_file(struct io_pump *p, char *buf, struct err *err)
{
    for (size_t moved = 0; moved < PUMP_AT_ONCE;) {
        ssize_t n = read(p->from, buf, PUMP_BYTES), w;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, errno, "read");
        w = n ? write(p->to, buf, (size_t)n) : 0;
        p->ended = n == 0 || (w < 0 && errno != EAGAIN); /* or the process has closed its input */
        if (w < n && !p->ended && lseek(p->from, (w < 0 ? 0 : w) - n, SEEK_CUR) < 0)
            return err_sys(err, errno, "seek");
        if (w < n || p->ended)
            return 0;
        moved += (size_t)n;
    }
    return 0;
}

static int pump_main(void *job, struct err *err)
{
    struct io_pump *p = job;
    char buf[PUMP_BYTES];

    p->in_thread = true;
    if (p->last)
        (void)fcntl(p->from, F_SETFL, 0); /* blocks */
    if (p->which == 0)
        return from_file(p, buf, err);
    to_file(p, buf);
    return 0;
}

/* An abandoned thread, after io_free, writes the rest of the output. */
static void pump_drop(void *job)
{
    struct io_pump *p = job;

    if (p->in_thread && p->which > 0 && !p->ended) {
        p->last = true;
        (void)pump_main(p, &(struct err)ERR_INIT);
    }
    fd_close_later(p->from);
    fd_close_later(p->to);
}

/* Each thread is short, so that an upgrade need not wait for the end of the output. */
static int pump(struct io_pump *p, struct err *err)
{
    struct ctx *ctx = &p->io->rest;

    while (!p->ended) {
        p->in_thread = false;
        p->last = loop_io(ctx, WAIT_FILE_PIPE, err) < 0 ||
                  loop_wait_fd(ctx, p->which == 0 ? p->to : p->from,
                               p->which == 0 ? POLLOUT : POLLIN, WAIT_FILE_PIPE, err) < 0;
        if (p->last && p->which == 0)
            break;
        if (OFFLOAD(ctx, pump_main, p, 0, pump_drop, "copy a file of stdio", err) < 0)
            return -1;
    }
    p->in_thread = false;
    pump_drop(p);
    return 0;
}

static void pump_fiber(void *arg)
{
    struct io_pump *p = arg;
    struct io *io = p->io;
    struct err err = ERR_INIT;

    if (pump(p, &err) < 0 && !io->gone.fired)
        log_warn(&io->rest, "could not copy a file of stdio", F_ERR(&err));
    if (p->failed) {
        io->lost += p->lost;
        (void)err_sys(&err, p->failed, "write");
        log_warn(&io->rest, "output could not be written to its file", F_U("lost-bytes", p->lost),
                 F_ERR(&err));
    }
    if (p->which > 0)
        io_output_ended(io);
    io->pumps[p->which] = NULL;
    free(p);
    io_unref(io);
}

void io_pump_go(struct io_pump *p)
{
    io_ref(p->io);
    p->io->pumps[p->which] = p;
    p->io->outputs += p->which > 0;
    fiber_go(p->io->loop, pump_fiber, p, FIBER_IO_FILE " %s", p->io->id);
}

int io_pump_start(struct io *io, int which, int file_fd, int *ret, struct err *err)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
        fd_close_later(file_fd);
        return err_sys(err, errno, "create a pipe for a file of stdio");
    }

    struct io_pump *p = mem_new(struct io_pump);

    *p = (struct io_pump){ .io = io,
                           .which = which,
                           .from = which == 0 ? file_fd : fds[0],
                           .to = which == 0 ? fds[1] : file_fd };
    io_pump_go(p);
    *ret = which == 0 ? fds[0] : fds[1];
    return 0;
}
