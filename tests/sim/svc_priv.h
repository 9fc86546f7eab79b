/* svc_priv.h - a schedule of the service while it runs. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/list.h"
#include "base/str.h"
#include "svc.h"
#include "world.h"
#include <protobuf-c/protobuf-c.h>

#define SVC_CLIENTS_MAX 5
#define SVC_STEPS_MAX 20
#define SVC_CONNS 2
#define SVC_CONTAINERS 2
#define SVC_EXECS 2
#define SVC_CLEAN_ROUNDS 40

struct svc;

/* --- svc_wire.c: a client's connection, in frames --- */

enum svc_act {
    SVC_CREATE,
    SVC_START,
    SVC_EXEC,
    SVC_KILL,
    SVC_WAIT,
    SVC_DELETE,
    SVC_STATE,
    SVC_PIDS,
    SVC_CONNECT,
    SVC_PAUSE,
    SVC_RESUME,
    SVC_STATS,
    SVC_UPDATE,
    SVC_CLOSE_IO,
    SVC_RESIZE,
    SVC_CHECKPOINT,
    SVC_SHUTDOWN,
    SVC_SB_CREATE, /* from here on of the Sandbox service */
    SVC_SB_START,
    SVC_SB_STOP,
    SVC_SB_WAIT,
    SVC_SB_STATUS,
    SVC_SB_PLATFORM,
    SVC_SB_PING,
    SVC_SB_METRICS,
    SVC_SB_SHUTDOWN,
    SVC_ACT_COUNT
};
const char *svc_method(enum svc_act a);

/* What a client asks for. */
struct svc_ask {
    enum svc_act act;
    char id[8], exec[8];
    uint32_t signo;
    bool all;
    uint32_t grace_s;   /* of StopSandbox */
    int64_t timeout_ns; /* as it goes over the wire; 0: none */
    uint32_t bad;       /* something is wrong with it: the code it must get */
};

struct svc_conn {
    struct svc *s;
    unsigned refs; /* the owner's, the reader's, each call's user */
    struct stream *stream;
    struct gate writer;
    struct list calls; /* all that were sent */
    uint32_t next_id;
    bool hung_up; /* by us */
    bool ended;   /* nothing comes any more */
    bool slow;    /* reads its answers when it likes */
    bool vandal;
    struct fibers readers;
};

struct svc_call {
    struct list node;
    struct svc_conn *conn;
    uint32_t stream;
    struct svc_ask ask;
    uint64_t sent_ns, answered_ns;
    uint64_t held_ns; /* svc_held when it was sent */
    bool sent, answered, lost;
    uint32_t code;
    char *text; /* of an error */
    uint8_t *payload;
    size_t len;
    struct waitq q;
};

struct svc_conn *svc_conn_new(struct svc *s);
/* All calls that are not answered are lost. Never waits. */
void svc_conn_hang_up(struct svc_conn *c);
void svc_conn_unref(struct svc_conn *c);
/* Sends; NULL if the connection ended on the way. The call belongs to the connection, which the
 * caller must hold. */
struct svc_call *svc_conn_send(struct ctx *ctx, struct svc_conn *c, const struct svc_ask *ask);
/* Until it is answered or lost. -1: ctx ended. */
int svc_call_wait(struct ctx *ctx, struct svc_call *call, struct err *err);
/* The answer as a message; NULL if there is none. Caller frees with pb_free. */
void *svc_call_answer(struct svc_call *call, const ProtobufCMessageDescriptor *type);
unsigned svc_conn_open_calls(const struct svc_conn *c); /* sent, and not answered */
/* Nothing comes any more: all that was asked before the shim left must have been answered. */
void svc_conn_check(struct svc_conn *c);
/* Bytes that are not a request, or half of one. False if the connection is to be given up. */
bool svc_conn_vandalise(struct ctx *ctx, struct svc_conn *c);

/* --- svc_client.c --- */

struct svc_client {
    struct svc *s;
    unsigned number;
};
void svc_client_main(void *arg); /* struct svc_client, freed by it */
/* Sends, waits, checks. 0: answered, *ret_call (may be NULL) lives as long as its connection.
 * -1: lost. */
int svc_do(struct svc *s, struct svc_conn *c, const struct svc_ask *ask,
           struct svc_call **ret_call);
/* The connection of this number, a new one if it has ended; a reference for the caller. NULL when
 * the shim has left. Waits while containerd is away. */
struct svc_conn *svc_conn_get(struct svc *s, unsigned number);
/* Deletes all there is by requests alone. */
void svc_clean_up(struct svc *s);

/* --- svc_sandbox.c --- */
struct svc_ask svc_sandbox_ask(struct svc *s);
/* At the beginning and at the end of a schedule with a pod. */
void svc_sandbox_open(struct svc *s);
void svc_sandbox_close(struct svc *s);
void svc_sandbox_answer(struct svc *s, struct svc_call *call);

/* --- svc_alone.c --- */
void svc_alone_main(void *arg); /* struct svc */

/* --- svc_check.c: is this answer right? --- */
/* How long it may take; UINT64_MAX: as long as it likes. */
uint64_t svc_bound(const struct svc *s, const struct svc_ask *a);
void svc_check_answer(struct svc *s, struct svc_call *call);

/* --- svc_peer.c: containerd's ttrpc socket for events --- */
struct svc_peer {
    struct list conns;
    bool away;        /* refuses connections */
    bool deaf;        /* takes them and does nothing */
    bool sloppy;      /* answers late, never, with errors, or breaks off */
    unsigned stalled; /* connections on which an answer is late */
    bool disturbed;   /* it hung up since the last event was answered in time */
    struct sbuf last;
    bool last_sure; /* it was answered in time, at last_sure_tick */
    uint64_t last_sure_tick, ticks;
    unsigned n_events, n_again;
    uint64_t last_wall;
};
struct rpc_client;
void svc_peer_init(struct svc *s);
void svc_peer_release(struct svc *s);
int svc_peer_connect(struct ctx *ctx, void *arg, struct rpc_client **ret, struct err *err);
void svc_peer_hang_up(struct svc *s);
/* The shim's ends are gone, with nothing on the way. */
void svc_peer_lose(struct svc *s);

/* --- svc_laws.c: events and answers fit together --- */
struct svc_laws;
struct svc_laws *svc_laws_new(void);
void svc_laws_free(struct svc_laws *l);
/* Each event, once, in the order of its arrival. topic and the Any as they came. */
struct Any;
void svc_laws_event(struct svc *s, const char *topic, const struct Any *any);
/* A client got the answer that this succeeded: there is, or will be, an event of it. */
/* A client has sent this. */
void svc_laws_asked(struct svc *s, const struct svc_ask *ask);
void svc_laws_done(struct svc *s, const struct svc_ask *ask, uint32_t pid);
/* A client got the answer that this process has ended so. pid 0: not told. */
void svc_laws_ended(struct svc *s, const char *id, const char *exec, uint32_t pid, uint32_t status,
                    uint64_t at_ns);
void svc_laws_end(struct svc *s);

/* --- svc_upgrade.c --- */
/* Waits until the shim is settled, for so long at most; then it continues as another program. */
void svc_upgrade(struct svc *s, uint64_t limit_ns);
void svc_upgrade_main(void *arg); /* struct svc */
/* For how long requests were not read because of upgrades. */
uint64_t svc_held(const struct svc *s);

/* --- svc.c --- */
void svc_begin(struct svc *s); /* the shim, with nothing in it */
/* False when the schedule ends. */
bool svc_pause(struct svc *s, uint64_t ns);

struct svc {
    enum svc_fault fault;
    struct world w;
    /* What the schedule may do, by its class. */
    bool hangs_up, bad_frames, deadlines, restarts, slow_events, loses_events, terminates;

    struct events *events;
    struct registry *registry;
    struct service *service;
    struct rpc_server *server;
    uint64_t pushed; /* events */
    struct publisher *publisher;
    struct watch *watch;
    bool stats_v2;
    struct rng upgrade_rng;
    uint64_t held_ns, held_since; /* all earlier ones; 0: not now */
    struct latch leave;
    bool signalled; /* it leaves because of a signal */
    uint64_t leave_ns;
    bool leaving; /* answers of any kind may be "unavailable" */
    bool left;    /* nobody serves any more */

    struct svc_peer peer;
    struct svc_laws *laws;
    struct svc_conn *conns[SVC_CONNS];
    struct fibers clients, helpers;
    struct cancel helpers_end;
    struct waitq back; /* containerd is back, or the shim has left */
    bool down;         /* containerd is not there */
    bool closing;      /* no client begins anything new */
    unsigned shutdowns;
    bool pods;      /* the containers are those of a sandbox made on purpose */
    unsigned stops; /* it was asked to end */
    uint32_t sandbox_pid, sandbox_status;
    bool sandbox_ended; /* WaitSandbox said so, first at sandbox_ended_ns */
    uint64_t sandbox_ended_ns;
    char bundle[272];
    bool clock_was_set;
    unsigned clocks_due; /* steps of the clock that a guest must have got */
};
