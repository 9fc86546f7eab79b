/* reg_priv.h - a schedule of the registry while it runs. */
#pragma once
#include "base/clock.h"
#include "base/rand.h"
#include "base/str.h"
#include "base/timeline.h"
#include "host/bridge/fake_guest.h"
#include "host/control/config.h"
#include "host/control/registry_priv.h"
#include "host/vmm/fake/fake_vmm.h"
#include "reg.h"

#define REG_CLIENTS_MAX 6
#define REG_STEPS_MAX 14
#define REG_CONTAINERS 2
#define REG_EXECS 2
#define REG_CODE 42 /* of every program that ends by itself: 0 is always wrong */

struct reg {
    enum reg_fault fault;
    struct rng rng;
    bool trace, calm; /* calm: no more faults, all is to be taken back */
    struct loop *loop;
    char dir[256];
    struct config config;
    struct events *events;
    struct registry *registry;
    struct fake_host *host;
    struct fake_vmm_opts vmm_opts;
    struct fake_guest_opts guest_opts;
    struct timeline timeline;
    struct vmm *vmm; /* the last that was made and is there */
    struct group clients;
    unsigned n_clients;
    struct cancel cancels[REG_CLIENTS_MAX];
    unsigned refused, silent, late, poisoned, host_fails; /* of a thousand */
    uint64_t answer_ns;
    struct reg_result *result;
    struct reg_law *laws; /* what was told, by container and exec */
};

void reg_say(struct reg *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The first one counts. */
void reg_broken(struct reg *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool reg_chance(struct reg *s, unsigned of_thousand);
uint64_t reg_some_ns(struct reg *s, uint64_t max);

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
