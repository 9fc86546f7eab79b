/* sandbox_save.c - the sandbox of the Sandbox API. Not saved: the grace of a stop and who hurries
 * it, since a sandbox that is being stopped cannot be saved. The fiber that sees its end is started
 * again. */
#include "base/json.h"
#include "base/saved.h"
#include "host/control/container.h"
#include "host/control/pod.h"
#include "host/control/registry.h"
#include "host/control/sandbox_priv.h"
#include "oci/spec.h"

static void fields(struct saved *s, struct sandbox *b)
{
    saved_str(s, 1, &b->id);
    saved_str(s, 2, &b->bundle);
    saved_str(s, 3, &b->netns);
    saved_strv(s, 4, &b->dns_servers);
    saved_strv(s, 5, &b->dns_search);
    SAVED_ENUM(s, 6, b->state, SANDBOX_STATE_COUNT);
    saved_bool(s, 7, &b->asked);
    saved_u32(s, 8, &b->pid);
    saved_u32(s, 9, &b->exit_status);
    saved_u64(s, 10, &b->created_wall_ns);
    saved_u64(s, 11, &b->exited_wall_ns);
    b->dns = (struct network_dns){ (const char *const *)b->dns_servers.v,
                                   (const char *const *)b->dns_search.v };
}

static void spec_part(struct saved *s, struct sandbox *b)
{
    AUTO(json_decref) json_t *root = b->spec ? json_incref(spec_json(b->spec)) : NULL;
    struct err err = ERR_INIT;

    json_saved(s, 12, &root);
    if (saved_reads(s) && root && spec_from_json(root, &b->spec, &err) < 0)
        saved_fail(s, "%s", err.msg);
}

/* By its place among the containers; beyond them: there is none. */
static void holder_part(struct saved *s, struct sandbox *b)
{
    struct registry *r = b->r;
    uint64_t at = 0;

    while (at < r->n_containers && r->containers[at] != b->holder)
        at++;
    saved_u64(s, 13, &at);
    if (!saved_reads(s)) {
        if (b->holder && at == r->n_containers)
            saved_fail(s, "the container of sandbox %s is being deleted", b->id);
    } else if (at < r->n_containers) {
        b->holder = container_ref(r->containers[at]);
        container_pod(b->holder)->dns = &b->dns;
    }
}

static void resume(struct sandbox *b)
{
    if (b->state >= SANDBOX_STOPPED)
        latch_set(&b->ended);
    if (b->state == SANDBOX_READY)
        sandbox_watch(b);
}

void sandbox_saved(struct saved *s, uint32_t field, struct registry *r)
{
    struct sandbox *b = r->sandbox;
    struct err ignored = ERR_INIT;

    if ((!saved_reads(s) && !b) || !saved_open(s, field))
        return;
    if (saved_reads(s))
        b = r->sandbox = sandbox_new(r);
    else if (b->starting || b->stopping)
        saved_fail(s, "sandbox %s is being started or stopped", b->id);
    fields(s, b);
    spec_part(s, b);
    holder_part(s, b);
    saved_close(s);
    if (!b->id || !b->bundle || !b->netns || !b->spec || b->state == SANDBOX_NONE ||
        (b->state == SANDBOX_READY && !b->holder))
        saved_fail(s, "the sandbox is incomplete");
    if (saved_reads(s) && saved_check(s, &ignored) == 0)
        resume(b);
}
