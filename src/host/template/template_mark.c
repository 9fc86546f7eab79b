/* template_mark.c - what is held against a template: that it is bad, clones of it that failed, and
 * builds that failed. Plain text that people may read; each is written by root, best effort: what
 * is lost is found out again. */
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include "host/template/template.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAILED_PREFIX "failed-"
#define TEXT_MAX 2048
#define RETRY_NS (UINT64_C(600) * 1000000000)
#define RETRY_MOST_NS (UINT64_C(24) * 3600 * 1000000000)

static char *path_of(const char *dir, const char *key, const char *name)
{
    return str_format("%s/%s/%s", dir, key, name);
}

/* --- bad --- */

char *template_bad_why(const char *path)
{
    AUTO_FREE char *file = str_format("%s/bad", path), *text = NULL;
    size_t len;
    int r = file_read_all(file, TEXT_MAX, &text, &len);

    if (r == -ENOENT)
        return NULL;
    if (r < 0)
        return str_dup("its mark cannot be read");
    text[strcspn(text, "\n")] = '\0';
    return str_printable(text);
}

int template_mark_bad(const char *dir, const char *key, const char *why, struct err *err)
{
    AUTO_FREE char *file = path_of(dir, key, "bad"), *text = str_format("%.1000s\n", why);

    /* The first reason stays. */
    AUTO_FD int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EEXIST ? 0 : err_sys(err, errno, "mark template %s as bad", key);
    int r = fd_write_full(fd, text, strlen(text));
    return r < 0 ? err_sys(err, -r, "mark template %s as bad", key) : 0;
}

/* --- clones that failed --- */

bool template_strike(const char *dir, const char *key, const char *why)
{
    AUTO_FREE char *file = path_of(dir, key, "strikes"), *line = str_format("%.1000s\n", why),
                   *text = NULL, *reason = NULL;
    AUTO_FD int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct err ignored = ERR_INIT;
    unsigned n = 0;
    size_t len;

    if (fd < 0 || fd_write_full(fd, line, strlen(line)) < 0 ||
        file_read_all(file, 64 * 1024, &text, &len) < 0)
        return false;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        n++;
    if (n < TEMPLATE_STRIKES)
        return false;
    reason = str_format("%u clones failed one after the other, the last one: %s", n, why);
    return template_mark_bad(dir, key, reason, &ignored) == 0;
}

void template_absolve(const char *dir, const char *key)
{
    AUTO_FREE char *file = path_of(dir, key, "strikes");

    (void)unlink(file); /* almost always there is none */
}

/* --- builds that failed --- */

static char *failure_path(const char *dir, const char *key)
{
    return str_format("%s/" FAILED_PREFIX "%s", dir, key);
}

/* "<wall clock in ns> <how often> <why>\n" */
static bool parse_failure(char *text, struct template_failure *ret)
{
    char *save = NULL, *at = strtok_r(text, " ", &save), *count = strtok_r(NULL, " ", &save);
    uint64_t n = 0;

    if (!at || !count || str_to_u64(at, UINT64_MAX, &ret->at_ns) < 0 ||
        str_to_u64(count, 1000, &n) < 0 || n == 0)
        return false;
    ret->count = (unsigned)n;
    save[strcspn(save, "\n")] = '\0';
    AUTO_FREE char *why = str_printable(save);
    snprintf(ret->why, sizeof(ret->why), "%s", why);
    return true;
}

bool template_failure(const char *dir, const char *key, struct template_failure *ret)
{
    AUTO_FREE char *file = failure_path(dir, key), *text = NULL;
    size_t len;

    *ret = (struct template_failure){ 0 };
    if (file_read_all(file, TEXT_MAX, &text, &len) < 0)
        return false;
    snprintf(ret->key, sizeof(ret->key), "%s", key);
    return parse_failure(text, ret);
}

void template_note_failure(const char *dir, const char *key, uint64_t now_ns, const char *why)
{
    struct template_failure before;
    unsigned count = template_failure(dir, key, &before) && before.count < 100 ? before.count : 0;
    AUTO_FREE char *file = failure_path(dir, key),
                   *text =
                       str_format("%llu %u %.1000s\n", (unsigned long long)now_ns, count + 1, why);

    (void)file_replace(file, text, strlen(text), 0600);
}

bool template_forget_failure(const char *dir, const char *key)
{
    AUTO_FREE char *file = failure_path(dir, key);

    return unlink(file) == 0;
}

uint64_t template_retry_at(const struct template_failure *f)
{
    uint64_t wait = RETRY_NS;

    for (unsigned i = 1; i < f->count && wait < RETRY_MOST_NS; i++)
        wait *= 2;
    return f->at_ns + (wait < RETRY_MOST_NS ? wait : RETRY_MOST_NS);
}

size_t template_failures(const char *dir, struct template_failure **ret)
{
    struct template_failure *all = mem_zalloc(TEMPLATE_LIST_MAX * sizeof(*all));
    DIR *d = opendir(dir);
    size_t n = 0;

    for (struct dirent *e; d && n < TEMPLATE_LIST_MAX && (e = readdir(d));) {
        const char *key = e->d_name + strlen(FAILED_PREFIX);

        if (str_starts(e->d_name, FAILED_PREFIX) && strlen(key) == TEMPLATE_KEY_SIZE - 1 &&
            template_failure(dir, key, &all[n]))
            n++;
    }
    if (d)
        closedir(d);
    *ret = all;
    return n;
}
