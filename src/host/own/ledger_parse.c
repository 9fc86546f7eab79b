#include "base/err.h"
#include "host/own/ledger_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
    uint64_t id;
    uint8_t kind;
    bool gone;
    const char *what;
    size_t what_len;
};

struct lines {
    struct line *v;
    size_t n, cap;
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
    if (!blank || (kind = ledger_kind_parse(p, (size_t)(blank - p))) < 0)
        return -EBADMSG;
    if (l->n > 0 && l->v[l->n - 1].id >= id)
        return -EBADMSG;
    blank++;
    if (end - blank > LEDGER_WHAT_MAX || memchr(blank, '\0', (size_t)(end - blank)))
        return -EBADMSG;
    l->v = mem_grow(l->v, l->n, &l->cap, sizeof(*l->v));
    l->v[l->n++] = (struct line){
        .id = id, .kind = (uint8_t)kind, .what = blank, .what_len = (size_t)(end - blank)
    };
    return 0;
}

static int take_released(struct lines *l, const char *p, const char *end)
{
    uint64_t id;
    struct line *of;

    if (take_id(&p, end, &id) < 0 || p != end)
        return -EBADMSG;
    of = find(l, id);
    if (!of || of->gone)
        return -EBADMSG;
    of->gone = true;
    return 0;
}

static int take_line(struct lines *l, const char *p, const char *end)
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

static int tell(const struct lines *l, int (*fn)(void *arg, const struct ledger_record *),
                void *arg)
{
    for (size_t i = l->n; i-- > 0;) {
        if (l->v[i].gone)
            continue;
        AUTO_FREE char *what = str_ndup(l->v[i].what, l->v[i].what_len);
        struct ledger_record record = { .id = l->v[i].id, .kind = l->v[i].kind, .what = what };
        if (fn(arg, &record) != 0)
            return 1;
    }
    return 0;
}

int ledger_parse(const char *text, size_t len, int (*fn)(void *arg, const struct ledger_record *),
                 void *arg, struct err *err)
{
    struct lines l = { 0 };
    const char *p = text, *end = text + len;
    size_t number = 0, bad = 0, first_bad = 0;

    while (p < end) {
        const char *line_end = memchr(p, '\n', (size_t)(end - p));
        if (!line_end) /* torn: we died while writing it, so nothing was made after it */
            break;
        number++;
        if (take_line(&l, p, line_end) < 0 && bad++ == 0)
            first_bad = number;
        p = line_end + 1;
    }
    int stopped = tell(&l, fn, arg);
    free(l.v);
    if (bad > 0 && !stopped)
        return err_set(
            err, ERR_DATA_LOSS,
            "%zu damaged ledger lines, the first is line %zu; what they named is unknown", bad,
            first_bad);
    return 0;
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
