#include "base/mem.h"
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Noreturn void out_of_memory(size_t size)
{
    fprintf(stderr, "out of memory: %zu bytes\n", size);
    abort();
}

void *mem_alloc(size_t size)
{
    void *p = malloc(size ? size : 1);

    if (!p)
        out_of_memory(size);
    return p;
}

void *mem_zalloc(size_t size)
{
    void *p = calloc(1, size ? size : 1);

    if (!p)
        out_of_memory(size);
    return p;
}

void *mem_realloc(void *old, size_t size)
{
    void *p = realloc(old, size ? size : 1);

    if (!p)
        out_of_memory(size);
    return p;
}

void *mem_dup(const void *data, size_t size)
{
    void *p = mem_alloc(size);

    if (size)
        memcpy(p, data, size);
    return p;
}

void *mem_grow(void *array, size_t n, size_t *cap, size_t element_size)
{
    size_t want = *cap, bytes;

    if (n < *cap)
        return array;
    if (want < 8)
        want = 8;
    /* Doubling keeps the cost per element constant; the loop is for a caller whose n ran ahead. */
    while (want <= n)
        if (__builtin_mul_overflow(want, 2, &want))
            out_of_memory(SIZE_MAX);
    if (__builtin_mul_overflow(want, element_size, &bytes))
        out_of_memory(SIZE_MAX);
    array = mem_realloc(array, bytes);
    *cap = want;
    return array;
}

void mem_wipe(void *data, size_t size)
{
    explicit_bzero(data, size);
}

struct constant_parts {
    unsigned n;
    struct {
        void *begin;
        size_t size;
    } v[4];
};

static int find_constant_parts(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct constant_parts *found = arg;

    (void)size;
    for (unsigned i = 0; i < info->dlpi_phnum && found->n < ARRAY_LEN(found->v); i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t end = info->dlpi_addr + p->p_vaddr + p->p_memsz;
        uintptr_t begin = (info->dlpi_addr + p->p_vaddr) & ~((uintptr_t)getpagesize() - 1);

        if (p->p_type != PT_LOAD || (p->p_flags & PF_W))
            continue;
        found->v[found->n].begin = (void *)begin;
        found->v[found->n++].size = end - begin;
    }
    return 1; /* only the program, which is the first: libraries are shared */
}

/* In two steps. Code that runs after the second is mapped again, 64 KiB around each address. */
void mem_drop_program(void)
{
    struct constant_parts found = { 0 };

    (void)dl_iterate_phdr(find_constant_parts, &found);
    for (unsigned i = 0; i < found.n; i++)
        (void)madvise(found.v[i].begin, found.v[i].size, MADV_DONTNEED); /* else it stays mapped */
}

void mem_free_auto(void *pointer_to_pointer)
{
    /* memcpy: the variable may be a pointer to any type, which void ** must not alias. */
    void *p;

    memcpy(&p, pointer_to_pointer, sizeof(p));
    free(p);
}
