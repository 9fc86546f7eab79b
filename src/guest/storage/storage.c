#include "guest/storage/storage.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/storage/mnt.h"
#include "guest/storage/path.h"
#include "guest/storage/storage_priv.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct storage *storage_new(int (*load_module)(const char *name, struct err *err))
{
    struct storage *s = mem_new(struct storage);

    s->load_module = load_module;
    gate_init(&s->share, "share");
    list_init(&s->holds);
    waitq_init(&s->holds_q);
    return s;
}

void storage_free(struct storage *s)
{
    free(s);
}

/* --- one at a time on a path --- */

struct storage_hold {
    struct list node;
    struct storage *s;
    char *path;
};

static bool is_first(const struct storage_hold *h)
{
    LIST_EACH (&h->s->holds, pos) {
        const struct storage_hold *other = LIST_ENTRY(pos, struct storage_hold, node);

        if (str_eq(other->path, h->path))
            return other == h;
    }
    return true;
}

struct storage_hold *storage_hold(struct ctx *ctx, struct storage *s, const char *path,
                                  struct err *err)
{
    struct storage_hold *h = mem_new(struct storage_hold);

    *h = (struct storage_hold){ .s = s, .path = str_dup(path) };
    list_append(&s->holds, &h->node);
    while (!is_first(h))
        if (waitq_wait(ctx, &s->holds_q, "another call to be done with this path", err) < 0) {
            err_wrap(err, "%s", path);
            storage_let_go(h);
            return NULL;
        }
    return h;
}

void storage_let_go(struct storage_hold *h)
{
    if (!h)
        return;
    list_remove(&h->node);
    waitq_wake_all(&h->s->holds_q);
    free(h->path);
    free(h);
}

/* --- beside the loop --- */

struct load {
    const char *name;
    int (*load_module)(const char *name, struct err *err);
};

static int load(void *arg, struct err *err)
{
    const struct load *l = arg;

    return l->load_module(l->name, err);
}

int storage_load(struct ctx *ctx, struct storage *s, const char *const *names, struct err *err)
{
    for (; *names; names++) {
        struct load l = { *names, s->load_module };
        if (OFFLOAD(ctx, load, &l, 1, NULL, "module to load", err) == 0)
            continue;
        if (err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err); /* built into the kernel: the mount will tell if not */
    }
    return 0;
}

struct path {
    const char *path;
};

static int unmount(void *arg, struct err *err)
{
    const char *path = ((struct path *)arg)->path;

    if (mnt_unmount(path, err) < 0)
        return -1;
    if (rmdir(path) == 0 || errno == ENOENT || errno == ENOTEMPTY)
        return 0;
    if (errno != ENOTDIR || unlink(path) < 0)
        return err_sys(err, errno, "remove %s", path);
    return 0;
}

int storage_unmount(struct ctx *ctx, const char *path, struct err *err)
{
    return OFFLOAD(ctx, unmount, &(struct path){ path }, 1, NULL, "path to be unmounted", err);
}

static int remove_tree(void *arg, struct err *err)
{
    const char *path = ((struct path *)arg)->path;
    int r = dir_remove(path);

    if (r == -EBUSY)
        return err_set(err, ERR_STATE, "remove %s: something is mounted in it", path);
    return r < 0 ? err_sys(err, -r, "remove %s", path) : 0;
}

int storage_remove_tree(struct ctx *ctx, const char *path, struct err *err)
{
    if (!path || !path[0])
        return 0;
    if (path_check_run(path, "path to remove", err) < 0)
        return -1;
    return OFFLOAD(ctx, remove_tree, &(struct path){ path }, 1, NULL, "tree to be removed", err);
}
