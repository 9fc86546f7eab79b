/* reg_client.c - what a client of the registry does, step by step, by the dice. */
#include "base/log.h"
#include "base/loop.h"
#include "fixture/fake_host.h"
#include "fixture/ids_fixture.h"
#include "reg_priv.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Clean-up continues without its client for so long at most; less where guest and host do what
 * they are asked. */
#define SLACK (CONTAINER_UNDO_LIMIT + 15 * NS_PER_S)
#define SLACK_WILLING (5 * NS_PER_S)
/* From a Kill that succeeded to the exit: the guest's time, then that of output, execs and OOM. */
#define KILLED_BOUND (150 * NS_PER_S)

static uint64_t slack(const struct reg *s)
{
    bool willing = s->fault == REG_NONE || s->fault == REG_BOOT || s->fault == REG_DEATH ||
                   s->fault == REG_CANCELLED;

    return willing ? SLACK_WILLING : SLACK;
}

enum action {
    ACT_CREATE,
    ACT_START,
    ACT_EXEC,
    ACT_START_EXEC,
    ACT_KILL,
    ACT_WAIT,
    ACT_PAUSE,
    ACT_RESUME,
    ACT_DELETE,
    ACT_DELETE_EXEC,
    ACT_STATS,
    ACT_UPDATE,
    ACT_LOOK,
    ACT_CLOSE_STDIN,
    ACT_RESIZE,
    ACT_KILL_ANCHOR,
    ACT_COUNT
};
static const char *const names[] = { "create", "start",       "exec",   "start exec",
                                     "kill",   "wait",        "pause",  "resume",
                                     "delete", "delete exec", "stats",  "update",
                                     "look",   "close stdin", "resize", "kill the anchor of" };
_Static_assert(ARRAY_LEN(names) == ACT_COUNT, "a name for each action");

struct step {
    struct reg *s;
    char id[2], exec[3];
    struct ctx *ctx;
    struct err *err;
};

static struct container *find(struct step *t)
{
    return registry_find(t->s->registry, t->id, t->err);
}

static int create(struct step *t)
{
    struct reg *s = t->s;
    AUTO_FREE char *bundle = str_format("%s/%s", s->w.dir, s->pods ? t->id : "");
    const struct container_create cc = { .id = t->id,
                                         .bundle = bundle,
                                         .stdio = { world_chance(&s->w, 300) ? "/in" : "", "/out",
                                                    world_chance(&s->w, 500) ? "/err" : "" } };
    AUTO(container_unref) struct container *c = NULL;
    int r = container_create(t->ctx, s->registry, &cc, &c, t->err);

    if (r == 0 && container_parts(c)->pid == 0)
        world_broken(&s->w, "create of %s gives pid 0", t->id);
    return r;
}

static int start(struct step *t, const char *exec)
{
    struct container *c = find(t);
    uint32_t pid;

    return c ? container_start(t->ctx, c, exec, &pid, t->err) : -1;
}

static int exec(struct step *t)
{
    static const char process[] = "{\"args\":[\"sh\"],\"cwd\":\"/\"}";
    const struct container_exec e = { .exec_id = t->exec,
                                      .stdio.out = "/out",
                                      .process_json = process,
                                      .process_len = sizeof(process) - 1 };
    struct container *c = find(t);

    return c ? container_exec(c, &e, t->err) : -1;
}

/* --- Kill --- */

struct victim {
    struct reg *s;
    const char *why;
    struct process *init; /* counted */
    char id[2];
};

static void victim_main(void *arg)
{
    struct victim *v = arg;
    struct ctx ctx = ctx_limited(v->s->w.loop, KILLED_BOUND);
    struct process_view view;
    struct err err = ERR_INIT;

    if (process_wait(&ctx, v->init, &view, &err) < 0 && err.code == ERR_DEADLINE)
        world_broken(&v->s->w, "%s, and container %s keeps running", v->why, v->id);
    process_unref(v->init);
    v->s->inside--;
    free(v);
}

/* All that run in the pod of its first container c; else c itself. */
static void find_victims(struct step *t, struct container *c, const char *why,
                         struct victim *ret[REG_CONTAINERS])
{
    struct reg *s = t->s;

    for (unsigned i = 0; i < REG_CONTAINERS; i++) {
        const char id[] = { (char)('a' + i), '\0' };
        bool meant = id[0] == t->id[0] || (s->pods && reg_holder(id) == t->id[0]);
        struct err none = ERR_INIT;
        struct container *m = meant ? registry_find(s->registry, id, &none) : NULL;

        if (!m || container_pod(m) != container_pod(c) || container_state(m) != CONTAINER_RUNNING)
            continue;
        ret[i] = mem_new(struct victim);
        *ret[i] = (struct victim){ s, why, process_ref(container_process(m, "", &none)) };
        memcpy(ret[i]->id, id, sizeof(id));
    }
}

/* From now on they must end; else they need not. */
static void await_victims(struct reg *s, struct victim *victims[REG_CONTAINERS], bool must)
{
    for (unsigned i = 0; i < REG_CONTAINERS; i++) {
        if (victims[i] && must) {
            s->inside++;
            fibers_go(&s->clients, s->w.loop, victim_main, victims[i], "sim.victim %s",
                      victims[i]->id);
        } else if (victims[i]) {
            process_unref(victims[i]->init);
            free(victims[i]);
        }
    }
}

/* Kill with all on a pod's first container ends all that run in the pod. */
static int kill_pod(struct step *t, struct container *c)
{
    struct victim *victims[REG_CONTAINERS] = { 0 };
    int r;

    find_victims(t, c, "Kill with all on its pod", victims);
    r = container_kill(t->ctx, c, "", 9, true, t->err);
    await_victims(t->s, victims, r == 0);
    return r;
}

/* The end of a container's process on the host is as Kill 9 with all. No event reports a guest that
 * refuses that. */
static int kill_anchor(struct step *t)
{
    struct victim *victims[REG_CONTAINERS] = { 0 };
    struct container *c = find(t);

    if (!c)
        return -1;
    if (!c->anchor || c->anchor->ended)
        return err_set(t->err, ERR_STATE, "%s has no anchor now", t->id);
    reg_laws_ends(t->s, t->id, true);
    find_victims(t, c, "its anchor or its pod's was killed", victims);
    fake_anchor_kill(c->anchor);
    await_victims(t->s, victims, t->s->w.refused == 0);
    return 0;
}

static int kill_one(struct step *t)
{
    static const uint32_t signals[] = { 9, 9, 15, 10 };
    struct container *c = find(t);
    struct reg *s = t->s;
    bool of_exec = world_chance(&s->w, 300), all = !of_exec && world_chance(&s->w, 500);
    uint32_t signo = signals[rng_below(&s->w.rng, ARRAY_LEN(signals))];

    if (c && signo == 10 && (container_state(c) == CONTAINER_CREATED || (s->pods && all)))
        signo = 9; /* its status would be one that the laws do not know */
    if (c && !of_exec)
        reg_laws_ends(s, t->id, all);
    if (c && s->pods && all && signo == 9 && reg_holder(t->id) == t->id[0])
        return kill_pod(t, c);
    return c ? container_kill(t->ctx, c, of_exec ? t->exec : "", signo, all, t->err) : -1;
}

static int wait_one(struct step *t)
{
    struct container *c = find(t);
    bool init = world_chance(&t->s->w, 600);
    struct process *p = c ? container_process(c, init ? "" : t->exec, t->err) : NULL;
    struct process_view v;
    int r = p ? process_wait(t->ctx, p, &v, t->err) : -1;

    if (r < 0)
        return r;
    if (init || v.exit_status != 0) /* an exec that was deleted before its start: 0 */
        reg_laws_status(t->s, "a wait", v.exit_status);
    if (v.exited_wall_ns == 0)
        world_broken(&t->s->w, "a wait gives an exit without a time");
    return 0;
}

/* The VM grows, shrinks, or cannot. */
static int update(struct step *t, struct container *c)
{
    static const char *const texts[] = { "{}", "{\"memory\":{\"limit\":402653184}}",
                                         ("{\"memory\":{\"limit\":1048576},\"cpu\":{\"quota\":"
                                          "200000}}") };
    const char *text = texts[loop_now(t->s->w.loop) / 7 % ARRAY_LEN(texts)];

    return container_update(t->ctx, c, text, strlen(text), t->err);
}

static int look(struct step *t)
{
    uint64_t before = loop_now(t->s->w.loop);
    struct container *c = find(t);
    struct process_view v;
    struct process *p;

    if (!c)
        return -1;
    p = container_process(c, "", t->err);
    if (p) {
        process_view(p, &v);
        if ((v.status == PROCESS_STOPPED) != (v.exited_wall_ns != 0))
            world_broken(&t->s->w, "status %d of %s with exit time %llu", v.status, t->id,
                         (unsigned long long)v.exited_wall_ns);
    }
    if (loop_now(t->s->w.loop) != before)
        world_broken(&t->s->w, "a query took time");
    return p ? 0 : -1;
}

static int delete_one(struct step *t, const char *exec_id)
{
    struct container *c = find(t);
    struct container_deleted d;

    return c ? container_delete(t->ctx, c, exec_id, &d, t->err) : -1;
}

static int stats(struct step *t)
{
    struct container *c = find(t);
    AUTO(json_decref) json_t *metrics = NULL;

    return c ? container_stats(t->ctx, c, &metrics, t->err) : -1;
}

static int act(struct step *t, enum action a)
{
    struct container *c = find(t);
    struct process *p;

    if (a == ACT_CREATE)
        err_clear(t->err);
    switch (a) {
    case ACT_CREATE:
        return create(t);
    case ACT_START:
        return start(t, "");
    case ACT_EXEC:
        return exec(t);
    case ACT_START_EXEC:
        return start(t, t->exec);
    case ACT_KILL:
        return kill_one(t);
    case ACT_WAIT:
        return wait_one(t);
    case ACT_PAUSE:
        return c ? container_freeze(t->ctx, c, true, t->err) : -1;
    case ACT_RESUME:
        return c ? container_freeze(t->ctx, c, false, t->err) : -1;
    case ACT_DELETE:
        return delete_one(t, "");
    case ACT_DELETE_EXEC:
        return delete_one(t, t->exec);
    case ACT_STATS:
        return stats(t);
    case ACT_UPDATE:
        return c ? update(t, c) : -1;
    case ACT_LOOK:
        return look(t);
    case ACT_CLOSE_STDIN:
        p = c ? container_process(c, "", t->err) : NULL;
        if (p)
            process_close_stdin(p);
        return p ? 0 : -1;
    case ACT_RESIZE:
        p = c ? container_process(c, "", t->err) : NULL;
        return p ? process_resize(t->ctx, p, 24, 80, t->err) : -1;
    case ACT_KILL_ANCHOR:
        return kill_anchor(t);
    case ACT_COUNT:
        break;
    }
    return -1;
}

/* More often what leads on than what ends. */
static enum action choose(struct reg *s, unsigned n)
{
    static const enum action lead[] = { ACT_CREATE, ACT_START, ACT_EXEC, ACT_START_EXEC };
    static const enum action end[] = { ACT_KILL, ACT_DELETE };

    if (n < ARRAY_LEN(lead) && world_chance(&s->w, 700))
        return lead[n];
    if (world_chance(&s->w, 250))
        return end[rng_below(&s->w.rng, ARRAY_LEN(end))];
    return (enum action)rng_below(&s->w.rng, ACT_COUNT);
}

/* Of a pod more often than by chance both containers run: a client begins with one of its own. */
static char choose_id(const struct reg_client *c, unsigned n)
{
    struct reg *s = c->s;

    if (!s->pods)
        return (char)('a' + rng_below(&s->w.rng, 2));
    if (n < 4 && world_chance(&s->w, 600))
        return (char)('a' + c->number % REG_CONTAINERS);
    return (char)('a' + rng_below(&s->w.rng, REG_CONTAINERS));
}

static void do_step(struct reg_client *c, unsigned n)
{
    struct reg *s = c->s;
    struct ctx root = ctx_root(s->w.loop), own = ctx_with_cancel(&root, &s->cancels[c->number]);
    uint64_t limit =
        world_chance(&s->w, 300) ? 1 + world_some_ns(&s->w, 20 * NS_PER_S) : 100 * NS_PER_S;
    struct ctx ctx = ctx_with_timeout(&own, limit);
    struct err err = ERR_INIT;
    struct step t = { .s = s, .ctx = &ctx, .err = &err };
    enum action a = choose(s, n);
    uint64_t before = loop_now(s->w.loop);

    snprintf(t.id, sizeof(t.id), "%c", choose_id(c, n));
    snprintf(t.exec, sizeof(t.exec), "x%d", (int)rng_below(&s->w.rng, REG_EXECS));
    world_say(&s->w, "client %u: %s %s/%s", c->number, names[a], t.id, t.exec);

    s->inside++;

    int r = act(&t, a);

    s->inside--;

    world_say(&s->w, "client %u: %s %s: %s", c->number, names[a], t.id, r < 0 ? err.msg : "ok");
    s->w.result->figures[REG_FIG_CALLS]++;
    s->w.result->figures[REG_FIG_FAILED] += r < 0;
    ids_expect_error(err.msg);
    if (r < 0 && err.code == ERR_NONE)
        world_broken(&s->w, "%s failed without an error", names[a]);
    if (loop_now(s->w.loop) - before > limit + slack(s))
        world_broken(&s->w, "%s took %llu ms, its limit was %llu ms", names[a],
                     (unsigned long long)((loop_now(s->w.loop) - before) / NS_PER_MS),
                     (unsigned long long)(limit / NS_PER_MS));
}

void reg_client_main(void *arg)
{
    struct reg_client *c = arg;
    struct reg *s = c->s;
    struct ctx root = ctx_root(s->w.loop), ctx = ctx_with_cancel(&root, &s->cancels[c->number]);
    unsigned steps = 1 + (unsigned)rng_below(&s->w.rng, REG_STEPS_MAX);
    struct err err = ERR_INIT;

    for (unsigned n = 0; n < steps && !s->w.calm; n++) {
        if (fiber_sleep(&ctx, world_some_ns(&s->w, 2 * NS_PER_S), &err) < 0)
            break;
        while (s->held)
            (void)waitq_wait(&root, &s->released, "the end of an upgrade", &err);
        do_step(c, n);
    }
    free(c);
}
