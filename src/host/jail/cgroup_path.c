/* cgroup_path.c - what the path that a spec names means. */
#include "base/err.h"
#include "host/jail/cgroup_priv.h"

#include <string.h>

#define CGROUP_PATH_MAX 2048

/* "a-b.slice" is a.slice/a-b.slice, "-.slice" the root. */
static int expand_slice(const char *slice, struct sbuf *out, struct err *err)
{
    size_t len = strlen(slice);

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

bool cgroup_path_is_systemd(const char *path)
{
    return strchr(path, ':') && !strchr(path, '/');
}

int cgroup_unit_of(const char *path, char **ret_slice, char **ret_unit, struct err *err)
{
    const char *first = strchr(path, ':'), *second = strchr(first + 1, ':');
    int prefix;

    if (!second || strchr(second + 1, ':') || !second[1])
        return err_set(err, ERR_INVALID, "neither a path nor systemd's slice:prefix:name");
    prefix = (int)(second - first - 1);
    *ret_slice = first == path ? str_dup("system.slice") : str_ndup(path, (size_t)(first - path));
    *ret_unit = str_ends(second + 1, ".slice") ? str_dup(second + 1)
                                               : str_format("%.*s%s%s.scope", prefix, first + 1,
                                                            prefix ? "-" : "", second + 1);
    return 0;
}

/* slice:prefix:name */
static int expand_systemd(const char *path, char **ret, struct err *err)
{
    AUTO_FREE char *slice = NULL, *unit = NULL;
    AUTO(sbuf_release) struct sbuf out = { 0 };

    if (cgroup_unit_of(path, &slice, &unit, err) < 0 || expand_slice(slice, &out, err) < 0)
        return -1;
    sbuf_addf(&out, "/%s", unit);
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
            return err_set(err, ERR_INVALID, "must not contain \"%.*s\"", (int)len, p);
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

    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            return err_because(err, REASON_CGROUP_FAILED, ERR_INVALID,
                               "cgroup path with a control character");
    if (strlen(path) > CGROUP_PATH_MAX || !cgroup_path_is_systemd(path))
        plain = str_dup(path);
    else if (expand_systemd(path, &plain, err) < 0)
        return err_wrap_because(err, REASON_CGROUP_FAILED, "cgroup path \"%.256s\"", path);
    if (strlen(plain) > CGROUP_PATH_MAX) /* many dashes make long paths, too */
        return err_because(err, REASON_CGROUP_FAILED, ERR_INVALID,
                           "cgroup path \"%.64s…\" is longer than %d bytes", path, CGROUP_PATH_MAX);
    if (clean(plain, ret, err) < 0)
        return err_wrap_because(err, REASON_CGROUP_FAILED, "cgroup path \"%.256s\"", path);
    return 0;
}
