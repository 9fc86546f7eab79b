#include "guest/runtime/ps.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_MAX 4096
#define TURN 64 /* processes that are read before others may run */
#define MS_PER_S 1000
#define NOBODY UINT32_MAX /* leads it; no pid */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* pid is the first member. */
static struct ps_entry *find(struct ps_entry *v, size_t n, uint32_t pid)
{
    return bsearch(&pid, v, n, sizeof(*v), by_number);
}

/* Of blank-separated numbers: the one after skip others. */
static uint64_t field(const char *text, unsigned skip)
{
    for (; text && skip > 0; skip--)
        text = strchr(text, ' ') ? strchr(text, ' ') + 1 : NULL;
    return text ? strtoull(text, NULL, 10) : 0;
}

static uint64_t ticks_ms(uint64_t ticks)
{
    return ticks * MS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK);
}

static uint64_t uptime_ms(const char *proc)
{
    AUTO_FREE char *text = file_text(FILE_MAX, "%s/uptime", proc);
    char *end = text;
    uint64_t s = text ? strtoull(text, &end, 10) : 0;

    return s * MS_PER_S + (text && *end == '.' ? strtoull(end + 1, NULL, 10) * 10 : 0);
}

static void set_name(struct ps_entry *e, const char *from, size_t len)
{
    if (len >= sizeof(e->name))
        len = sizeof(e->name) - 1;
    for (size_t i = 0; i < len; i++)
        e->name[i] = from[i];
    for (size_t i = 0; i < len; i++)
        if (e->name[i] < ' ' || e->name[i] > '~')
            e->name[i] = '?';
}

static void read_details(const char *proc, struct ps_entry *e, const char *stat, const char *rest,
                         uint64_t uptime)
{
    AUTO_FREE char *statm = file_text(FILE_MAX, "%s/%u/statm", proc, e->pid);
    const char *open = strchr(stat, '(');
    uint64_t page_kib = (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    uint64_t resident = field(statm, 1), shared = field(statm, 2),
             began = ticks_ms(field(rest, 19));

    if (open && open < rest)
        set_name(e, open + 1, (size_t)(rest - 2 - (open + 1)));
    e->user_ms = ticks_ms(field(rest, 11));
    e->kernel_ms = ticks_ms(field(rest, 12));
    e->age_ms = uptime > began ? uptime - began : 0;
    e->data_kib = field(statm, 5) * page_kib;
    e->shared_kib = shared * page_kib;
    e->private_kib = resident > shared ? (resident - shared) * page_kib : 0;
}

/* False: it has gone. */
static bool read_entry(const char *proc, struct ps_entry *e, bool details, uint64_t uptime)
{
    AUTO_FREE char *stat = file_text(FILE_MAX, "%s/%u/stat", proc, e->pid);
    const char *rest = stat ? strrchr(stat, ')') : NULL; /* the name may hold anything */

    if (!rest || strlen(rest) < 3)
        return false;
    rest += 2; /* the third field, its state */
    e->parent = (uint32_t)field(rest, 1);
    if (details)
        read_details(proc, e, stat, rest, uptime);
    return true;
}

/* Walks up from each process to the first whose leader is known, and stores it for all on the way,
 * so that no path is walked twice. The steps are bounded, because parents that were read at
 * different times may form a ring. */
static void find_leaders(struct ps_entry *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct ps_entry *top = &v[i], *up = NULL;
        for (size_t steps = 0; !top->leader && steps < n; steps++, top = up)
            if (!(up = find(v, n, top->parent)))
                break;
        uint32_t leader = top->leader ? top->leader : NOBODY;
        for (struct ps_entry *e = &v[i]; e && !e->leader; e = find(v, n, e->parent))
            e->leader = leader;
    }
    for (size_t i = 0; i < n; i++)
        if (v[i].leader == NOBODY)
            v[i].leader = 0;
}

void ps_list(const struct ps_opts *o, uint32_t *pids, size_t n_pids, struct ps_entry **ret,
             size_t *ret_n)
{
    struct ps_entry *v = mem_zalloc((n_pids + 1) * sizeof(*v));
    uint64_t uptime = uptime_ms(o->proc);
    size_t n = 0;

    if (n_pids > 0)
        qsort(pids, n_pids, sizeof(pids[0]), by_number);
    for (size_t i = 0; i < n_pids && n < PS_MAX; i++) {
        if (o->loop && i % TURN == TURN - 1)
            fiber_yield(o->loop);
        if (i > 0 && pids[i] == pids[i - 1])
            continue;
        v[n] = (struct ps_entry){ .pid = pids[i] };
        n += read_entry(o->proc, &v[n], n_pids <= PS_DETAILS_MAX, uptime);
    }
    for (size_t i = 0; i < n; i++)
        v[i].leader = o->is_leader(o->arg, v[i].pid) ? v[i].pid : 0;
    find_leaders(v, n);
    *ret = v;
    *ret_n = n;
}
