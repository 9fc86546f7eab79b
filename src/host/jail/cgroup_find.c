/* cgroup_find.c - which hierarchies this host has, and what a spec's path means. */
#include "base/err.h"
#include "base/fd.h"
#include "host/jail/cgroup_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOUNTINFO_MAX (8u << 20)
#define CGROUP_PATH_MAX 2048

const struct cgroup_host cgroup_this_host = { "/proc/self/mountinfo", "/proc/self/cgroup" };

/* --- what a path means --- */

/* "a-b.slice" is a.slice/a-b.slice, "-.slice" the root. */
static int expand_slice(const char *slice, struct sbuf *out, struct err *err)
{
    size_t len = strlen(slice);

    if (len == 0)
        slice = "system.slice", len = strlen(slice);
    if (!str_ends(slice, ".slice"))
        return err_set(err, ERR_INVALID, "slice \"%s\" does not end in .slice", slice);
    len -= strlen(".slice");
    if (len == 1 && slice[0] == '-')
        return 0;
    for (size_t i = 0, begin = 0; i <= len; i++) {
        if (i < len && slice[i] != '-')
            continue;
        if (i == begin)
            return err_set(err, ERR_INVALID, "slice \"%s\" has an empty part", slice);
        sbuf_addf(out, "/%.*s.slice", (int)i, slice);
        begin = i + 1;
    }
    return 0;
}

/* slice:prefix:name */
static int expand_systemd(const char *path, char **ret, struct err *err)
{
    const char *first = strchr(path, ':'), *second = strchr(first + 1, ':');
    AUTO_FREE char *slice = str_ndup(path, (size_t)(first - path)), *prefix = NULL;
    AUTO(sbuf_release) struct sbuf out = { 0 };

    if (!second || strchr(second + 1, ':') || !second[1])
        return err_set(err, ERR_INVALID, "neither a path nor systemd's slice:prefix:name");
    prefix = str_ndup(first + 1, (size_t)(second - first - 1));
    if (expand_slice(slice, &out, err) < 0)
        return -1;
    if (str_ends(second + 1, ".slice"))
        sbuf_addf(&out, "/%s", second + 1);
    else
        sbuf_addf(&out, "/%s%s%s.scope", prefix, *prefix ? "-" : "", second + 1);
    *ret = sbuf_take(&out);
    return 0;
}

/* Single slashes, no "." and no "..". */
static int clean(const char *path, char **ret, struct err *err)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");

        if ((len == 1 && p[0] == '.') || (len == 2 && p[0] == '.' && p[1] == '.'))
            return err_set(err, ERR_INVALID, "\"%.*s\" has no place in it", (int)len, p);
        if (len > 0) {
            if (out.len > 0 || path[0] == '/')
                sbuf_addc(&out, '/');
            sbuf_add(&out, p, len);
        }
        p += len + (p[len] == '/');
    }
    if (out.len == 0)
        sbuf_addc(&out, '/');
    *ret = sbuf_take(&out);
    return 0;
}

int cgroup_path_expand(const char *path, char **ret, struct err *err)
{
    AUTO_FREE char *plain = NULL;

    if (strnlen(path, CGROUP_PATH_MAX + 1) > CGROUP_PATH_MAX)
        return err_set(err, ERR_INVALID, "cgroup path \"%.64s…\" is longer than %d bytes", path,
                       CGROUP_PATH_MAX);
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            return err_set(err, ERR_INVALID, "cgroup path with a control character");
    if (strchr(path, ':') && !strchr(path, '/')) {
        if (expand_systemd(path, &plain, err) < 0)
            return err_wrap(err, "cgroup path \"%.256s\"", path);
    } else {
        plain = str_dup(path);
    }
    if (strlen(plain) > CGROUP_PATH_MAX) /* many dashes make long paths */
        return err_set(err, ERR_INVALID, "cgroup path \"%.64s…\" is longer than %d bytes", path,
                       CGROUP_PATH_MAX);
    if (clean(plain, ret, err) < 0)
        return err_wrap(err, "cgroup path \"%.256s\"", path);
    return 0;
}

/* --- what the host has --- */

void cgroup_hierarchies_release(struct cgroup_hierarchies *h)
{
    for (size_t i = 0; i < h->n; i++) {
        free(h->v[i].mount_point);
        free(h->v[i].device);
        free(h->v[i].own);
        free(h->v[i].controllers);
    }
    h->n = 0;
}

/* One of a list with commas. */
static bool has_word(const char *list, const char *word, size_t len)
{
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == len && strncmp(p, word, len) == 0)
            return true;
    return false;
}

bool cgroup_has_controller(const struct cgroup_hierarchy *h, const char *name)
{
    return has_word(h->controllers, name, strlen(name));
}

/* \040 and the like. In place. */
static void unescape(char *s)
{
    char *to = s;

    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
}

struct mount {
    char *device, *root, *point, *type, *options;
};

/* "36 35 98:0 /root /point rw,noatime … - cgroup source rw,cpu". Cuts the line. */
static bool parse_mount(char *line, struct mount *m)
{
    char *tail = strstr(line, " - "), *words[5], *save = NULL;

    if (!tail)
        return false;
    *tail = '\0';
    for (int i = 0; i < 5; i++)
        if (!(words[i] = strtok_r(i == 0 ? line : NULL, " ", &save)))
            return false;
    m->device = words[2];
    m->root = words[3];
    m->point = words[4];
    m->type = strtok_r(tail + 3, " ", &save);
    if (!m->type || !strtok_r(NULL, " ", &save) || !(m->options = strtok_r(NULL, " ", &save)))
        return false;
    unescape(m->root);
    unescape(m->point);
    return true;
}

/* Of "rw,cpu,cpuacct,release_agent=…" those words that /proc/self/cgroup knows. */
static char *controllers_of(const char *options)
{
    struct sbuf out = { 0 };

    for (const char *p = options; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t len = strcspn(p, ",");

        if ((memchr(p, '=', len) && strncmp(p, "name=", 5) != 0) || (len == 2 && p[0] == 'r'))
            continue; /* rw, ro, and settings */
        sbuf_addf(&out, "%s%.*s", out.len ? "," : "", (int)len, p);
    }
    return sbuf_take(&out);
}

/* Our own cgroup as seen from the mount point, which may show only a part: lines are
 * "3:cpu,cpuacct:/path", "0::/path". Caller frees. */
static char *own_of(const char *self, const char *controllers, bool v2, const char *root)
{
    for (const char *line = self; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        size_t line_len = strcspn(line, "\n");

        if (!path || (size_t)(path - line) > line_len)
            continue;

        AUTO_FREE char *names = str_ndup(list + 1, (size_t)(path - list - 1));
        bool match = v2 ? !*names : *names && has_word(controllers, names, strcspn(names, ","));

        if (!match)
            continue;

        AUTO_FREE char *own = str_ndup(path + 1, line_len - (size_t)(path + 1 - line));
        size_t n = strlen(root);

        if (n > 1 && str_starts(own, root) && (own[n] == '/' || own[n] == '\0'))
            return str_dup(own[n] ? own + n : "/");
        return str_dup(str_starts(own, "/..") ? "/" : own);
    }
    return str_dup("/");
}

static void add_hierarchy(struct cgroup_hierarchies *h, const struct mount *m, const char *self)
{
    bool v2 = str_eq(m->type, "cgroup2");

    if (!v2 && !str_eq(m->type, "cgroup"))
        return;
    for (size_t i = 0; i < h->n; i++)
        if (str_eq(h->v[i].device, m->device))
            return; /* the same one, mounted elsewhere too */
    if (h->n == CGROUP_HIERARCHIES_MAX)
        return;

    struct cgroup_hierarchy *to = &h->v[h->n++];

    *to = (struct cgroup_hierarchy){ .mount_point = str_dup(m->point),
                                     .device = str_dup(m->device),
                                     .controllers = v2 ? str_dup("") : controllers_of(m->options),
                                     .v2 = v2 };
    to->own = own_of(self, to->controllers, v2, m->root);
}

/* v1 with v2 beside it: v2 has no controllers to speak of and is left alone. */
static void choose(struct cgroup_hierarchies *h)
{
    size_t n_v1 = 0, kept = 0;

    for (size_t i = 0; i < h->n; i++)
        n_v1 += !h->v[i].v2;
    h->mode = n_v1 == 0 ? CGROUP_V2 : n_v1 < h->n ? CGROUP_HYBRID : CGROUP_V1;
    for (size_t i = 0; i < h->n; i++) {
        struct cgroup_hierarchies one = { .v = { h->v[i] }, .n = 1 };

        if (h->v[i].v2 && n_v1 > 0)
            cgroup_hierarchies_release(&one);
        else
            h->v[kept++] = h->v[i];
    }
    h->n = kept;
}

int cgroup_find(const struct cgroup_host *host, struct cgroup_hierarchies *ret, struct err *err)
{
    AUTO_FREE char *mounts = NULL, *self = NULL;
    struct cgroup_hierarchies h = { .n = 0 };
    size_t len;
    int r = file_read_all(host->mountinfo, MOUNTINFO_MAX, &mounts, &len);

    if (r < 0)
        return err_sys(err, -r, "read %s", host->mountinfo);
    r = file_read_all(host->self, MOUNTINFO_MAX, &self, &len);
    if (r < 0)
        return err_sys(err, -r, "read %s", host->self);
    for (char *line = mounts, *next; line; line = next) {
        struct mount m;

        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (parse_mount(line, &m))
            add_hierarchy(&h, &m, self);
    }
    if (h.n == 0)
        return err_set(err, ERR_UNAVAILABLE, "no cgroups are mounted on this host");
    choose(&h);
    *ret = h;
    return 0;
}

int cgroup_host_mode(enum cgroup_mode *ret, struct err *err)
{
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };

    if (cgroup_find(&cgroup_this_host, &h, err) < 0)
        return -1;
    *ret = h.mode;
    return 0;
}
