/* serve_priv.h - the daemon's own state, for serve.c, upgrade.c and shim_save.c. */
#pragma once
#include "base/err.h"
#include "base/fiber.h"
#include "host/config/config.h"
#include "host/service/service.h"
#include "host/shim/bootstrap.h"
#include "host/shim/group.h"
#include <sys/stat.h>

struct saved;
struct shim_args;
struct shim_backend;

/* The last upgrade, or the one under way. */
struct upgrade {
    bool under_way;
    uint64_t token; /* of its request; 0: there was none */
    char from[SERVICE_VERSION_SIZE];
    uint64_t begun_ns, pause_ns; /* from the last request that was begun to the first one after */
    struct err failed;           /* the new program could not continue; ERR_NONE: it did */
};

struct shim {
    struct loop *loop;
    const struct shim_args *args;
    const struct shim_backend *backend;
    struct config config;
    struct bootstrap options; /* the options at the start */
    struct events *events;
    struct registry *registry;
    struct service *service;
    struct rpc_server *server;
    struct publisher *publisher;
    struct tracer *tracer;  /* NULL: off */
    struct group_file file; /* its group, address and run root */
    struct stat socket;     /* the socket at the start; st_ino 0: none */
    int address_fd;         /* keeps the address connectable until the process ends */
    struct latch stop;
    bool leaving;
    const char *stop_why; /* static text */
    struct watch *watch;
    struct journal *journal; /* NULL: there is none */
    struct cgroup *home;     /* registry_opts.home */
    struct stall *stall;     /* NULL: there is none */
    struct upgrade upgrade;
    bool keeps_state; /* a fiber will write the state beside the journal */
    bool erred;       /* an error occurred: the journal is kept for `lcow explain` */
};

/* serve.c: for `lcow report`, if this process should end without a farewell. */
void shim_keep_state(struct shim *s);

/* shim_save.c: the whole shim, for saved.h. The head is what must be known before the shim's
 * objects can be made. */
void shim_saved_head(struct saved *sv, struct shim *s);
void shim_saved_body(struct saved *sv, struct shim *s);

/* upgrade.c: Upgrade. Returns only if the program stays the same, or for an upgrade that is over.
 */
int upgrade_run(struct ctx *ctx, struct shim *s, const struct service_upgrade *u, struct err *err);

/* What `resume` was started with. */
struct upgrade_handover {
    int state_fd;    /* the document */
    int previous_fd; /* the previous program; -1: this is it */
    const char *why; /* why the program in between could not continue; "": there was none */
};
/* From the words behind the action. ERR_INVALID: they are not what upgrade_run passes. */
int upgrade_handover(const struct shim_args *a, struct upgrade_handover *ret, struct err *err);
/* All is built: Upgrade begins again, and is answered when this program has settled. */
void upgrade_outcome(struct shim *s, const struct upgrade_handover *h);
/* This program continues the shim: nothing leads back. */
void upgrade_settle(struct shim *s, struct saved *sv, struct upgrade_handover *h);
