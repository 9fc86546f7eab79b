#include "tool/lib/shims.h"
#include "api/lcow.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "host/control/run_note.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/leftovers.h"
#include "tool/lib/search.h"
#include <stdlib.h>
#include <string.h>

#define ASK_LIMIT (5 * NS_PER_S)      /* it asks nobody else for that */
#define MEASURE_LIMIT (10 * NS_PER_S) /* the shim waits half of it for its guest */
#define CONNECT_LIMIT (2 * NS_PER_S)
#define DOC_MAX_BYTES (8u << 20)

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

int shim_call(struct ctx *ctx, struct rpc_client *client, uint64_t limit_ns,
              const struct ProtobufCServiceDescriptor *service, const char *method, const void *req,
              void **ret_resp, struct err *err)
{
    struct ctx limited = limit_ns ? ctx_with_timeout(ctx, limit_ns) : *ctx;
    const ProtobufCMethodDescriptor *m =
        protobuf_c_service_descriptor_get_method_by_name(service, method);

    return rpc_client_call(&limited, client, service->name, method, req, m->output, ret_resp, err);
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
    if (shim_call(&limited, client, 0, &lcow__shim__descriptor, "Inspect", &req, (void **)&resp,
                  err) < 0) {
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

static void ask_one(struct ctx *ctx, struct shim *s)
{
    (void)ask(ctx, s, false, &s->doc, &s->why);
}

int shims_list(struct ctx *ctx, const char *run_root, struct shims *ret, struct err *err)
{
    *ret = (struct shims){ 0 };
    if (leftovers_walk(run_root, on_dir, ret, err) < 0)
        return -1;
    shims_each(ctx, ret, ask_one, "ask");
    return 0;
}

struct job {
    struct ctx *ctx;
    struct shim *shim;
    void (*fn)(struct ctx *ctx, struct shim *s);
};

static void run_job(void *arg)
{
    struct job *job = arg;

    job->fn(job->ctx, job->shim);
}

void shims_each(struct ctx *ctx, struct shims *s, void (*fn)(struct ctx *ctx, struct shim *s),
                const char *doing)
{
    AUTO_FREE struct job *jobs = mem_zalloc((s->n + 1) * sizeof(*jobs));
    struct ctx root = ctx_root(ctx->loop); /* each has its limit; they use what is on our stack */
    struct err ignored = ERR_INIT;
    struct group group;

    group_init(&group);
    for (size_t i = 0; i < s->n; i++) {
        jobs[i] = (struct job){ ctx, &s->v[i], fn };
        group_go(&group, ctx->loop, run_job, &jobs[i], "%s %s/%s", doing, s->v[i].ns, s->v[i].id);
    }
    (void)group_wait(&root, &group, "the shims", &ignored);
}

const json_t *shims_container(const struct shim *s, const char *id)
{
    const json_t *list = json_object_get(s->doc, "containers");

    for (size_t i = 0; i < json_array_size(list); i++)
        if (str_eq(doc_text(json_array_get(list, i), "id"), id))
            return json_array_get(list, i);
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

int shims_find(const struct shims *s, const char *word, const struct shim **ret,
               const char **ret_container, struct err *err)
{
    struct search f;

    *ret = NULL;
    *ret_container = NULL;
    search_init(&f, word);
    for (size_t i = 0; i < s->n; i++) {
        const struct shim *one = &s->v[i];
        const json_t *list = json_object_get(one->doc, "containers");

        if (search_offer(&f, one->ns, one->id)) {
            *ret = one;
            *ret_container = NULL;
        }
        for (size_t k = 0; k < json_array_size(list); k++) {
            const char *id = json_string_value(json_object_get(json_array_get(list, k), "id"));
            bool same = *ret == one && !*ret_container && str_eq(id, one->id);

            /* A pod's first container has the pod's name. */
            if (id && !same && search_offer(&f, one->ns, id)) {
                *ret = one;
                *ret_container = id;
            }
        }
    }
    return search_end(&f, "there is no sandbox or container", ", but ", "see: lcow ps", err);
}

const char *doc_text(const json_t *obj, const char *key)
{
    const char *text = json_string_value(json_object_get(obj, key));

    return text ? text : "";
}

uint64_t doc_number(const json_t *obj, const char *key)
{
    struct err ignored = ERR_INIT;
    uint64_t n = 0;

    (void)js_u64(obj, key, &n, &ignored);
    return n;
}

json_t *doc_string(const char *text)
{
    return text ? json_string_nocheck(text) : json_null();
}
