#include "host/own/ledger.h"
#include "base/err.h"
#include "base/fd.h"
#include "host/own/ledger_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A line is
 *     <crc32 of the rest, 8 hex digits> + <id> <kind> <what>\n     about to be created
 *     <crc32 of the rest, 8 hex digits> - <id>\n                   taken back
 * Ids rise. One write() each, so that only the last line can be torn. */

struct ledger {
    char *dir, *path;
    int fd;
    uint64_t last_id;
    uint64_t *open; /* ids of open records, rising */
    size_t n_open, cap_open;
    off_t end; /* of the last whole line */
};

static const char *const kind_names[LEDGER_KIND_COUNT] = {
    [LEDGER_PROCESS] = "process", [LEDGER_MOUNT] = "mount",     [LEDGER_NETNS] = "netns",
    [LEDGER_LINK] = "link",       [LEDGER_INGRESS] = "ingress", [LEDGER_FILE] = "file",
    [LEDGER_DIR] = "dir",         [LEDGER_CGROUP] = "cgroup",
};

const char *ledger_kind_name(enum ledger_kind k)
{
    return (unsigned)k < LEDGER_KIND_COUNT ? kind_names[k] : "unknown";
}

int ledger_kind_parse(const char *name, size_t len)
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

static int count_open(void *arg, const struct ledger_record *record)
{
    (void)record;
    ++*(size_t *)arg;
    return 0;
}

/* A file that a dead owner left: empty of open records it is ours, else gc must come first. */
static int adopt(struct ledger *l, struct err *err)
{
    AUTO_FREE char *text = NULL;
    struct stat st;
    size_t len, n = 0;

    if (fstat(l->fd, &st) == 0 && st.st_size == 0)
        return 0; /* ours from the beginning: nothing here may fail and leave it behind */
    int r = file_read_all(l->path, LEDGER_MAX_BYTES, &text, &len);

    if (r < 0)
        return err_sys(err, -r, "read %s", l->path);
    if (ledger_parse(text, len, count_open, &n, err) < 0)
        return err_wrap(err, "read %s", l->path);
    if (n > 0)
        return err_set(err, ERR_STATE,
                       "%s still names %zu things of an owner that died; run 'lcow gc' first",
                       l->path, n);
    if (ftruncate(l->fd, 0) < 0)
        return err_sys(err, errno, "empty %s", l->path);
    return 0;
}

int ledger_create(const char *dir, struct ledger **ret, struct err *err)
{
    AUTO(ledger_close) struct ledger *l = mem_new(struct ledger);
    enum ledger_holder holder;
    int r = -ENOENT;

    l->fd = -1;
    l->dir = str_dup(dir);
    l->path = str_format("%s/" LEDGER_FILE_NAME, dir);
    /* Others remove empty directories, perhaps just before something is in it: make it again. */
    for (int tries = 0; tries < 16 && r == -ENOENT; tries++) {
        r = dir_make(dir, 0700);
        if (r < 0 && r != -ENOENT)
            return err_sys(err, -r, "make directory %s", dir);
        if (r == 0)
            r = ledger_lock(dir, O_CREAT, LEDGER_OWNER, &l->fd, &holder);
    }
    if (r == -EWOULDBLOCK && holder == LEDGER_OWNER)
        return err_set(err, ERR_EXISTS, "%s is in use by a living owner", dir);
    if (r == -EWOULDBLOCK)
        return err_set(err, ERR_UNAVAILABLE, "%s is being cleaned up; try again", dir);
    if (r < 0)
        return err_sys(err, -r, "open %s", l->path);
    if (adopt(l, err) < 0)
        return -1;
    *ret = TAKE_PTR(l);
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

size_t ledger_open_count(const struct ledger *l)
{
    return l->n_open;
}

/* body: what follows the checksum, without line break. */
static int append(struct ledger *l, const char *body, struct err *err)
{
    AUTO_FREE char *line = str_format("%08" PRIx32 " %s\n", ledger_crc(body, strlen(body)), body);
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

    /* Half a line must not stand before the next one. If that fails too, the line is the last
     * one for good: every later append fails the same way. */
    if (n > 0 && ftruncate(l->fd, l->end) < 0)
        why = errno;
    if (why == ENOSPC || why == EDQUOT || why == EFBIG)
        return err_set(err, ERR_EXHAUSTED, "record in %s: no space left; free some there", l->path);
    return err_sys(err, why, "record in %s", l->path);
}

int ledger_check(enum ledger_kind kind, const char *what, struct err *err)
{
    if (strlen(what) > LEDGER_WHAT_MAX || strpbrk(what, "\r\n"))
        return err_set(err, ERR_INVALID, "ledger: a %s record of %zu bytes%s is not possible",
                       ledger_kind_name(kind), strlen(what),
                       strpbrk(what, "\r\n") ? " with line breaks" : "");
    if (kind == LEDGER_PROCESS)
        return 0;
    /* What is removed later as root must be named beyond doubt. */
    if (what[0] != '/' || what[1] == '\0' || what[1] == '/' || strstr(what, "/../") ||
        str_ends(what, "/..") || str_ends(what, "/"))
        return err_set(err, ERR_INVALID, "ledger: \"%s\" is no plain absolute path", what);
    return 0;
}

int ledger_note(struct ledger *l, enum ledger_kind kind, const char *what, uint64_t *ret_id,
                struct err *err)
{
    uint64_t id = l->last_id + 1;

    if (ledger_check(kind, what, err) < 0)
        return -1;
    AUTO_FREE char *body = str_format("+ %" PRIu64 " %s %s", id, kind_names[kind], what);
    if (append(l, body, err) < 0)
        return -1;
    l->last_id = id;
    l->open = mem_grow(l->open, l->n_open, &l->cap_open, sizeof(*l->open));
    l->open[l->n_open++] = id;
    *ret_id = id;
    return 0;
}

int ledger_forget(struct ledger *l, uint64_t id, struct err *err)
{
    size_t i = 0;

    while (i < l->n_open && l->open[i] != id)
        i++;
    if (i == l->n_open)
        return err_set(err, ERR_NOT_FOUND, "ledger %s has no open record %" PRIu64, l->path, id);
    AUTO_FREE char *body = str_format("- %" PRIu64, id);
    if (append(l, body, err) < 0)
        return -1;
    memmove(&l->open[i], &l->open[i + 1], (l->n_open - i - 1) * sizeof(*l->open));
    l->n_open--;
    return 0;
}

void ledger_drop_parent(const char *dir)
{
    AUTO_FREE char *parent = str_dup(dir);
    char *slash = strrchr(parent, '/');

    if (!slash || slash == parent)
        return;
    *slash = '\0';
    (void)rmdir(parent); /* others live there, or it is gone: both are fine */
}

int ledger_finish(struct ledger *l, struct err *err)
{
    if (l->n_open > 0)
        return err_set(err, ERR_STATE, "ledger %s still has %zu open records", l->path, l->n_open);
    if (unlink(l->path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", l->path);
    if (rmdir(l->dir) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove directory %s", l->dir);
    ledger_drop_parent(l->dir);
    return 0;
}
