/* A spec's cgroup path: what is accepted leads nowhere else, and means the same when read again. */
#include "base/err.h"
#include "base/str.h"
#include "host/jail/cgroup_priv.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *path)
{
    for (const char *p = path; *p;) {
        size_t len = strcspn(p, "/");

        if (len == 0 && p != path && p[0] == '/')
            abort(); /* two slashes */
        if ((len == 1 && p[0] == '.') || (len == 2 && p[0] == '.' && p[1] == '.'))
            abort();
        p += len + (p[len] == '/');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_FREE char *text = str_ndup((const char *)data, size), *path = NULL, *again = NULL;
    struct err err = ERR_INIT;

    if (cgroup_path_expand(text, &path, &err) < 0) {
        if (err.code != ERR_INVALID)
            abort();
        return 0;
    }
    check(path);
    if (strchr(path, '/')) { /* a single word with colons would be systemd's */
        if (cgroup_path_expand(path, &again, &err) < 0 || strcmp(path, again) != 0)
            abort();
    }
    return 0;
}
