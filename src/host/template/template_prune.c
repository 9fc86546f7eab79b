/* template_prune.c - which templates are still wanted. When one was last used is its directory's
 * time; the files in it keep theirs. */
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/template/template.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct aged {
    const char *key;
    uint64_t used_ns;
};

void template_touch(const char *dir, const char *key)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, key);

    /* A store that is read-only is pruned by whoever can write to it, if at all. */
    (void)utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
}

static int newest_first(const void *a, const void *b)
{
    const struct aged *x = a, *y = b;

    return (x->used_ns < y->used_ns) - (x->used_ns > y->used_ns);
}

static uint64_t used_ns(const char *dir, const char *key)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, key);
    struct stat st;

    if (lstat(path, &st) < 0)
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
}

static void prune_failures(const char *dir, uint64_t now_ns)
{
    AUTO_FREE struct template_failure *all = NULL;
    size_t n = template_failures(dir, &all);

    for (size_t i = 0; i < n; i++)
        if (now_ns > all[i].at_ns && now_ns - all[i].at_ns > TEMPLATE_UNUSED_NS)
            (void)template_forget_failure(dir, all[i].key);
}

int template_prune(const char *dir, const char *keep, uint64_t now_ns,
                   void (*removed)(void *arg, const char *key), void *arg, struct err *err)
{
    char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    struct aged *all;
    size_t n = 0, have = keep ? 1 : 0;
    int r = 0;

    prune_failures(dir, now_ns);
    if (template_list(dir, &keys, &n, err) < 0)
        return -1;
    all = mem_zalloc((n + 1) * sizeof(*all));
    for (size_t i = 0; i < n; i++)
        all[i] = (struct aged){ keys[i], used_ns(dir, keys[i]) };
    qsort(all, n, sizeof(*all), newest_first);
    for (size_t i = 0; i < n && r == 0; i++) {
        bool unused = now_ns > all[i].used_ns && now_ns - all[i].used_ns > TEMPLATE_UNUSED_NS;

        if (keep && str_eq(all[i].key, keep))
            continue;
        if (!unused && have < TEMPLATE_MOST) {
            have++;
            continue;
        }
        r = template_remove(dir, all[i].key, err);
        if (r == 0 && removed)
            removed(arg, all[i].key);
    }
    free(all);
    free(keys);
    return r;
}
