#include "guest/storage/storage.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/storage/path.h"
#include "guest/storage/storage_priv.h"
#include <errno.h>
#include <stdlib.h>

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

struct block {
    int (*fn)(struct storage_work *w, struct err *err);
    struct storage_work work;
};

static void block_free(void *arg)
{
    struct block *b = arg;

    if (!b)
        return;
    free(b->work.a);
    free(b->work.b);
    free(b->work.c);
    free(b->work.d);
    free(b->work.made);
    free(b);
}

static int block_run(void *arg, struct err *err)
{
    struct block *b = arg;

    return b->fn(&b->work, err);
}

static int run(struct ctx *ctx, int (*fn)(struct storage_work *w, struct err *err),
               const struct storage_work *in, const char *why, struct block **ret, struct err *err)
{
    struct block *b = mem_new(struct block);
    void *arg = b;

    b->fn = fn;
    b->work = *in;
    b->work.a = str_dup(in->a);
    b->work.b = str_dup(in->b);
    b->work.c = str_dup(in->c);
    b->work.d = str_dup(in->d);
    int r = offload_run(ctx, block_run, &arg, block_free, why, err);
    *ret = arg;
    return r;
}

int storage_block(struct ctx *ctx, int (*fn)(struct storage_work *w, struct err *err),
                  const struct storage_work *in, const char *why, const char **ret_found,
                  struct err *err)
{
    struct block *b = NULL;
    int r = run(ctx, fn, in, why, &b, err);

    if (r == 0 && ret_found)
        *ret_found = b->work.found;
    block_free(b);
    return r;
}

int storage_block_made(struct ctx *ctx, int (*fn)(struct storage_work *w, struct err *err),
                       const struct storage_work *in, const char *why, char **ret_made,
                       struct err *err)
{
    struct block *b = NULL;
    int r = run(ctx, fn, in, why, &b, err);

    if (r == 0)
        *ret_made = TAKE_PTR(b->work.made);
    block_free(b);
    return r;
}

int storage_block_bytes(struct ctx *ctx, int (*fn)(struct storage_work *w, struct err *err),
                        const struct storage_work *in, const char *why, uint64_t *ret_bytes,
                        struct err *err)
{
    struct block *b = NULL;
    int r = run(ctx, fn, in, why, &b, err);

    if (r == 0)
        *ret_bytes = b->work.bytes;
    block_free(b);
    return r;
}

static int load_one(struct storage_work *w, struct err *err)
{
    return w->load_module(w->a, err);
}

int storage_load(struct ctx *ctx, struct storage *s, const char *const *names, struct err *err)
{
    for (; *names; names++) {
        const struct storage_work w = { .a = (char *)*names, .load_module = s->load_module };
        if (storage_block(ctx, load_one, &w, "module to load", NULL, err) == 0)
            continue;
        if (err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err); /* built into the kernel: the mount will tell if not */
    }
    return 0;
}

static int remove_tree(struct storage_work *w, struct err *err)
{
    int r = dir_remove(w->a);

    if (r == -EBUSY)
        return err_set(err, ERR_STATE, "remove %s: something is mounted in it", w->a);
    return r < 0 ? err_sys(err, -r, "remove %s", w->a) : 0;
}

int storage_remove_tree(struct ctx *ctx, const char *path, struct err *err)
{
    const struct storage_work w = { .a = (char *)path };

    if (!path || !path[0])
        return 0;
    if (path_check_run(path, "path to remove", err) < 0)
        return -1;
    return storage_block(ctx, remove_tree, &w, "tree to be removed", NULL, err);
}
