#include "guest/storage/path.h"
#include "base/err.h"
#include "base/str.h"
#include <string.h>

#define NAME_BYTES_MAX 128

static bool is_dots(const char *at, size_t len)
{
    return (len == 1 && at[0] == '.') || (len == 2 && at[0] == '.' && at[1] == '.');
}

int path_check(const char *path, const char *what, struct err *err)
{
    if (!path || path[0] != '/')
        return err_set(err, ERR_INVALID, "invalid %s \"%.100s\": not an absolute path", what,
                       path ? path : "");
    if (strlen(path) > PATH_BYTES_MAX)
        return err_set(err, ERR_INVALID, "invalid %s: longer than %d bytes", what, PATH_BYTES_MAX);
    if (strchr(path, '\n'))
        return err_set(err, ERR_INVALID, "invalid %s: contains a line feed", what);
    for (const char *at = path; *at;) {
        size_t len = strcspn(at + 1, "/");
        if (len == 0 || is_dots(at + 1, len))
            return err_set(err, ERR_INVALID,
                           "invalid %s \"%.200s\": contains an empty, \".\" or \"..\" component",
                           what, path);
        at += 1 + len;
    }
    return 0;
}

int path_check_run(const char *path, const char *what, struct err *err)
{
    if (path_check(path, what, err) < 0)
        return -1;
    if (!str_starts(path, "/run/"))
        return err_set(err, ERR_INVALID, "invalid %s \"%.200s\": must be below /run", what, path);
    return 0;
}

int path_check_option(const char *path, const char *what, struct err *err)
{
    if (strpbrk(path, ":,\\"))
        return err_set(err, ERR_INVALID, "invalid %s \"%.200s\": contains ':', ',' or '\\'", what,
                       path);
    return 0;
}

bool path_name_ok(const char *name)
{
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ._-";
    size_t len = strlen(name);

    return len > 0 && len <= NAME_BYTES_MAX && strspn(name, allowed) == len && !is_dots(name, len);
}

int path_below(const char *root, const char *relative, char **ret, struct err *err)
{
    AUTO(strv_release) struct strv parts = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };

    for (const char *at = relative; *at;) {
        size_t len = strcspn(at, "/");
        if (len == 2 && at[0] == '.' && at[1] == '.') {
            if (parts.n == 0)
                return err_set(err, ERR_INVALID, "invalid path \"%.200s\": leaves %s", relative,
                               root);
            parts.n--;
            mem_free_auto(&parts.v[parts.n]);
            parts.v[parts.n] = NULL;
        } else if (len > 0 && !is_dots(at, len)) {
            strv_addf(&parts, "%.*s", (int)len, at);
        }
        at += len;
        at += *at == '/';
    }
    if (parts.n == 0)
        return err_set(err, ERR_INVALID, "invalid path \"%.200s\": must be below %s", relative,
                       root);
    sbuf_adds(&out, root);
    for (size_t i = 0; i < parts.n; i++)
        sbuf_addf(&out, "/%s", parts.v[i]);
    if (out.len > PATH_BYTES_MAX)
        return err_set(err, ERR_INVALID, "invalid path below %s: longer than %d bytes", root,
                       PATH_BYTES_MAX);
    *ret = sbuf_take(&out);
    return 0;
}

bool path_is_below(const char *path, const char *base)
{
    size_t len = strlen(base);

    return strncmp(path, base, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

char *path_parent(const char *path)
{
    const char *slash = strrchr(path, '/');

    return !slash || slash == path ? str_dup("/") : str_ndup(path, (size_t)(slash - path));
}
