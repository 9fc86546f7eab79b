#include "proto/bridge_priv.h"

/* A list whose head holds nothing. */
struct bridge_mem {
    struct bridge_mem *next;
    json_t *root;
    max_align_t data[];
};

struct bridge_mem *bridge_mem_new(void)
{
    return mem_new(struct bridge_mem);
}

void bridge_mem_free(struct bridge_mem *m)
{
    for (struct bridge_mem *next; m; m = next) {
        next = m->next;
        json_decref(m->root);
        free(m);
    }
}

static struct bridge_mem *add(struct bridge_mem *m, size_t size)
{
    struct bridge_mem *added = mem_zalloc(sizeof(*added) + size);

    added->next = m->next;
    m->next = added;
    return added;
}

void *bridge_mem_alloc(struct bridge_mem *m, size_t size)
{
    return add(m, size)->data;
}

void bridge_mem_keep(struct bridge_mem *m, json_t *root)
{
    add(m, 0)->root = root;
}
