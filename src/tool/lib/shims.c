#include "tool/lib/shims.h"
#include "api/cgroups_v1.pb-c.h"
#include "api/cgroups_v2.pb-c.h"
#include "api/lcow.pb-c.h"
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "host/control/run_file.h"
#include "host/ledger/ledger.h"
#include "host/rpc/rpc_client.h"
#include "proto/pb.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ASK_LIMIT (5 * NS_PER_S)      /* the shim answers these calls by itself */
#define MEASURE_LIMIT (10 * NS_PER_S) /* the shim waits half of it for its guest */
#define CONNECT_LIMIT (2 * NS_PER_S)
#define DOC_MAX_BYTES (8u << 20)
#define STATS_LIMIT (2 * NS_PER_S)
#define PROC_MAX 8192u

/* ---- the directories of VMs */

static int not_hidden(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

/* The sorted names of subdirectories; none if the directory is missing. */
static int dirs_of(const char *dir, struct strv *ret, struct err *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, not_hidden, alphasort);

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read %s", dir);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name);
        struct stat st;

        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
            strv_add(ret, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return 0;
}

int leftovers_walk(const char *run_root, int (*fn)(void *arg, const struct leftover *), void *arg,
                   struct err *err)
{
    AUTO(strv_release) struct strv spaces = { 0 };

    if (dirs_of(run_root, &spaces, err) < 0)
        return -1;
    for (size_t i = 0; i < spaces.n; i++) {
        AUTO_FREE char *space = str_format("%s/%s", run_root, spaces.v[i]);
        AUTO(strv_release) struct strv ids = { 0 };

        if (dirs_of(space, &ids, err) < 0)
            return -1;
        for (size_t k = 0; k < ids.n; k++) {
            AUTO_FREE char *name = str_format("%s/%s", spaces.v[i], ids.v[k]);
            AUTO_FREE char *dir = str_format("%s/%s", run_root, name);
            struct leftover l = { .name = name, .dir = dir };
            struct err why = ERR_INIT;

            if (ledger_owner_alive(dir, &l.alive, &why) < 0)
                l.err = &why;
            if (fn(arg, &l) < 0)
                return -1;
        }
    }
    return 0;
}

/* ---- finding shims */

static int on_dir(void *arg, const struct leftover *l)
{
    struct shims *list = arg;
    const char *slash = strchr(l->name, '/');
    struct shim s = { .why = ERR_INIT };
    AUTO(run_file_release) struct run_file run = { 0 };

    /* Without a run file it is a VM of `lcow boot` without --keep, or a shim that is starting. */
    if (l->err || !l->alive || run_file_read(l->dir, &run, &s.why) < 0)
        return 0;
    s.address = str_dup(run.address);
    s.version = str_dup(run.version);
    s.pid = run.pid;
    for (size_t i = 0; i < run.n && !s.hidden; i++)
        s.hidden = run.v[i].hidden ? str_dup(run.v[i].id) : NULL;
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
        free(s->v[i].hidden);
        json_decref(s->v[i].doc);
    }
    free(s->v);
    *s = (struct shims){ 0 };
}

/* ---- calling shims */

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
                           "the shim has version %s, which does not support this call of lcow",
                           s->version);
        if (err->code == ERR_DEADLINE)
            return err_set(err, ERR_DEADLINE,
                           "the shim does not answer; check whether pid %d is stopped",
                           (int)s->pid);
        return -1;
    }
    return js_parse(resp->json, strlen(resp->json), DOC_MAX_BYTES, ret, err);
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

/* Calls fn for all shims concurrently and waits. doing: the name of their fibers. */
static void shims_each(struct ctx *ctx, struct shims *s,
                       void (*fn)(struct ctx *ctx, struct shim *s), const char *doing)
{
    AUTO_FREE struct job *jobs = mem_zalloc((s->n + 1) * sizeof(*jobs));
    struct ctx root =
        ctx_root(ctx->loop); /* no limit here: each job has one, and the jobs use our stack */
    struct err ignored = ERR_INIT;
    struct fibers fibers;

    fibers_init(&fibers);
    for (size_t i = 0; i < s->n; i++) {
        jobs[i] = (struct job){ ctx, &s->v[i], fn };
        fibers_go(&fibers, ctx->loop, run_job, &jobs[i], "%s %s/%s", doing, s->v[i].ns, s->v[i].id);
    }
    (void)fibers_wait(&root, &fibers, "the shims", &ignored);
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

/* ---- resources, on the host */

static uint64_t pss_of(int64_t pid)
{
    AUTO_FREE char *text = file_text(PROC_MAX, "/proc/%" PRId64 "/smaps_rollup", pid);
    const char *line = text ? strstr(text, "\nPss:") : NULL;

    return line ? strtoull(line + strlen("\nPss:"), NULL, 10) * 1024 : 0;
}

/* utime and stime: the 14th and 15th word, the 12th and 13th after the name in parentheses. */
static uint64_t cpu_of(int64_t pid)
{
    AUTO_FREE char *text = file_text(PROC_MAX, "/proc/%" PRId64 "/stat", pid);
    char *at = text ? strrchr(text, ')') : NULL;

    for (int i = 0; at && i < 12; i++)
        at = strchr(at + 1, ' ');
    if (!at)
        return 0;

    uint64_t ticks = strtoull(at, &at, 10);

    ticks += strtoull(at, NULL, 10);
    return ticks * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
}

static void host_side(const struct shim *s, struct cost *c)
{
    const json_t *list = json_object_get(s->doc, "containers");
    int64_t vmm = (int64_t)doc_number(json_object_get(s->doc, "vm"), "pid");

    c->shim_pss = pss_of(s->pid);
    c->vmm_pss = pss_of(vmm);
    c->host_cpu_ns = cpu_of(s->pid) + cpu_of(vmm);
    for (size_t i = 0; i < json_array_size(list); i++)
        c->anchors_pss += pss_of((int64_t)doc_number(json_array_get(list, i), "pid"));
}

/* ---- resources, in the guest */

static void add_stats(const Any *any, struct cost *c)
{
    Cgroups1__Metrics *v1 = NULL;
    Cgroups2__Metrics *v2 = NULL;

    if (pb_any_unpack(any, &cgroups1__metrics__descriptor, (void **)&v1) == 0) {
        if (v1->memory && v1->memory->usage)
            c->guest_memory += v1->memory->usage->usage;
        if (v1->cpu && v1->cpu->usage)
            c->guest_cpu_ns += v1->cpu->usage->total;
    } else if (pb_any_unpack(any, &cgroups2__metrics__descriptor, (void **)&v2) == 0) {
        if (v2->memory)
            c->guest_memory += v2->memory->usage;
        if (v2->cpu)
            c->guest_cpu_ns += v2->cpu->usage_usec * NS_PER_US;
    }
    pb_free(v1);
    pb_free(v2);
}

static int guest_side(struct ctx *ctx, const struct shim *s, struct cost *c, struct err *err)
{
    const json_t *list = json_object_get(s->doc, "containers");
    AUTO(rpc_client_free) struct rpc_client *client = NULL;

    if (!s->doc || shim_connect(ctx, s, &client, err) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        AUTO(pb_free) StatsResponse *resp = NULL;
        StatsRequest req = STATS_REQUEST__INIT;

        if (json_object_get(one, "exited_ns"))
            continue;
        req.id = json_string_value(json_object_get(one, "id"));
        if (!req.id)
            return -1;
        if (shim_call(ctx, client, 0, &task__descriptor, "Stats", &req, (void **)&resp, err) == 0)
            add_stats(resp->stats, c);
        else if (err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err); /* the container is hidden or was deleted; measure the others */
    }
    c->guest = 1;
    return 0;
}

static void measure(struct ctx *ctx, struct shim *s)
{
    struct ctx limited = ctx_with_timeout(ctx, STATS_LIMIT);
    struct err ignored = ERR_INIT; /* on failure the values stay 0 */

    host_side(s, &s->cost);
    (void)guest_side(&limited, s, &s->cost, &ignored);
    s->cost.at = loop_now(ctx->loop);
}

void shims_cost(struct ctx *ctx, struct shims *s)
{
    shims_each(ctx, s, measure, "measure");
}

/* ---- finding one by its id */

void search_init(struct search *s, const char *word)
{
    const char *slash = strchr(word, '/');

    *s = (struct search){ .word = word,
                          .ns = slash ? str_ndup(word, (size_t)(slash - word)) : NULL,
                          .id = slash ? slash + 1 : word };
}

bool search_offer(struct search *s, const char *ns, const char *id)
{
    bool exact = str_eq(id, s->id);

    strv_add(&s->all, id);
    if ((s->ns && !str_eq(s->ns, ns)) || !str_starts(id, s->id) || (s->exact && !exact))
        return false;
    if (exact && !s->exact) {
        s->exact = true;
        s->n = 0;
        sbuf_release(&s->matches);
    }
    s->n++;
    sbuf_addf(&s->matches, "%s%s/%s", s->matches.len ? ", " : "", ns, id);
    return true;
}

int search_end(struct search *s, const char *none, const char *but, const char *see,
               struct err *err)
{
    const char *near = NULL;
    int r = 0;

    if (s->n > 1)
        r = err_set(err, ERR_INVALID, "\"%s\" matches %.300s; use a longer part of the ID", s->word,
                    s->matches.data);
    else if (s->n == 0 && s->all.n > 0)
        near = str_nearest(s->id, (const char *const *)s->all.v);
    if (s->n == 0)
        r = err_set(err, ERR_NOT_FOUND, "%s \"%.80s\"%s%s; %s", none, s->word, near ? but : "",
                    near ? near : "", see);
    free(s->ns);
    sbuf_release(&s->matches);
    strv_release(&s->all);
    return r;
}

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

            /* A pod's first container has the pod's id. */
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

bool shim_is_behind(const struct shim *s)
{
    return s->version && !str_eq(s->version, LCOW_VERSION);
}
