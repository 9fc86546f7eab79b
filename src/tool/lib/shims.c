#include "tool/lib/shims.h"
#include "api/lcow.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "host/control/run_note.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/leftovers.h"
#include <stdlib.h>
#include <string.h>

#define ASK_LIMIT (5 * NS_PER_S)      /* it asks nobody else for that */
#define MEASURE_LIMIT (10 * NS_PER_S) /* the shim waits half of it for its guest */
#define CONNECT_LIMIT (2 * NS_PER_S)
#define DOC_MAX_BYTES (8u << 20)
#define SERVICE "lcow.v1.Shim"

/* ---- which there are */

static int on_dir(void *arg, const struct leftover *l)
{
    struct shims *list = arg;
    const char *slash = strchr(l->name, '/');
    struct shim s = { .why = ERR_INIT };
    AUTO(run_note_release) struct run_note note = { 0 };

    /* Without the file it is a VM of `lcow boot`, or a shim that is just beginning. */
    if (l->err || !l->alive || run_note_read(l->dir, &note, &s.why) < 0)
        return 0;
    s.address = TAKE_PTR(note.address);
    s.version = TAKE_PTR(note.version);
    s.pid = note.pid;
    s.ns = str_format("%.*s", (int)(slash - l->name), l->name);
    s.id = str_dup(slash + 1);
    list->v = mem_grow(list->v, list->n, &list->cap, sizeof(*list->v));
    list->v[list->n++] = s;
    return 0;
}

int shims_list(const char *run_root, struct shims *ret, struct err *err)
{
    *ret = (struct shims){ 0 };
    return leftovers_walk(run_root, on_dir, ret, err);
}

void shims_release(struct shims *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->v[i].ns);
        free(s->v[i].id);
        free(s->v[i].address);
        free(s->v[i].version);
        json_decref(s->v[i].doc);
    }
    free(s->v);
    *s = (struct shims){ 0 };
}

/* ---- what they say */

int shim_connect(struct ctx *ctx, const struct shim *s, struct rpc_client **ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONNECT_LIMIT);

    if (rpc_client_connect(&limited, s->address, ret, err) < 0)
        return err_wrap(err, "shim of %s/%s (pid %d)", s->ns, s->id, (int)s->pid);
    return 0;
}

int shim_answers(const struct shim *s, struct err *err)
{
    if (s->doc || s->why.code == ERR_NONE || s->why.code == ERR_UNIMPLEMENTED)
        return 0;
    *err = s->why;
    return err_wrap(err, "shim of %s/%s", s->ns, s->id);
}

static int ask(struct ctx *ctx, struct shim *s, bool ask_guest, json_t **ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, ask_guest ? MEASURE_LIMIT : ASK_LIMIT);
    Lcow__InspectRequest req = LCOW__INSPECT_REQUEST__INIT;
    AUTO(rpc_client_free) struct rpc_client *client = NULL;
    AUTO(pb_free) Lcow__InspectResponse *resp = NULL;

    req.ask_guest = ask_guest;
    if (shim_connect(&limited, s, &client, err) < 0)
        return -1;
    if (rpc_client_call(&limited, client, SERVICE, "Inspect", &req,
                        &lcow__inspect_response__descriptor, (void **)&resp, err) < 0) {
        if (err->code == ERR_UNIMPLEMENTED)
            return err_set(err, ERR_UNIMPLEMENTED,
                           "it is of version %s and does not know this tool's questions",
                           s->version);
        if (err->code == ERR_DEADLINE)
            return err_set(err, ERR_DEADLINE, "it does not answer; is pid %d stopped?",
                           (int)s->pid);
        return -1;
    }
    return js_parse(resp->json, strlen(resp->json), DOC_MAX_BYTES, ret, err);
}

struct asking {
    struct ctx *ctx;
    struct shim *shim;
};

static void ask_main(void *arg)
{
    struct asking *a = arg;

    (void)ask(a->ctx, a->shim, false, &a->shim->doc, &a->shim->why);
}

void shims_ask(struct ctx *ctx, struct shims *s)
{
    AUTO_FREE struct asking *asking = mem_zalloc(s->n * sizeof(*asking));
    struct err ignored = ERR_INIT;
    struct group group;

    group_init(&group);
    for (size_t i = 0; i < s->n; i++) {
        asking[i] = (struct asking){ ctx, &s->v[i] };
        group_go(&group, ctx->loop, ask_main, &asking[i], "ask %s", s->v[i].id);
    }

    struct ctx root = ctx_root(ctx->loop); /* each has its limit; they use what is on our stack */

    (void)group_wait(&root, &group, "the shims' answers", &ignored);
}

const json_t *shims_container(const struct shim *s, const char *id)
{
    const json_t *list = s->doc ? json_object_get(s->doc, "containers") : NULL;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);

        if (str_eq(json_string_value(json_object_get(c, "id")), id))
            return c;
    }
    return NULL;
}

void shims_measure(struct ctx *ctx, struct shims *shims, const struct shim *s)
{
    struct shim *own = &shims->v[s - shims->v];
    struct err ignored = ERR_INIT;
    json_t *doc = NULL;

    if (ask(ctx, own, true, &doc, &ignored) < 0)
        return;
    json_decref(own->doc);
    own->doc = doc;
}

/* ---- one of them by its name */

struct search {
    const char *ns, *word; /* ns NULL: any */
    const struct shim *shim;
    const char *container;
    size_t n;
    bool exact;
    struct sbuf matches;
    struct strv all;
};

static void consider(struct search *f, const struct shim *s, const char *container)
{
    const char *id = container ? container : s->id;
    bool exact = str_eq(id, f->word);

    strv_add(&f->all, id);
    if ((f->ns && !str_eq(f->ns, s->ns)) || !str_starts(id, f->word))
        return;
    if (f->shim == s && !f->container && str_eq(id, s->id))
        return; /* a pod's first container has the pod's name */
    if (f->exact && !exact)
        return;
    if (exact && !f->exact) {
        f->exact = true;
        f->n = 0;
        sbuf_release(&f->matches);
    }
    f->shim = s;
    f->container = container;
    f->n++;
    sbuf_addf(&f->matches, "%s%s/%s", f->matches.len ? ", " : "", s->ns, id);
}

static int judge(struct search *f, const char *word, struct err *err)
{
    const char *near;

    if (f->n == 1)
        return 0;
    if (f->n > 1)
        return err_set(err, ERR_INVALID, "\"%s\" matches %.300s: give more of it", word,
                       f->matches.data);
    near = f->all.n ? str_nearest(f->word, (const char *const *)f->all.v) : NULL;
    return err_set(err, ERR_NOT_FOUND,
                   "there is no sandbox or container \"%.80s\"%s%s; see: lcow ps", word,
                   near ? ", but " : "", near ? near : "");
}

int shims_find(const struct shims *s, const char *word, const struct shim **ret,
               const char **ret_container, struct err *err)
{
    const char *slash = strchr(word, '/');
    AUTO_FREE char *ns = slash ? str_format("%.*s", (int)(slash - word), word) : NULL;
    struct search f = { .ns = ns, .word = slash ? slash + 1 : word };
    int r;

    for (size_t i = 0; i < s->n; i++) {
        const json_t *list = s->v[i].doc ? json_object_get(s->v[i].doc, "containers") : NULL;

        consider(&f, &s->v[i], NULL);
        for (size_t k = 0; k < json_array_size(list); k++) {
            const char *id = json_string_value(json_object_get(json_array_get(list, k), "id"));

            if (id)
                consider(&f, &s->v[i], id);
        }
    }
    r = judge(&f, word, err);
    sbuf_release(&f.matches);
    strv_release(&f.all);
    *ret = f.shim;
    *ret_container = f.container;
    return r;
}

int shim_of(struct ctx *ctx, const char *run_root, const char *word, struct rpc_client **ret,
            struct err *err)
{
    AUTO(shims_release) struct shims shims = { 0 };
    const struct shim *s;
    const char *container;

    if (shims_list(run_root, &shims, err) < 0)
        return -1;
    shims_ask(ctx, &shims); /* a container's id needs them all */
    if (shims_find(&shims, word, &s, &container, err) < 0 || shim_answers(s, err) < 0)
        return -1;
    return shim_connect(ctx, s, ret, err);
}
