/* list.h - an intrusive doubly linked ring. A node that is in no list points at itself. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

/* Also true for a zeroed node that was never initialised. */
static inline bool list_empty(const struct list *l)
{
    return !l->next || l->next == l;
}

static inline void list_append(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* May be repeated. */
static inline void list_remove(struct list *node)
{
    if (!node->next)
        return;
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

#define LIST_ENTRY(node, type, member) CONTAINER_OF(node, type, member)
#define LIST_FIRST(head, type, member)                                                             \
    (list_empty(head) ? NULL : LIST_ENTRY((head)->next, type, member))

/* The body may remove the current node, no other. */
#define LIST_EACH(head, pos)                                                                       \
    for (struct list *pos = (head)->next, *pos##_next = pos->next; pos != (head);                  \
         pos = pos##_next, pos##_next = pos->next)
/* The same with each entry at hand. */
#define LIST_NEXT(entry, head, type, member)                                                       \
    (!(entry) || (entry)->member.next == (head) ? NULL                                             \
                                                : LIST_ENTRY((entry)->member.next, type, member))
#define LIST_FOR(type, var, head, member)                                                          \
    for (type *var = LIST_FIRST(head, type, member),                                               \
              *var##_next = LIST_NEXT(var, head, type, member);                                    \
         var; var = var##_next, var##_next = LIST_NEXT(var, head, type, member))
