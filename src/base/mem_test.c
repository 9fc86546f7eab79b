#include "base/list.h"
#include "base/mem.h"
#include "harness/tap.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(zero_bytes_are_a_pointer)
{
    AUTO_FREE void *a = mem_alloc(0), *b = mem_zalloc(0), *c = mem_dup(NULL, 0);
    AUTO_FREE void *d = mem_realloc(NULL, 0);

    ASSERT(a && b && c && d);
}

TEST(new_objects_are_zeroed)
{
    AUTO_FREE struct err *e = mem_new(struct err);
    static const struct err zero;

    ASSERT(memcmp(e, &zero, sizeof(zero)) == 0);
}

TEST(dup_copies)
{
    char from[] = "abc";
    AUTO_FREE char *copy = mem_dup(from, sizeof(from));

    from[0] = 'x';
    ASSERT_STR(copy, "abc");
}

static void alloc_too_much(void *arg)
{
    (void)arg;
    free(mem_alloc((size_t)1 << 62));
}

TEST(no_memory_aborts_and_says_how_much)
{
#ifndef __SANITIZE_ADDRESS__ /* has a message of its own */
    ASSERT_ABORTS(alloc_too_much, NULL, "out of memory: 4611686018427387904 bytes");
#else
    (void)alloc_too_much;
    tap_skip("ASan ends the process itself");
#endif
}

TEST(grow_makes_room_for_one_more)
{
    size_t cap = 0, n = 0;
    AUTO_FREE int *array = NULL;

    for (; n < 1000; n++) {
        array = mem_grow(array, n, &cap, sizeof(*array));
        ASSERT(cap > n);
        array[n] = (int)n;
    }
    for (size_t i = 0; i < n; i++)
        ASSERT_EQ(array[i], i);
}

TEST(grow_catches_up_with_an_n_beyond_the_double)
{
    size_t cap = 0;
    AUTO_FREE char *array = mem_grow(NULL, 1000, &cap, 1);

    ASSERT(cap > 1000);
    array[1000] = 1;
}

static void grow_overflow(void *arg)
{
    size_t cap = 0;

    (void)arg;
    free(mem_grow(NULL, (size_t)1 << 40, &cap, (size_t)1 << 40));
}

TEST(grow_aborts_when_the_size_overflows)
{
    ASSERT_ABORTS(grow_overflow, NULL, "out of memory");
}

TEST(wipe_overwrites)
{
    char secret[] = "secret";

    mem_wipe(secret, sizeof(secret));
    for (size_t i = 0; i < sizeof(secret); i++)
        ASSERT_EQ(secret[i], 0);
}

TEST(take_ptr_gives_away)
{
    AUTO_FREE char *p = mem_alloc(1);
    char *q = TAKE_PTR(p);

    ASSERT(!p && q);
    free(q);
}

/* KiB of this process. Not by statm or VmRSS, which a kernel with many processors keeps roughly. */
static long mapped_kib(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    long kib = -1;

    while (f && kib < 0 && fgets(line, sizeof(line), f))
        if (sscanf(line, "Rss: %ld kB", &kib) != 1)
            kib = -1;
    if (f)
        fclose(f);
    return kib;
}

static const char table[1 << 20] = { 1, 2, 3 };

static int sum_of_table(void)
{
    const volatile char *p = table;
    int sum = 0;

    for (size_t i = 0; i < sizeof(table); i += 1024)
        sum += p[i];
    return sum + p[1] + p[2];
}

TEST(a_dropped_program_is_mapped_again_where_it_is_touched)
{
    int before = sum_of_table();
    long mapped = mapped_kib();

    mem_drop_program();
    ASSERT(mapped_kib() < mapped - 512); /* half of the table */
    ASSERT_EQ(sum_of_table(), before);
}

struct entry {
    int number;
    struct list node;
};

TEST(each_entry_of_a_list_is_seen_and_may_leave_it)
{
    struct list head;
    struct entry entries[3] = { { .number = 1 }, { .number = 2 }, { .number = 3 } };
    int seen = 0;

    list_init(&head);
    LIST_FOR (struct entry, e, &head, node)
        seen = 100;
    ASSERT_EQ(seen, 0);
    for (int i = 0; i < 3; i++)
        list_append(&head, &entries[i].node);
    LIST_FOR (struct entry, e, &head, node) {
        seen = seen * 10 + e->number;
        if (e->number == 2)
            list_remove(&e->node);
    }
    ASSERT_EQ(seen, 123);
    LIST_FOR (const struct entry, e, &head, node)
        seen = seen * 10 + e->number;
    ASSERT_EQ(seen, 12313);
}
