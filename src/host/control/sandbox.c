/* sandbox.c - create, start, queries. The end is in sandbox_end.c. */
#include "host/control/sandbox.h"
#include "base/exit_code.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/waits.h"
#include "host/config/annotations.h"
#include "host/config/sizing.h"
#include "host/control/bundle.h"
#include "host/control/container.h"
#include "host/control/pod.h"
#include "host/control/registry.h"
#include "host/control/sandbox_priv.h"
#include "host/device/network.h"
#include "oci/pods.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const states[] = { "NotCreated", "Created", "Ready", "Stopped", "ShutDown" };
static const char *const events[] = { "be created", "start", "stop", "shut down" };
static const struct fsm_edge edges[] = {
    { SANDBOX_NONE, SANDBOX_EV_CREATED, SANDBOX_CREATED },
    { SANDBOX_CREATED, SANDBOX_EV_STARTED, SANDBOX_READY },
    { SANDBOX_CREATED, SANDBOX_EV_STOPPED, SANDBOX_STOPPED }, /* never started, or that failed */
    { SANDBOX_READY, SANDBOX_EV_STOPPED, SANDBOX_STOPPED },
    { SANDBOX_STOPPED, SANDBOX_EV_SHUT, SANDBOX_SHUT },
};
FSM_DEFINE(sandbox_fsm, "sandbox", states, SANDBOX_STATE_COUNT, events, SANDBOX_EV_COUNT, edges);

struct sandbox *sandbox_new(struct registry *r)
{
    struct sandbox *s = mem_new(struct sandbox);

    s->r = r;
    gate_init(&s->gate, "sandbox");
    latch_init(&s->ended);
    cancel_init(&s->hurry, NULL);
    return s;
}

void sandbox_free(struct sandbox *s)
{
    if (!s)
        return;
    container_unref(s->holder);
    spec_free(s->spec);
    strv_release(&s->dns_servers);
    strv_release(&s->dns_search);
    free(s->id);
    free(s->bundle);
    free(s->netns);
    cancel_release(&s->hurry);
    free(s);
}

struct sandbox *sandbox_find(const struct registry *r, const char *id, struct err *err)
{
    if (r->sandbox && str_eq(r->sandbox->id, id))
        return r->sandbox;
    err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no sandbox %.*s", REGISTRY_ID_MAX,
                id ? id : "");
    return NULL;
}

/* --- create --- */

static int load_spec(struct ctx *ctx, const struct sandbox_create *c, struct spec **ret,
                     struct err *err)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    if (c->spec)
        return sandbox_spec_parse(c, c->spec, strlen(c->spec), ret, err);
    if (bundle_read(ctx, c->bundle, "read the sandbox's bundle", &text, &len, err) < 0) {
        if (err->sys != ENOENT)
            return -1;
        err_clear(err); /* CRI puts none there */
        text = str_dup("{}");
        len = 2;
    }
    if (sandbox_spec_parse(c, text, len, ret, err) < 0)
        return err_wrap_because(err, REASON_INVALID_BUNDLE, "%s/config.json", c->bundle);
    pods_drop_ours(*ret);
    return 0;
}

static void copy_words(struct strv *to, const char *const *from)
{
    for (; from && *from; from++)
        strv_add(to, *from);
}

static int check_new(const struct registry *r, const struct sandbox_create *c, struct err *err)
{
    const struct sandbox *s = r->sandbox;

    if (registry_check_id("sandbox id", c->id, REGISTRY_ID_MAX, err) < 0)
        return -1;
    if (!c->bundle || c->bundle[0] != '/')
        return err_because(err, REASON_INVALID_BUNDLE, ERR_INVALID,
                           "bundle \"%.128s\" of sandbox %s is not an absolute path",
                           c->bundle ? c->bundle : "", c->id);
    if (r->closing)
        return err_because(err, REASON_SHIM_LEAVING, ERR_UNAVAILABLE, "the shim is shutting down");
    if (s)
        return err_because(err, REASON_ALREADY_EXISTS, ERR_EXISTS, "sandbox %s exists already",
                           s->id);
    if (r->n_containers > 0)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "sandbox %s: this shim has containers without a sandbox", c->id);
    return 0;
}

static bool is_the_same(const struct registry *r, const struct sandbox_create *c)
{
    const struct sandbox *s = r->sandbox;

    return s && s->state == SANDBOX_CREATED && str_eq(s->id, c->id) &&
           str_eq(s->bundle, c->bundle) && str_eq(s->netns, c->netns ? c->netns : "");
}

int sandbox_create(struct ctx *ctx, struct registry *r, const struct sandbox_create *c,
                   struct err *err)
{
    AUTO(spec_free) struct spec *spec = NULL;
    struct annotations options;
    struct sizing size;
    struct vm_shape shape;
    struct sandbox *s;

    if (is_the_same(r, c))
        return 0;
    if (check_new(r, c, err) < 0)
        return -1;
    if (load_spec(ctx, c, &spec, err) < 0)
        return err_wrap(err, "create sandbox %s", c->id);
    if (annotations_read(r->o.config, spec, &options, err) < 0 ||
        sizing_of(r->o.config, spec, &options, &size, err) < 0 ||
        shape_of(&options, &size, &shape, err) < 0)
        return err_wrap(err, "create sandbox %s", c->id);
    if (is_the_same(r, c)) /* meanwhile */
        return 0;
    if (check_new(r, c, err) < 0)
        return -1;
    s = sandbox_new(r);
    s->id = str_dup(c->id);
    s->bundle = str_dup(c->bundle);
    s->netns = str_dup(c->netns ? c->netns : "");
    s->spec = TAKE_PTR(spec);
    copy_words(&s->dns_servers, c->dns_servers);
    copy_words(&s->dns_search, c->dns_search);
    s->dns = (struct network_dns){ (const char *const *)s->dns_servers.v,
                                   (const char *const *)s->dns_search.v };
    fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_CREATED);
    r->sandbox = s;
    return 0;
}

/* --- start --- */

static int check_start(struct sandbox *s, struct err *err)
{
    if (s->state == SANDBOX_CREATED && !s->asked)
        return 0;
    return err_because(err, REASON_WRONG_STATE, ERR_STATE, "sandbox %s is %s, cannot start", s->id,
                       s->asked ? "being stopped" : fsm_state_name(&sandbox_fsm, s->state));
}

static int start_pod(struct ctx *ctx, struct sandbox *s, struct err *err)
{
    AUTO(spec_free) struct spec *spec = spec_copy(s->spec);
    const struct container_create cc = {
        .id = s->id, .bundle = s->bundle, .spec = spec, .dns = &s->dns
    };
    struct ctx limited = ctx_with_timeout(ctx, SANDBOX_START_LIMIT);

    if (container_create(&limited, s->r, &cc, &s->holder, err) < 0 ||
        container_start(&limited, s->holder, "", &s->pid, err) < 0)
        return -1;
    return s->asked ? err_because(err, REASON_WRONG_STATE, ERR_UNAVAILABLE,
                                  "sandbox %s is being stopped", s->id)
                    : 0;
}

static void start_failed(struct sandbox *s)
{
    struct ctx own = ctx_background(s->r->o.loop, LK_SANDBOX_ID, s->id),
               limited = ctx_with_timeout(&own, SANDBOX_STOP_LIMIT);
    struct err err = ERR_INIT;

    if (sandbox_release(&limited, s, &err) < 0)
        log_error(&own, "releasing a failed sandbox is incomplete; StopSandbox will continue it",
                  F_ERR(&err));
    sandbox_ended(s, EXIT_LOST);
}

int sandbox_start(struct ctx *ctx, struct registry *r, const char *id, struct sandbox_view *ret,
                  struct err *err)
{
    struct sandbox *s = sandbox_find(r, id, err);
    struct ctx own = ctx_with_id(ctx, LK_SANDBOX_ID, id);
    AUTO(gate_leave) struct gate *held = NULL;

    if (!s)
        return -1;
    held = gate_enter(&s->gate, &own, "sandbox.start", err);
    if (!held)
        return -1;
    if (s->state != SANDBOX_READY) {
        if (check_start(s, err) < 0)
            return -1;
        s->starting = true;

        int n = start_pod(&own, s, err);

        if (n < 0)
            start_failed(s);
        s->starting = false; /* until now a stop leaves the sandbox's end to us */
        if (n < 0)
            return err_wrap(err, "start sandbox %s", id);
        s->created_wall_ns = loop_wall(r->o.loop);
        fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_STARTED);
        sandbox_watch(s);
        log_info(&own, "sandbox started", F_U(LK_PID, s->pid));
    }
    return sandbox_view(r, id, ret, err);
}

/* --- queries --- */

int sandbox_wait(struct ctx *ctx, struct registry *r, const char *id, struct sandbox_view *ret,
                 struct err *err)
{
    struct sandbox *s = sandbox_find(r, id, err);

    if (!s || latch_wait(ctx, &s->ended, WAIT_SANDBOX_END, err) < 0)
        return -1;
    return sandbox_view(r, id, ret, err);
}

int sandbox_view(const struct registry *r, const char *id, struct sandbox_view *ret,
                 struct err *err)
{
    const struct sandbox *s = sandbox_find(r, id, err);

    if (!s)
        return -1;
    *ret = (struct sandbox_view){ .state = s->state,
                                  .pid = s->state == SANDBOX_READY ? s->pid : 0,
                                  .exit_status = s->exit_status,
                                  .created_wall_ns = s->created_wall_ns,
                                  .exited_wall_ns = s->exited_wall_ns };
    return 0;
}

static struct sandbox *find_ready(const struct registry *r, const char *id, const char *what,
                                  struct err *err)
{
    struct sandbox *s = sandbox_find(r, id, err);

    if (!s || (s->state == SANDBOX_READY && s->holder && !container_has_ended(s->holder)))
        return s;
    err_because(
        err, REASON_WRONG_STATE, ERR_STATE, "sandbox %s is %s, cannot %s", id,
        s->state == SANDBOX_READY ? "being stopped" : fsm_state_name(&sandbox_fsm, s->state), what);
    return NULL;
}

int sandbox_ping(struct ctx *ctx, struct registry *r, const char *id, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, SANDBOX_PING_LIMIT);
    struct sandbox *s = find_ready(r, id, "ping it", err);
    AUTO(json_decref) json_t *ignored = NULL;

    if (!s || container_stats(&limited, s->holder, &ignored, err) < 0)
        return -1;
    return 0;
}

/* --- metrics --- */

/* False if the guest does not answer in time, or without these numbers. */
static bool add_guest_numbers(struct ctx *ctx, struct container *c, struct sandbox_stats *to)
{
    AUTO(json_decref) json_t *root = NULL;
    const json_t *pids = NULL, *oom = NULL;
    uint64_t current = 0, kills = 0;
    struct err ignored = ERR_INIT;

    if (container_stats(ctx, c, &root, &ignored) < 0 || js_obj(root, "pids", &pids, &ignored) < 0 ||
        js_obj(root, "memory_oom_control", &oom, &ignored) < 0 ||
        (pids && js_u64(pids, "current", &current, &ignored) < 0) ||
        (oom && js_u64(oom, "oom_kill", &kills, &ignored) < 0))
        return false;
    to->pids += current;
    to->oom_kills += kills;
    return true;
}

/* One that is being made or released has none to report. */
static bool has_numbers(const struct container *c)
{
    return container_parts(c)->in_guest && container_state(c) != CONTAINER_NOT_CREATED;
}

static void ask_guest(struct ctx *ctx, struct registry *r, struct sandbox_stats *to)
{
    struct ctx limited = ctx_with_timeout(ctx, SANDBOX_STATS_LIMIT);
    AUTO(registry_release_all) struct container **all = registry_all(r);

    to->guest = all[0] != NULL;
    for (struct container **c = all; *c; c++)
        to->guest = to->guest &&
                    (!has_numbers(*c) || add_guest_numbers(&limited, *c, to) || !has_numbers(*c));
}

/* The network may go while its counters are read. */
static void count_nics(struct ctx *ctx, const struct pod *pod, struct sandbox_stats *to)
{
    struct err ignored = ERR_INIT;
    size_t cap = 0;

    for (size_t i = 0; pod->network && network_state(pod->network) == NETWORK_ATTACHED &&
                       i < network_count(pod->network);
         i++) {
        struct sandbox_nic nic = { 0 };

        snprintf(nic.name, sizeof(nic.name), "%s", network_iface(pod->network, i)->name);
        if (network_stats(ctx, pod->network, i, &nic.stats, &ignored) < 0)
            continue;
        to->nics = mem_grow(to->nics, to->n_nics, &cap, sizeof(*to->nics));
        to->nics[to->n_nics++] = nic;
    }
}

int sandbox_stats(struct ctx *ctx, struct registry *r, const char *id, struct sandbox_stats *ret,
                  struct err *err)
{
    struct sandbox *s = find_ready(r, id, "read its metrics", err);
    struct vmm_stats v = { 0 };

    if (!s)
        return -1;

    AUTO(container_unref) struct container *holder = container_ref(s->holder);

    if (vm_stats(ctx, r->vm, &v, err) < 0)
        return -1;
    *ret = (struct sandbox_stats){ v.cpu_ns, v.rss_bytes, v.memory_bytes };
    count_nics(ctx, container_pod(holder), ret);
    ask_guest(ctx, r, ret);
    return 0;
}

void sandbox_stats_release(struct sandbox_stats *s)
{
    free(s->nics);
    *s = (struct sandbox_stats){ 0 };
}

bool sandbox_alive(const struct registry *r)
{
    return r->sandbox && r->sandbox->state != SANDBOX_SHUT;
}

int sandbox_admits(const struct registry *r, const char *id, struct err *err)
{
    const struct sandbox *s = r->sandbox;

    if (s && str_eq(s->id, id))
        return err_because(err, REASON_ALREADY_EXISTS, ERR_EXISTS, "container %s exists already",
                           id);
    if (s && (s->state != SANDBOX_READY || s->asked))
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "sandbox %s is %s: cannot create container %s in it", s->id,
                           s->asked ? "being stopped" : fsm_state_name(&sandbox_fsm, s->state), id);
    return 0;
}

const char *sandbox_bundle(const struct registry *r)
{
    return r->sandbox->bundle;
}
