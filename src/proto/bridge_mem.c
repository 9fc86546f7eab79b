#include "proto/bridge_priv.h"

struct chunk {
    struct chunk *next;
    max_align_t data[];
};

struct root {
    struct root *next;
    json_t *json;
};

struct bridge_mem {
    struct chunk *chunks;
    struct root *roots; /* live in chunks */
};

struct bridge_mem *bridge_mem_new(void)
{
    return mem_new(struct bridge_mem);
}

void bridge_mem_free(struct bridge_mem *m)
{
    struct chunk *next;

    if (!m)
        return;
    for (struct root *r = m->roots; r; r = r->next)
        json_decref(r->json);
    for (struct chunk *c = m->chunks; c; c = next) {
        next = c->next;
        free(c);
    }
    free(m);
}

void *bridge_mem_alloc(struct bridge_mem *m, size_t size)
{
    struct chunk *c = mem_zalloc(sizeof(*c) + size);

    c->next = m->chunks;
    m->chunks = c;
    return c->data;
}

void bridge_mem_keep(struct bridge_mem *m, json_t *root)
{
    struct root *r = bridge_mem_alloc(m, sizeof(*r));

    r->json = root;
    r->next = m->roots;
    m->roots = r;
}
