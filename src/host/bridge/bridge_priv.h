/* bridge_priv.h - the inside of the bridge, for bridge*.c, guestlog.c and their tests. */
#pragma once
#include "base/bucket.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/list.h"
#include "base/str.h"
#include "host/bridge/bridge.h"
#include "host/bridge/guest.h"
#include "host/bridge/guestlog.h"
#include "proto/bridge.h"

struct stream;
struct vmm_listener;

#define BRIDGE_QUEUE_MAX (32u << 20) /* bytes waiting to be sent */
#define BRIDGE_ABANDONED_MAX 1024    /* calls given up whose answers may still come */
/* What the guest sends without being asked: the exit of a container, some 250 bytes. All that a VM
 * can have may end at once; a guest that sends more is read slowly, and its answers come late. */
#define BRIDGE_UNASKED_MAX 4096 /* bytes of one, with its header */
#define BRIDGE_UNASKED_BURST 2048
#define BRIDGE_UNASKED_PER_S 200
#define BRIDGE_UNASKED_BYTES_BURST (512u << 10)
#define BRIDGE_UNASKED_BYTES_PER_S (64u << 10)
#define BRIDGE_ENTROPY_LIMIT (10 * NS_PER_S)
#define BRIDGE_KILL_LIMIT (5 * NS_PER_S) /* to kill a process whose streams did not come */
#define BRIDGE_FIBERS_LIMIT NS_PER_S     /* for our own fibers to end once they are cancelled */
#define BRIDGE_QUOTE_MAX 160             /* of the guest's words in an error */
#define BRIDGE_WHY_MAX 200

/* A request whose answer is awaited; on the caller's stack, or allocated if it is parked. */
struct bridge_call {
    struct list node;
    uint64_t id, since_ns;
    bool counts; /* as outstanding; a wait for a process does not */
    bool waits;  /* has the id of a wait (guest.h) */
    bool parked; /* such a wait, between reading the saved bridge and its caller's return */
    bool done;
    char *payload;
    size_t len;
    struct waitq q;
};

/* A frame on its way out. Not its caller's: it is sent whole or not at all. */
struct bridge_frame {
    struct list node;
    uint64_t id;
    struct sbuf bytes;
};

/* The frame that is being read. */
struct bridge_in {
    uint8_t raw[BRIDGE_HEADER_BYTES];
    size_t n_raw;  /* bytes of it that have come */
    bool admitted; /* the header was checked: the rest follows */
    bool unneeded; /* the rest is not kept */
    char *body;    /* with room for a NUL; NULL: not begun */
    size_t n_body; /* bytes of it that have come */
};

/* A caller inside a call; close fires its cancel. On the caller's stack. */
struct bridge_user {
    struct list node;
    struct cancel cancel;
};

struct bridge {
    struct guest guest;
    unsigned refs; /* the owner and each fiber */
    struct loop *loop;
    struct vmm *vmm;
    struct timeline *timeline;
    bool prepared, connected, closed;
    char why[BRIDGE_WHY_MAX]; /* closed because */
    struct latch ended;       /* with closed */
    struct cancel life;       /* of everything but an open log stream */
    struct cancel log_life;
    size_t running; /* fibers of ours */
    struct waitq idle_q;
    struct list users;

    struct vmm_listener *listener; /* the bridge's own, from prepare to connect */
    struct vmm_listener *entropy_listener, *log_listener; /* until their fibers run */
    bool entropy_awaited;  /* the guest has not fetched it; a clone never does */
    struct stream *stream; /* freed by the last of reader and writer */
    unsigned stream_users;
    struct list calls, queue;
    size_t queued_bytes;
    struct waitq queue_q;
    uint64_t next_id;
    uint64_t *abandoned;
    size_t n_abandoned, abandoned_cap;
    struct bucket unasked, unasked_bytes;
    struct bridge_in in;

    uint32_t next_port;
    struct bridge_caps caps; /* os is not kept */
    struct guestlog log;
    struct stream *log_stream; /* while it is read */
    bool log_open, log_lost;   /* lost: it is not forwarded */
    struct latch log_ended;
};

static inline struct bridge *bridge_of(const struct guest *g)
{
    return CONTAINER_OF((struct guest *)g, struct bridge, guest);
}

/* bridge.c: fibers, for bridge_go. */
void bridge_entropy_main(struct bridge *b);
void bridge_log_main(struct bridge *b);

/* A fiber that keeps b alive and is counted in running. */
void bridge_go(struct bridge *b, void (*fn)(struct bridge *b), const char *name);
void bridge_close(struct bridge *b, const char *why);
/* The guest broke the rules: says so in the log, and closes. */
void bridge_condemn(struct bridge *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The caller's ctx, also ended by close. */
struct ctx bridge_enter(struct ctx *ctx, struct bridge *b, struct bridge_user *u);
void bridge_leave(struct bridge_user *u);

/* bridge_wire.c */
void bridge_call_free(struct bridge_call *c); /* a parked one */
void bridge_writer_main(struct bridge *b);
void bridge_reader_main(struct bridge *b);
/* Takes stream; starts reader and writer. */
void bridge_wire_start(struct bridge *b, struct stream *stream);
/* Sends r and waits for its answer. limit_ns 0: as long as ctx allows. Release *ret if 0. A
 * refusal by the guest is an error too, quoting it. */
int bridge_call(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                uint64_t limit_ns, bool counts, struct bridge_response *ret, struct err *err);
/* As bridge_call, for what may take as long as the container lives (guest.h, wait_id). what: for
 * the list of fibers. */
int bridge_wait(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                uint64_t limit_ns, const char *what, uint64_t *wait_id, struct bridge_response *ret,
                struct err *err);
/* What close must undo in here. */
void bridge_wire_close(struct bridge *b);

/* bridge_save.c */
void bridge_ops_saved(struct guest *g, struct saved *s);

/* bridge_calls.c */
extern const struct guest_ops bridge_ops;
int bridge_negotiate_version(struct ctx *ctx, struct bridge *b, struct err *err);

/* bridge.c: as in struct guest_ops. */
int bridge_ops_prepare(struct ctx *ctx, struct guest *g, struct err *err);
int bridge_ops_connect(struct ctx *ctx, struct guest *g, struct err *err);
void bridge_ops_close(struct guest *g, const char *why);
int bridge_ops_wait_closed(struct ctx *ctx, struct guest *g, struct err *err);
int bridge_ops_drain_log(struct ctx *ctx, struct guest *g, struct err *err);
void bridge_ops_free(struct guest *g);
bool bridge_ops_connected(const struct guest *g);
uint64_t bridge_ops_oldest_call(const struct guest *g);
bool bridge_ops_log_lost(const struct guest *g);
