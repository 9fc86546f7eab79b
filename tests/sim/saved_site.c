/* saved_site.c - the fields of saved state, and which of them is left out. */
#include "saved_site.h"
#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef saved_open
#undef saved_count

extern struct saved_site __start_saved_sites[], __stop_saved_sites[];
static const struct saved_site *left_out;

static void list_all(void)
{
    FILE *f = fopen(getenv("SAVED_SITES"), "ae");

    for (struct saved_site *at = __start_saved_sites; f && at < __stop_saved_sites; at++)
        fprintf(f, "%d\t%s\t%u\t%s\t%lu\n", (int)(at - __start_saved_sites),
                strstr(at->file, "src/") ? strstr(at->file, "src/") : at->file, at->line, at->what,
                at->passed);
    if (f)
        fclose(f);
}

__attribute__((constructor)) static void begin(void)
{
    const char *n = getenv("SAVED_LEFT_OUT");

    if (n)
        left_out = __start_saved_sites + atoi(n);
    if (getenv("SAVED_SITES"))
        (void)atexit(list_all);
}

bool saved_site(struct saved_site *at)
{
    at->passed++;
    return at == left_out;
}

bool saved_site_open(struct saved_site *at, struct saved *s, unsigned field)
{
    if (!saved_reads(s))
        return saved_open(s, field);
    return saved_site(at) ? false : saved_open(s, field);
}

size_t saved_site_count(const char *file, struct saved *s, unsigned field, size_t n)
{
    if (left_out && saved_reads(s) && left_out->field == field && str_eq(left_out->file, file) &&
        str_starts(left_out->what, "message "))
        return 0;
    return saved_count(s, field, n);
}
