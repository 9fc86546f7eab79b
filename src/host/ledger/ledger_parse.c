/* ledger_parse.c - reading a ledger back, piece by piece: however long it has become, only what is
 * still open is kept. */
#include "base/err.h"
#include "base/fd.h"
#include "host/ledger/ledger_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES (16 * 1024) /* more than a line */
#define GONE_KEPT 64           /* released ones that are not worth moving the others for */

_Static_assert(READ_BYTES > LEDGER_WHAT_MAX + 128, "a line fits");

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

static struct ledger_line *find(struct ledger_lines *l, uint64_t id)
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

static int take_created(struct ledger_lines *l, const char *p, const char *end)
{
    uint64_t id;
    const char *blank;
    int kind;

    if (take_id(&p, end, &id) < 0 || p == end || *p++ != ' ')
        return -EBADMSG;
    blank = memchr(p, ' ', (size_t)(end - p));
    if (!blank || (kind = ledger_kind_parse(p, (size_t)(blank - p))) < 0)
        return -EBADMSG;
    if (l->last_id >= id)
        return -EBADMSG;
    blank++;
    if (end - blank > LEDGER_WHAT_MAX || memchr(blank, '\0', (size_t)(end - blank)))
        return -EBADMSG;
    l->v = mem_grow(l->v, l->n, &l->cap, sizeof(*l->v));
    l->v[l->n++] = (struct ledger_line){ .id = id,
                                         .kind = (uint8_t)kind,
                                         .what = str_ndup(blank, (size_t)(end - blank)) };
    l->last_id = id;
    return 0;
}

static void drop_gone(struct ledger_lines *l)
{
    size_t kept = 0;

    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].what)
            l->v[kept++] = l->v[i];
    l->n = kept;
    l->n_gone = 0;
}

static int take_released(struct ledger_lines *l, const char *p, const char *end)
{
    uint64_t id;
    struct ledger_line *of;

    if (take_id(&p, end, &id) < 0 || p != end)
        return -EBADMSG;
    of = find(l, id);
    if (!of || !of->what)
        return -EBADMSG;
    free(TAKE_PTR(of->what));
    if (++l->n_gone > GONE_KEPT && l->n_gone > l->n / 2)
        drop_gone(l);
    return 0;
}

static int take_body(struct ledger_lines *l, const char *p, const char *end)
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

/* end: its line break. */
static void take_line(struct ledger_lines *l, const char *p, const char *end)
{
    l->number++;
    if (take_body(l, p, end) < 0 && l->bad++ == 0)
        l->first_bad = l->number;
}

/* The whole lines of a piece. Returns what follows the last one: if nothing comes after that, we
 * died while writing it, so nothing was made after it. */
static const char *take_lines(struct ledger_lines *l, const char *p, const char *end)
{
    for (const char *line_end; p < end && (line_end = memchr(p, '\n', (size_t)(end - p)));
         p = line_end + 1)
        take_line(l, p, line_end);
    return p;
}

void ledger_lines_release(struct ledger_lines *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].what);
    free(l->v);
    *l = (struct ledger_lines){ 0 };
}

int ledger_lines_read(struct ledger_lines *l, int fd)
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
        /* Longer than any line of ours: its beginning goes, so that its end is damaged as well. */
        if (have == READ_BYTES)
            have = 1;
        memmove(buf, rest, have);
    }
}

static int tell(const struct ledger_lines *l, int (*fn)(void *arg, const struct ledger_record *),
                void *arg, struct err *err)
{
    for (size_t i = l->n; i-- > 0;) {
        struct ledger_record record = { l->v[i].id, l->v[i].kind, l->v[i].what };

        if (record.what && fn(arg, &record) != 0)
            return 0;
    }
    if (l->bad == 0)
        return 0;
    return err_set(err, ERR_DATA_LOSS,
                   "%zu damaged ledger lines, the first is line %zu; what they named is unknown",
                   l->bad, l->first_bad);
}

int ledger_parse(const char *text, size_t len, int (*fn)(void *arg, const struct ledger_record *),
                 void *arg, struct err *err)
{
    AUTO(ledger_lines_release) struct ledger_lines l = { 0 };

    (void)take_lines(&l, text, text + len);
    return tell(&l, fn, arg, err);
}

int ledger_read(const char *dir, int (*fn)(void *arg, const struct ledger_record *), void *arg,
                struct err *err)
{
    AUTO(ledger_lines_release) struct ledger_lines l = { 0 };
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int r = fd < 0 ? -errno : ledger_lines_read(&l, fd);

    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    return tell(&l, fn, arg, err) < 0 ? err_wrap(err, "%s", path) : 0;
}

int ledger_process_parse(const char *what, pid_t *ret_pid, uint64_t *ret_start,
                         const char **ret_boot)
{
    const char *blank = strchr(what, ' '), *second = blank ? strchr(blank + 1, ' ') : NULL;
    uint64_t pid, start;

    if (!second)
        return -EINVAL;
    AUTO_FREE char *first = str_ndup(what, (size_t)(blank - what)),
                   *middle = str_ndup(blank + 1, (size_t)(second - blank - 1));
    if (str_to_u64(first, INT32_MAX, &pid) < 0 || pid < 2 ||
        str_to_u64(middle, UINT64_MAX, &start) < 0)
        return -EINVAL;
    *ret_pid = (pid_t)pid;
    *ret_start = start;
    *ret_boot = second + 1;
    return 0;
}
