/* mem.h - memory and the cleanup idiom.
 * mem_* abort when memory ends: a size that comes from outside is checked against a named
 * limit first. AUTO_FREE and AUTO(fn) release at the end of the scope; TAKE_PTR gives away.
 * A type joins AUTO() with AUTO_DEFINE beside its destructor. None of this waits. */
#pragma once
#include <stddef.h>

/* Caller frees with free(). Never NULL, also for size 0. */
void *mem_alloc(size_t size);
void *mem_zalloc(size_t size);
void *mem_realloc(void *old, size_t size);
void *mem_dup(const void *data, size_t size);

#define mem_new(type) ((type *)mem_zalloc(sizeof(type)))

/* Makes room for one more element in a growing array; *cap is in elements. */
void *mem_grow(void *array, size_t n, size_t *cap, size_t element_size);

/* Overwrites secrets; not removed by the optimiser. */
void mem_wipe(void *data, size_t size);

/* Unmaps the read-only pages of the program: for a process that has done most of its work and
 * waits. The pages stay in the page cache and are mapped again on access. */
void mem_drop_program(void);

void mem_free_auto(void *pointer_to_pointer);

#define AUTO_FREE __attribute__((cleanup(mem_free_auto)))
#define AUTO(fn) __attribute__((cleanup(fn##_auto)))
#define AUTO_DEFINE(type, fn)                                                                      \
    static inline void fn##_auto(type *p)                                                          \
    {                                                                                              \
        if (*p)                                                                                    \
            fn(*p);                                                                                \
    }                                                                                              \
    struct auto_needs_semicolon

/* For a type whose destructor is given the object itself (x_release). */
#define AUTO_VALUE(type, fn)                                                                       \
    static inline void fn##_auto(type *p)                                                          \
    {                                                                                              \
        fn(p);                                                                                     \
    }                                                                                              \
    struct auto_needs_semicolon

#define TAKE_PTR(p)                                                                                \
    ({                                                                                             \
        __typeof__(p) take_ptr_ = (p);                                                             \
        (p) = NULL;                                                                                \
        take_ptr_;                                                                                 \
    })

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
