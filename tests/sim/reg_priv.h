/* reg_priv.h - a schedule of the registry while it runs. */
#pragma once
#include "host/control/container_priv.h"
#include "host/control/events.h"
#include "reg.h"
#include "world.h"

#define REG_CLIENTS_MAX 6
#define REG_STEPS_MAX 14
#define REG_CONTAINERS 2
#define REG_EXECS 2

struct reg {
    enum reg_fault fault;
    struct world w;
    struct events *events;
    struct registry *registry;
    struct group clients;
    unsigned n_clients;
    struct cancel cancels[REG_CLIENTS_MAX];
    struct reg_law *laws; /* what was told, by container and exec */
};

/* reg_client.c */
void reg_client_main(void *arg); /* struct reg_client, freed by it */
struct reg_client {
    struct reg *s;
    unsigned number;
};

/* reg_laws.c */
struct reg_law *reg_laws_new(void);
void reg_laws_free(struct reg_law *l);
/* Every event, in order. */
void reg_laws_told(struct reg *s, const struct event *e);
/* A client got this answer. */
void reg_laws_status(struct reg *s, const char *what, uint32_t status);
/* Nothing can happen any more. */
void reg_laws_end(struct reg *s);
