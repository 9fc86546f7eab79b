/* ledger.c - the file: writing, reading, locking. */
#include "base/err.h"
#include "base/fd.h"
#include "host/ledger/ledger_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES (16 * 1024) /* more than a line */
#define LOCK_TRIES 16

_Static_assert(READ_BYTES > LEDGER_WHAT_MAX + 128, "a line must fit into the buffer");

/* A line is
 *     <crc32 of the rest, 8 hex digits> + <id> <kind> <what>\n     about to be created
 *     <crc32 of the rest, 8 hex digits> - <id>\n                   released
 * Ids increase. Each line is one write(), so that only the last line can be incomplete. */

/* Names in the files; files of older versions use them as well. */
static const char *const kind_names[LEDGER_KIND_COUNT] = {
    [LEDGER_PROCESS] = "process", [LEDGER_INTERFACE] = "link", [LEDGER_INGRESS] = "ingress",
    [LEDGER_FILE] = "file",       [LEDGER_DIR] = "dir",        [LEDGER_CGROUP] = "cgroup",
};

const char *ledger_kind_name(enum ledger_kind k)
{
    return (unsigned)k < LEDGER_KIND_COUNT ? kind_names[k] : "unknown";
}

static int parse_kind(const char *name, size_t len)
{
    for (int k = 0; k < LEDGER_KIND_COUNT; k++)
        if (strlen(kind_names[k]) == len && memcmp(kind_names[k], name, len) == 0)
            return k;
    return -EINVAL;
}

uint32_t ledger_crc(const char *data, size_t len)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < len; i++) {
        crc ^= (uint8_t)data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (UINT32_C(0xedb88320) & -(crc & 1));
    }
    return ~crc;
}

/* --- the holder of a ledger ---
 *
 * A ledger is held by its owner as long as that process runs, or by a visitor (gc, delete) while it
 * cleans up. Both lock the first byte of the file. A visitor also locks the second byte, so that
 * others can tell the two apart and wait for a visitor. Readers lock nothing. */

static const off_t lock_bytes[] = { [LEDGER_OWNER] = 1, [LEDGER_VISITOR] = 2 };

static struct flock range(short type, off_t start, off_t len)
{
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };
}

/* Who holds the lock on an open ledger. */
static int holder_of(int fd, enum ledger_holder *ret)
{
    struct flock there = range(F_WRLCK, 0, 1);

    if (fcntl(fd, F_OFD_GETLK, &there) < 0)
        return -errno;
    *ret = there.l_type == F_UNLCK                     ? LEDGER_NOBODY
           : there.l_len == lock_bytes[LEDGER_VISITOR] ? LEDGER_VISITOR
                                                       : LEDGER_OWNER;
    return 0;
}

static int own(int fd)
{
    struct flock want = range(F_WRLCK, 0, lock_bytes[LEDGER_OWNER]);

    return fcntl(fd, F_OFD_SETLK, &want) < 0 ? -errno : 0;
}

/* True if the open file still has that name. Another holder may have removed it before we locked
 * it, or its owner may have replaced it by a compacted one. */
static bool is_there(const char *path, int fd)
{
    struct stat ours, now;

    return fstat(fd, &ours) == 0 && stat(path, &now) == 0 && now.st_ino == ours.st_ino &&
           now.st_dev == ours.st_dev;
}

int ledger_holder(const char *dir, enum ledger_holder *ret)
{
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);

    for (int tries = 0; tries < LOCK_TRIES; tries++) {
        AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        int r = fd < 0 ? -errno : holder_of(fd, ret);

        if (r < 0 || *ret != LEDGER_NOBODY || is_there(path, fd))
            return r;
    }
    return -EAGAIN;
}

int ledger_lock(const char *dir, int flags, enum ledger_holder as, int *ret_fd,
                enum ledger_holder *ret_holder)
{
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);

    for (int tries = 0; tries < LOCK_TRIES; tries++) {
        struct flock want = range(F_WRLCK, 0, lock_bytes[as]);
        AUTO_FD int fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | flags, 0600);

        if (fd < 0)
            return -errno;
        if (fcntl(fd, F_OFD_SETLK, &want) == 0) {
            if (!is_there(path, fd))
                continue;
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
        if (errno != EAGAIN && errno != EACCES)
            return -errno;

        int r = holder_of(fd, ret_holder);

        if (r < 0)
            return r;
        if (*ret_holder != LEDGER_NOBODY)
            return -EWOULDBLOCK;
    }
    return -EAGAIN;
}

int ledger_await_visitor(int fd)
{
    struct flock want = range(F_WRLCK, lock_bytes[LEDGER_OWNER],
                              lock_bytes[LEDGER_VISITOR] - lock_bytes[LEDGER_OWNER]);

    while (fcntl(fd, F_OFD_SETLKW, &want) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

/* --- reading --- */

/* The open records of a ledger. The file is read in pieces, and only open records are kept in
 * memory, whatever its length. {0} is empty. */
struct line {
    uint64_t id;
    uint8_t kind;
    char *what;
};
struct lines {
    struct line *v; /* ids increase */
    size_t n, cap;
    uint64_t last_id;
    size_t number, bad, first_bad; /* of lines */
};

/* Decimal digits up to a blank or the end; no sign, no leading zero. */
static int take_id(const char **p, const char *end, uint64_t *ret)
{
    uint64_t v = 0;
    const char *s = *p;

    if (s == end || *s < '1' || *s > '9')
        return -EINVAL;
    for (; s < end && *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *s - '0', &v))
            return -EINVAL;
    *p = s;
    *ret = v;
    return 0;
}

static struct line *find(struct lines *l, uint64_t id)
{
    size_t lo = 0, hi = l->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (l->v[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < l->n && l->v[lo].id == id ? &l->v[lo] : NULL;
}

static int take_created(struct lines *l, const char *p, const char *end)
{
    uint64_t id;
    const char *blank;
    int kind;

    if (take_id(&p, end, &id) < 0 || p == end || *p++ != ' ')
        return -EBADMSG;
    blank = memchr(p, ' ', (size_t)(end - p));
    if (!blank || (kind = parse_kind(p, (size_t)(blank - p))) < 0)
        return -EBADMSG;
    if (l->last_id >= id)
        return -EBADMSG;
    blank++;
    if (end - blank > LEDGER_WHAT_MAX || memchr(blank, '\0', (size_t)(end - blank)))
        return -EBADMSG;
    l->v = mem_grow(l->v, l->n, &l->cap, sizeof(*l->v));
    l->v[l->n++] = (struct line){ .id = id,
                                  .kind = (uint8_t)kind,
                                  .what = str_ndup(blank, (size_t)(end - blank)) };
    l->last_id = id;
    return 0;
}

static int take_released(struct lines *l, const char *p, const char *end)
{
    uint64_t id;
    struct line *of;

    if (take_id(&p, end, &id) < 0 || p != end)
        return -EBADMSG;
    of = find(l, id);
    if (!of)
        return -EBADMSG;
    free(of->what);
    memmove(of, of + 1, (size_t)(&l->v[l->n] - (of + 1)) * sizeof(*of));
    l->n--;
    return 0;
}

static int take_body(struct lines *l, const char *p, const char *end)
{
    char want[9];

    if (end - p < 12 || p[8] != ' ' || p[10] != ' ')
        return -EBADMSG;
    snprintf(want, sizeof(want), "%08" PRIx32, ledger_crc(p + 9, (size_t)(end - p - 9)));
    if (memcmp(want, p, 8) != 0)
        return -EBADMSG;
    if (p[9] == '+')
        return take_created(l, p + 11, end);
    if (p[9] == '-')
        return take_released(l, p + 11, end);
    return -EBADMSG;
}

/* end: the position of its line break. */
static void take_line(struct lines *l, const char *p, const char *end)
{
    l->number++;
    if (take_body(l, p, end) < 0 && l->bad++ == 0)
        l->first_bad = l->number;
}

/* Reads the complete lines of a piece. Returns the rest. If the file ends with such a rest, its
 * owner died while writing it, and nothing was created for it. */
static const char *take_lines(struct lines *l, const char *p, const char *end)
{
    for (const char *line_end; p < end && (line_end = memchr(p, '\n', (size_t)(end - p)));
         p = line_end + 1)
        take_line(l, p, line_end);
    return p;
}

static void lines_release_auto(struct lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].what);
    free(l->v);
}

/* From the beginning of the file. 0 or -errno. */
static int read_lines(struct lines *l, int fd)
{
    AUTO_FREE char *buf = mem_alloc(READ_BYTES);
    size_t have = 0;

    for (off_t at = 0;;) {
        ssize_t n = pread(fd, buf + have, READ_BYTES - have, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;
        at += n;
        have += (size_t)n;

        const char *rest = take_lines(l, buf, buf + have);

        have = (size_t)(buf + have - rest);
        /* Longer than any valid line: dropping its beginning makes the checksum fail. */
        if (have == READ_BYTES)
            have = 1;
        memmove(buf, rest, have);
    }
}

int ledger_read_fd(int fd, int (*fn)(void *arg, const struct ledger_record *), void *arg,
                   struct err *err)
{
    AUTO(lines_release) struct lines l = { 0 };
    int r = read_lines(&l, fd);

    if (r < 0)
        return err_sys(err, -r, "read");
    for (size_t i = l.n; i-- > 0;) {
        struct ledger_record record = { l.v[i].id, l.v[i].kind, l.v[i].what };

        if (fn(arg, &record) != 0)
            return 0;
    }
    if (l.bad == 0)
        return 0;
    return err_set(err, ERR_DATA_LOSS,
                   "%zu damaged ledger lines, the first is line %zu; their records are lost", l.bad,
                   l.first_bad);
}

int ledger_read(const char *dir, int (*fn)(void *arg, const struct ledger_record *), void *arg,
                struct err *err)
{
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return err_sys(err, errno, "open %s", path);
    return ledger_read_fd(fd, fn, arg, err) < 0 ? err_wrap(err, "%s", path) : 0;
}

/* --- writing --- */

/* Takes over the file of a dead owner if it has no open records; otherwise gc must run first. */
static int adopt(struct ledger *l, struct err *err)
{
    AUTO(lines_release) struct lines lines = { 0 };
    struct stat st;

    if (fstat(l->fd, &st) == 0 && st.st_size == 0)
        return 0; /* a new file: nothing here may fail, which would leave it behind */
    int r = read_lines(&lines, l->fd);

    if (r < 0)
        return err_sys(err, -r, "read %s", l->path);
    if (lines.bad > 0)
        return err_set(err, ERR_DATA_LOSS, "%s: line %zu is damaged; run 'lcow gc' first", l->path,
                       lines.first_bad);
    if (lines.n > 0)
        return err_set(err, ERR_STATE,
                       "%s still has %zu records of a dead owner; run 'lcow gc' first", l->path,
                       lines.n);
    if (ftruncate(l->fd, 0) < 0)
        return err_sys(err, errno, "truncate %s", l->path);
    return 0;
}

int ledger_create(const char *dir, struct ledger **ret, struct err *err)
{
    AUTO(ledger_close) struct ledger *l = mem_new(struct ledger);
    enum ledger_holder holder;
    int r = -ENOENT;

    l->fd = -1;
    l->compact_at = LEDGER_COMPACT_BYTES;
    l->dir = str_dup(dir);
    l->path = str_format("%s/" LEDGER_FILE_NAME, dir);
    /* Others may remove the empty directory before the file is in it; then it is created again. */
    for (int tries = 0; tries < 16 && r == -ENOENT; tries++) {
        r = dir_make(dir, 0700);
        if (r < 0 && r != -ENOENT) {
            AUTO_FREE char *parent = str_ndup(dir, (size_t)(strrchr(dir, '/') - dir));
            (void)rmdir(parent); /* it may have been created for this ledger only */
            return err_sys(err, -r, "create directory %s", dir);
        }
        if (r == 0)
            r = ledger_lock(dir, O_CREAT, LEDGER_OWNER, &l->fd, &holder);
    }
    if (r == -EWOULDBLOCK && holder == LEDGER_OWNER)
        return err_set(err, ERR_EXISTS, "%s is in use by a running owner", dir);
    if (r == -EWOULDBLOCK)
        return err_set(err, ERR_UNAVAILABLE, "%s is being cleaned up; retry", dir);
    if (r < 0)
        return err_sys(err, -r, "open %s", l->path);
    if (adopt(l, err) < 0)
        return -1;
    *ret = TAKE_PTR(l);
    return 0;
}

int ledger_resume(struct ledger *l)
{
    AUTO(lines_release) struct lines lines = { 0 };
    int r = read_lines(&lines, l->fd);

    if (r == 0 && lines.bad > 0)
        r = -EBADMSG;
    l->end = r == 0 ? lseek(l->fd, 0, SEEK_END) : 0;
    if (r < 0 || l->end < 0)
        return r < 0 ? r : -errno;
    for (size_t i = 0; i < lines.n; i++) {
        l->open = mem_grow(l->open, l->n_open, &l->cap_open, sizeof(*l->open));
        l->open[l->n_open++] = lines.v[i].id;
    }
    l->path = str_format("%s/" LEDGER_FILE_NAME, l->dir);
    l->compact_at = LEDGER_COMPACT_BYTES;
    return 0;
}

void ledger_close(struct ledger *l)
{
    if (!l)
        return;
    fd_close(l->fd);
    free(l->dir);
    free(l->path);
    free(l->open);
    free(l);
}

const char *ledger_dir(const struct ledger *l)
{
    return l->dir;
}

/* body: what follows the checksum, without line break. Caller frees. */
static char *make_line(const char *body)
{
    return str_format("%08" PRIx32 " %s\n", ledger_crc(body, strlen(body)), body);
}

static char *created_line(uint64_t id, enum ledger_kind kind, const char *what)
{
    AUTO_FREE char *body = str_format("+ %" PRIu64 " %s %s", id, kind_names[kind], what);

    return make_line(body);
}

static int append(struct ledger *l, const char *line, struct err *err)
{
    size_t len = strlen(line);
    ssize_t n;

    do
        n = write(l->fd, line, len);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)len) {
        l->end += n;
        return 0;
    }
    int why = n < 0 ? errno : ENOSPC;

    /* The next line must not follow an incomplete one. If truncating fails as well, every later
     * append fails in the same way, so that the incomplete line stays the last. */
    if (n > 0 && ftruncate(l->fd, l->end) < 0)
        why = errno;
    if (why == ENOSPC || why == EDQUOT || why == EFBIG)
        return err_because(err, REASON_DISK_FULL, ERR_EXHAUSTED,
                           "write a record to %s: no space left; free some there", l->path);
    return err_sys(err, why, "write a record to %s", l->path);
}

int ledger_check(enum ledger_kind kind, const char *what, struct err *err)
{
    if (strlen(what) > LEDGER_WHAT_MAX || strpbrk(what, "\r\n"))
        return err_set(err, ERR_INVALID, "invalid ledger record: %s of %zu bytes%s",
                       ledger_kind_name(kind), strlen(what),
                       strpbrk(what, "\r\n") ? " with line breaks" : "");
    if (kind == LEDGER_PROCESS)
        return 0;
    /* Root removes this path later, so it must not be ambiguous. */
    if (what[0] != '/' || what[1] == '\0' || what[1] == '/' || strstr(what, "/../") ||
        str_ends(what, "/..") || str_ends(what, "/"))
        return err_set(err, ERR_INVALID,
                       "invalid ledger record: \"%s\" is not a plain absolute path", what);
    return 0;
}

int ledger_add(struct ledger *l, enum ledger_kind kind, const char *what, uint64_t *ret_id,
               struct err *err)
{
    uint64_t id = l->last_id + 1;

    if (ledger_check(kind, what, err) < 0)
        return -1;
    AUTO_FREE char *line = created_line(id, kind, what);
    if (append(l, line, err) < 0)
        return -1;
    l->last_id = id;
    l->open = mem_grow(l->open, l->n_open, &l->cap_open, sizeof(*l->open));
    l->open[l->n_open++] = id;
    *ret_id = id;
    return 0;
}

/* --- compaction --- */

/* Reads all open records. Fails if the file contradicts the records in memory; then it is not
 * compacted. */
static int write_open(const struct ledger *l, int fd, off_t *ret_end)
{
    AUTO(lines_release) struct lines lines = { 0 };
    AUTO(sbuf_release) struct sbuf text = { 0 };
    int r = read_lines(&lines, l->fd);

    if (r < 0)
        return r;
    if (lines.bad > 0 || lines.n != l->n_open)
        return -EBADMSG;
    for (size_t i = 0; i < lines.n; i++) {
        AUTO_FREE char *line = created_line(lines.v[i].id, lines.v[i].kind, lines.v[i].what);
        sbuf_adds(&text, line);
    }
    *ret_end = (off_t)text.len;
    return fd_write_full(fd, text.data, text.len);
}

/* The new file is complete and locked before it gets the name, so the ledger always has an owner
 * and is complete. A process that has opened the old file sees that the name has another file now.
 */
static int replace(struct ledger *l, const char *path)
{
    AUTO_FD int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    off_t end = 0;
    int r = fd < 0 ? -errno : write_open(l, fd, &end);

    if (r == 0)
        r = own(fd);
    if (r == 0 && rename(path, l->path) < 0)
        r = -errno;
    if (r < 0)
        return r;
    fd_close(l->fd);
    l->fd = TAKE_FD(fd);
    l->end = end;
    return 0;
}

/* Compaction is optional, so a failure is ignored; it is retried at twice the length. */
static void compact(struct ledger *l)
{
    AUTO_FREE char *path = str_format("%s/" LEDGER_NEW_NAME, l->dir);

    (void)unlink(path); /* left by an owner that died during a compaction */
    if (replace(l, path) < 0)
        (void)unlink(path);
    l->compact_at = 2 * l->end < LEDGER_COMPACT_BYTES ? LEDGER_COMPACT_BYTES : 2 * l->end;
}

int ledger_forget(struct ledger *l, uint64_t id, struct err *err)
{
    size_t i = 0;

    while (i < l->n_open && l->open[i] != id)
        i++;
    if (i == l->n_open)
        return err_set(err, ERR_NOT_FOUND, "ledger %s has no open record %" PRIu64, l->path, id);
    AUTO_FREE char *body = str_format("- %" PRIu64, id), *line = make_line(body);
    if (append(l, line, err) < 0)
        return -1;
    memmove(&l->open[i], &l->open[i + 1], (l->n_open - i - 1) * sizeof(*l->open));
    l->n_open--;
    if (l->end >= l->compact_at)
        compact(l);
    return 0;
}

void ledger_drop_parent(const char *dir)
{
    AUTO_FREE char *parent = str_dup(dir);
    char *slash = strrchr(parent, '/');

    if (!slash || slash == parent)
        return;
    *slash = '\0';
    (void)rmdir(parent); /* fails if it has other directories or was removed, which is fine */
}

int ledger_finish(struct ledger *l, struct err *err)
{
    if (l->n_open > 0)
        return err_set(err, ERR_STATE, "ledger %s still has %zu open records", l->path, l->n_open);
    AUTO_FREE char *other = str_format("%s/" LEDGER_NEW_NAME, l->dir);
    (void)unlink(other); /* left by an owner that died during a compaction */
    if (unlink(l->path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", l->path);
    if (rmdir(l->dir) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove directory %s", l->dir);
    ledger_drop_parent(l->dir);
    return 0;
}
