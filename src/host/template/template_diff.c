/* template_diff.c - why a template in the store is not the one that is wanted. */
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/template/template.h"

#include <stdlib.h>
#include <string.h>

/* The lines of an identity that say one thing, by how they begin. */
static const struct {
    const char *begin, *what;
} subjects[] = {
    { "kernel ", "kernel" },
    { "initrd ", "initrd" },
    { "qemu ", "QEMU" },
    { "host ", "kernel of the host" }, /* with KVM only */
};

/* NULL: no line begins so. */
static const char *find_line(const char *text, const char *begin)
{
    while (text && *text && !str_starts(text, begin)) {
        text = strchr(text, '\n');
        text += text != NULL;
    }
    return text && *text ? text : NULL;
}

/* Whether both have the same line that begins so; or neither. */
static bool same_line(const char *a, const char *b, const char *begin)
{
    const char *x = find_line(a, begin), *y = find_line(b, begin);

    if (!x || !y)
        return x == y;
    size_t n = strcspn(x, "\n");
    return n == strcspn(y, "\n") && memcmp(x, y, n) == 0;
}

/* The processor's lines are those with a tab; no other has one. */
static char *processor(const char *identity)
{
    struct sbuf b = { 0 };

    for (const char *line = identity; *line;) {
        size_t n = strcspn(line, "\n");

        if (memchr(line, '\t', n))
            sbuf_addf(&b, "%.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    return sbuf_take(&b);
}

char *template_difference(const char *identity, const char *other)
{
    AUTO_FREE char *mine = processor(identity), *theirs = processor(other);
    struct sbuf b = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(subjects); i++)
        if (!same_line(identity, other, subjects[i].begin))
            sbuf_addf(&b, "%sanother %s", b.len ? ", " : "", subjects[i].what);
    if (!str_eq(mine ? mine : "", theirs ? theirs : ""))
        sbuf_addf(&b, "%sanother processor", b.len ? ", " : "");
    return b.len ? sbuf_take(&b) : NULL;
}

char *template_outdated(const char *dir, const char *identity, char ret_key[TEMPLATE_KEY_SIZE])
{
    char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    struct err ignored = ERR_INIT; /* what cannot be read is no use in any case */
    uint64_t newest = 0;
    char *found = NULL;
    size_t n = 0;

    if (template_list(dir, &keys, &n, &ignored) < 0)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        struct template t = { .ram_fd = -1, .state_fd = -1 };
        char *why;

        if (template_open(dir, keys[i], &t, &ignored) < 0)
            continue;
        why = template_difference(identity, t.info.identity);
        if (why && t.info.created_ns >= newest) {
            newest = t.info.created_ns;
            memcpy(ret_key, keys[i], TEMPLATE_KEY_SIZE);
            free(found);
            found = TAKE_PTR(why);
        }
        free(why);
        template_close(&t);
    }
    free(keys);
    return found;
}
