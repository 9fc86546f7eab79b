/* reservations_save.c - who holds which thing. Not saved: the number of reservations of each thing,
 * which is counted. */
#include "base/saved.h"
#include "host/device/reservations.h"

static uint64_t place(const struct reserved *t, struct reserved *const *things, size_t n)
{
    uint64_t i = 0;

    while (i < n && things[i] != t)
        i++;
    return i;
}

static void one_saved(struct saved *s, struct reservation *one, struct reserved *const *things,
                      size_t n)
{
    uint64_t at = place(one->thing, things, n);

    saved_u64(s, 1, &one->id);
    saved_u64(s, 2, &at);
    if (at >= n) {
        saved_fail(s, "reservation %llu is of a thing that does not exist",
                   (unsigned long long)one->id);
        return;
    }
    one->thing = things[at];
    one->thing->refs += saved_reads(s);
}

void reservations_saved(struct saved *s, struct reservations *r, struct reserved *const *things,
                        size_t n)
{
    saved_u64(s, 1, &r->last_id);
    for (size_t i = saved_count(s, 2, 0); i > 0; i--)
        list_append(&r->list, &mem_new(struct reservation)->node);
    LIST_FOR (struct reservation, one, &r->list, node) {
        if (!saved_open(s, 2))
            return;
        one_saved(s, one, things, n);
        saved_close(s);
    }
    for (size_t i = 0; i < n; i++)
        if (things[i]->refs == 0)
            saved_fail(s, "a %s has no reservation", r->what);
}
