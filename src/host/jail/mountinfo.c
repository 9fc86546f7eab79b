#include "host/jail/mountinfo.h"
#include "base/fd.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* \040 and the like. In place. */
static char *unescape(char *text)
{
    char *to = text;

    for (const char *s = text; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
    return text;
}

/* "36 35 98:0 /root /point rw,noatime … - cgroup source rw,cpu" */
bool mountinfo_parse(char *line, struct mountinfo *ret)
{
    char *tail = strstr(line, " - "), *rest = line, *words[8];

    if (!tail)
        return false;
    *tail = '\0';
    tail += strlen(" - ");
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!(words[i] = strsep(i < 5 ? &rest : &tail, " ")))
            return false;
    *ret = (struct mountinfo){ line,
                               0,
                               0,
                               words[2],
                               unescape(words[3]),
                               unescape(words[4]),
                               words[5],
                               unescape(words[6]),
                               words[7] };
    return str_to_u64(words[0], UINT64_MAX, &ret->id) == 0 &&
           str_to_u64(words[1], UINT64_MAX, &ret->parent) == 0;
}

bool mountinfo_is_in(const char *point, const char *path)
{
    size_t n = str_eq(path, "/") ? 0 : strlen(path);

    return strncmp(point, path, n) == 0 && (point[n] == '/' || !point[n]);
}

int mountinfo_below(int fd, const char *path, uint64_t id, struct mountinfo_list *ret)
{
    FILE *table = fd < 0 ? NULL : fdopen(fd, "r");
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    int r = 0;

    if (!table) {
        r = -errno;
        fd_close(fd);
        return r;
    }
    while (getline(&line, &cap, table) > 0) {
        struct mountinfo m;

        if (!mountinfo_parse(line, &m) || !(mountinfo_is_in(m.point, path) || m.id == id))
            continue;
        ret->v = mem_grow(ret->v, ret->n, &ret->cap, sizeof(*ret->v));
        ret->v[ret->n++] = m;
        line = NULL; /* m points into it */
        cap = 0;
    }
    if (ferror(table))
        r = -EIO;
    fclose(table);
    return r;
}

void mountinfo_list_release(struct mountinfo_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].line);
    free(l->v);
    *l = (struct mountinfo_list){ 0 };
}
