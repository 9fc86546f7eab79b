#include "tool/lib/leftovers.h"
#include "base/err.h"
#include "base/str.h"
#include "host/ledger/ledger.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static int not_hidden(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static bool is_dir(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Calls fn for each subdirectory, in order. A directory that is missing has none. */
static int each_dir(const char *dir, int (*fn)(void *arg, const char *path, const char *name),
                    void *arg, struct err *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, not_hidden, alphasort), r = 0;

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read %s", dir);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name);

        if (r == 0 && is_dir(path))
            r = fn(arg, path, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return r;
}

struct walk {
    int (*fn)(void *arg, const struct leftover *);
    void *arg;
    const char *namespace;
    struct err *err;
};

static int on_vm(void *arg, const char *path, const char *name)
{
    struct walk *w = arg;
    AUTO_FREE char *full = str_format("%s/%s", w->namespace, name);
    struct leftover l = { .name = full, .dir = path };
    struct err err = ERR_INIT;

    if (ledger_owner_alive(path, &l.alive, &err) < 0)
        l.err = &err;
    return w->fn(w->arg, &l);
}

static int on_namespace(void *arg, const char *path, const char *name)
{
    struct walk *w = arg;

    w->namespace = name;
    return each_dir(path, on_vm, w, w->err);
}

int leftovers_walk(const char *run_root, int (*fn)(void *arg, const struct leftover *), void *arg,
                   struct err *err)
{
    struct walk w = { .fn = fn, .arg = arg, .err = err };

    return each_dir(run_root, on_namespace, &w, err);
}
