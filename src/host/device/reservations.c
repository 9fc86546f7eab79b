#include "host/device/reservations.h"
#include "base/err.h"

#include <stdlib.h>

static const char *const states[] = { "Reserved", "Added", "Invalid", "Removed" };
static const char *const events[] = { "be added", "fail to be added", "be removed", "be dropped" };

static const struct fsm_edge edges[] = {
    { PART_RESERVED, PART_EV_ADDED, PART_ADDED },
    { PART_RESERVED, PART_EV_ADD_FAILED, PART_INVALID },
    { PART_RESERVED, PART_EV_DROPPED, PART_REMOVED },
    { PART_ADDED, PART_EV_REMOVED, PART_REMOVED },
    { PART_INVALID, PART_EV_REMOVED, PART_REMOVED },
};
FSM_DEFINE(part_fsm, "share or mount", states, PART_STATE_COUNT, events, PART_EV_COUNT, edges);

void reservations_init(struct reservations *r, const char *what,
                       void (*free_thing)(struct reserved *t))
{
    *r = (struct reservations){ .what = what, .free_thing = free_thing };
    list_init(&r->list);
}

static void drop(struct reservations *r, struct reservation *one)
{
    list_remove(&one->node);
    if (--one->thing->refs == 0)
        r->free_thing(one->thing);
    free(one);
}

void reservations_release(struct reservations *r)
{
    while (!list_empty(&r->list))
        drop(r, LIST_FIRST(&r->list, struct reservation, node));
}

uint64_t reservations_take(struct reservations *r, struct reserved *t)
{
    struct reservation *one = mem_new(struct reservation);

    one->id = ++r->last_id;
    one->thing = t;
    t->refs++;
    list_append(&r->list, &one->node);
    return one->id;
}

static struct reservation *find(const struct reservations *r, uint64_t id)
{
    LIST_FOR (struct reservation, one, &r->list, node)
        if (one->id == id)
            return one;
    return NULL;
}

struct reserved *reservations_find(const struct reservations *r, uint64_t id, struct err *err)
{
    struct reservation *one = find(r, id);

    if (one)
        return one->thing;
    err_set(err, ERR_NOT_FOUND, "unknown %s reservation %llu", r->what, (unsigned long long)id);
    return NULL;
}

struct reserved *reservations_use(const struct reservations *r, uint64_t id, struct err *err)
{
    struct reserved *t = reservations_find(r, id, err);

    if (!t || !t->leaving)
        return t;
    err_set(err, ERR_STATE, "%s reservation %llu is being released", r->what,
            (unsigned long long)id);
    return NULL;
}

void reservations_drop(struct reservations *r, uint64_t id)
{
    struct reservation *one = find(r, id);

    if (one)
        drop(r, one);
}
