#include "host/files/follow.h"
#include "base/str.h"
#include "host/jail/mountinfo.h"

#include <stdlib.h>
#include <string.h>

static void forget(struct follow_mount *m)
{
    free(m->what);
    free(m->point);
}

void follow_release(struct follow *f)
{
    for (size_t i = 0; i < f->n; i++)
        forget(&f->v[i]);
    free(f->v);
    free(f->source);
    free(f->base);
    *f = (struct follow){ 0 };
}

static struct follow_mount *find(const struct follow *f, uint64_t id)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->v[i].id == id && f->v[i].there)
            return &f->v[i];
    return NULL;
}

/* Whether the mount that the source is in is still the same. */
static bool base_is_there(struct follow *f, const struct mountinfo_list *table)
{
    for (size_t i = 0; i < table->n; i++) {
        const struct mountinfo *m = &table->v[i];
        AUTO_FREE char *what = str_format("%s %s", m->device, m->root);

        if (m->id != f->mount)
            continue;
        if (!f->base)
            f->base = str_dup(what);
        return str_eq(f->base, what);
    }
    return false;
}

static bool is_same(const struct follow_mount *m, const struct mountinfo *now)
{
    size_t n = strlen(now->device);

    return m->id == now->id && m->parent == now->parent && str_eq(m->point, now->point) &&
           strncmp(m->what, now->device, n) == 0 && m->what[n] == ' ' &&
           str_eq(m->what + n + 1, now->root);
}

static void mark(struct follow *f, const struct mountinfo_list *table)
{
    for (size_t i = 0; i < f->n; i++) {
        f->v[i].there = false;
        for (size_t k = 0; k < table->n && !f->v[i].there; k++)
            f->v[i].there = is_same(&f->v[i], &table->v[k]);
    }
}

/* True if it was not known and its parent is. */
static bool take(struct follow *f, const struct mountinfo *m, bool left_out)
{
    const struct follow_mount *below = find(f, m->parent);

    if (find(f, m->id) || m->id == f->mount || (!below && m->parent != f->mount) ||
        !mountinfo_is_in(m->point, f->source))
        return false;
    if (f->n >= FOLLOW_MAX) {
        f->too_many++;
        return false;
    }
    left_out = left_out || (below && below->left_out);
    f->v = mem_grow(f->v, f->n, &f->cap, sizeof(*f->v));
    f->v[f->n++] = (struct follow_mount){ .id = m->id,
                                          .parent = m->parent,
                                          .what = str_format("%s %s", m->device, m->root),
                                          .point = str_dup(m->point),
                                          .left_out = left_out,
                                          .there = true };
    return true;
}

void follow_look(struct follow *f, const struct mountinfo_list *table)
{
    const struct mountinfo_list none = { 0 };
    bool first = !f->base, more = true;

    if (!base_is_there(f, table))
        table = &none; /* its id may be another mount's by now */
    mark(f, table);
    while (more) { /* the table names a mount before what it is mounted on, sometimes */
        more = false;
        f->too_many = 0;
        for (size_t i = 0; i < table->n; i++)
            more = take(f, &table->v[i], first && f->late) || more;
    }
}

void follow_sweep(struct follow *f)
{
    size_t kept = 0;

    for (size_t i = 0; i < f->n; i++)
        if (f->v[i].there)
            f->v[kept++] = f->v[i];
        else
            forget(&f->v[i]);
    f->n = kept;
}

const char *follow_below(const struct follow *f, const struct follow_mount *m)
{
    return m->point + (str_eq(f->source, "/") ? 0 : strlen(f->source));
}
