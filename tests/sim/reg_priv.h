/* reg_priv.h - a schedule of the registry while it runs. */
#pragma once
#include "host/control/container_priv.h"
#include "host/control/events.h"
#include "reg.h"
#include "world.h"

#define REG_CLIENTS_MAX 6
#define REG_STEPS_MAX 14
#define REG_CONTAINERS 4 /* a holds pod a, b is in it; c and d the same; else all are alone */
#define REG_EXECS 2

struct reg {
    enum reg_fault fault;
    bool pods; /* several in one VM */
    struct world w;
    struct events *events;
    struct registry *registry;
    struct fibers clients;
    unsigned n_clients;
    struct cancel cancels[REG_CLIENTS_MAX];
    struct reg_ear {
        struct cancel stop;
        bool done;
    } ear;
    /* Upgrades: */
    struct rng upgrade_rng;
    unsigned inside;       /* calls of clients */
    bool held;             /* no client begins one */
    struct waitq released; /* held became false */
    struct reg_law *laws;  /* what was reported, by container and exec */
};

/* reg_client.c */
void reg_client_main(void *arg); /* struct reg_client, freed by it */
struct reg_client {
    struct reg *s;
    unsigned number;
};

/* reg.c */
void reg_begin(struct reg *s); /* the registry, with nothing in it, and who hears its events */

/* reg_upgrade.c */
void reg_upgrade_main(void *arg); /* struct reg; until all clients have gone */

/* reg_laws.c */
struct reg_law *reg_laws_new(void);
void reg_laws_free(struct reg_law *l);
/* Every event, in order. */
void reg_laws_told(struct reg *s, const struct event *e);
/* Every event when it is pushed (events_filter): an exit has a cause. */
bool reg_laws_pushed(void *arg, const struct event *e);
/* Somebody ends id, from outside the guest; all: with its pod, if it is that one's first. */
void reg_laws_ends(struct reg *s, const char *id, bool all);
/* Of a schedule with pods: id's first container. */
static inline char reg_holder(const char *id)
{
    return id[0] < 'c' ? 'a' : 'c';
}
/* A client got this answer. */
void reg_laws_status(struct reg *s, const char *what, uint32_t status);
/* Nothing can happen any more. */
void reg_laws_end(struct reg *s);
