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

/* A request whose answer is awaited; on the caller's stack. */
struct bridge_call {
    struct list node;
    uint64_t id, since_ns;
    bool counts; /* as outstanding; a wait for a process does not */
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

/* Someone inside a call; close fires the cancel. On the caller's stack. */
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
    struct stream *stream; /* freed by the last of reader and writer */
    unsigned stream_users;
    struct list calls, queue;
    size_t queued_bytes;
    struct bridge_frame *sending;
    struct waitq queue_q;
    uint64_t next_id;
    uint64_t *abandoned;
    size_t n_abandoned, abandoned_cap;
    struct bucket unasked, unasked_bytes;

    uint32_t next_port;
    struct bridge_caps caps; /* os is not kept */
    struct guestlog log;
    bool log_open;
    struct latch log_ended;
};

static inline struct bridge *bridge_of(const struct guest *g)
{
    return CONTAINER_OF((struct guest *)g, struct bridge, guest);
}

void bridge_unref(struct bridge *b);
/* A fiber that keeps b alive and is counted in running. */
void bridge_go(struct bridge *b, void (*fn)(struct bridge *b), const char *name);
void bridge_close(struct bridge *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The guest broke the rules: says so in the log, and closes. */
void bridge_condemn(struct bridge *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void bridge_tell_stage(struct bridge *b, int stage);

/* The caller's ctx, also ended by close. */
struct ctx bridge_enter(struct ctx *ctx, struct bridge *b, struct bridge_user *u);
void bridge_leave(struct bridge_user *u);

/* bridge_wire.c */
/* Takes stream; starts reader and writer. */
void bridge_wire_start(struct bridge *b, struct stream *stream);
/* Sends r and waits for its answer. limit_ns 0: as long as ctx allows. Release *ret if 0. A
 * refusal by the guest is an error too, quoting it. */
int bridge_call(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                uint64_t limit_ns, bool counts, struct bridge_response *ret, struct err *err);
/* What close must undo in here. */
void bridge_wire_close(struct bridge *b);

/* bridge_calls.c */
/* Calls of controllers need a negotiated bridge; a guest that just died is no crash. */
int bridge_need_connection(const struct bridge *b, uint32_t type, struct err *err);
/* ERR_UNIMPLEMENTED names a capability that the connected guest did not claim. */
int bridge_need_capability(const struct bridge *b, bool has, const char *name, struct err *err);
/* A call whose answer says nothing but yes. */
int bridge_plain_call(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                      struct err *err);
int bridge_negotiate_version(struct ctx *ctx, struct bridge *b, struct err *err);
int bridge_exec_process(struct ctx *ctx, struct guest *g, const struct guest_exec *e,
                        struct guest_process *ret, struct err *err);
int bridge_wait_process(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                        uint32_t timeout_ms, uint32_t *ret_exit_code, struct err *err);
int bridge_signal_process(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          int signo, struct err *err);
int bridge_resize_console(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          uint16_t rows, uint16_t cols, struct err *err);
int bridge_dump_stacks(struct ctx *ctx, struct guest *g, char **ret_text, struct err *err);
int bridge_shutdown(struct ctx *ctx, struct guest *g, const char *container, bool forced,
                    struct err *err);

/* bridge_containers.c: as in struct guest_ops. */
int bridge_create_container(struct ctx *ctx, struct guest *g, const struct guest_container *c,
                            struct err *err);
int bridge_start_container(struct ctx *ctx, struct guest *g, const char *container,
                           struct err *err);
int bridge_delete_container(struct ctx *ctx, struct guest *g, const char *container,
                            struct err *err);
int bridge_update_container(struct ctx *ctx, struct guest *g, const char *container,
                            json_t *resources, struct err *err);
int bridge_read_stats(struct ctx *ctx, struct guest *g, const char *container, json_t **ret_metrics,
                      uint64_t *ret_scratch_bytes, struct err *err);
int bridge_freeze_container(struct ctx *ctx, struct guest *g, const char *container, bool frozen,
                            struct err *err);
int bridge_wait_oom(struct ctx *ctx, struct guest *g, const char *container, bool *ret_oom,
                    struct err *err);
int bridge_limit_pods(struct ctx *ctx, struct guest *g, struct err *err);
int bridge_set_clock(struct ctx *ctx, struct guest *g, uint64_t wall_ns, struct err *err);
int bridge_read_clock(struct ctx *ctx, struct guest *g, uint64_t *ret_ns, struct err *err);
int bridge_mount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                      struct err *err);
int bridge_unmount_disk(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                        struct err *err);
int bridge_eject_disk(struct ctx *ctx, struct guest *g, uint8_t controller, uint8_t lun,
                      struct err *err);
int bridge_mount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                       struct err *err);
int bridge_unmount_share(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                         struct err *err);
int bridge_combine_layers(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                          struct err *err);
int bridge_uncombine_layers(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                            struct err *err);

/* bridge_network.c: as in struct guest_ops. */
int bridge_add_nic(struct ctx *ctx, struct guest *g, const struct guest_nic *n, struct err *err);
int bridge_add_device(struct ctx *ctx, struct guest *g, const char *place, struct err *err);
int bridge_remove_nic(struct ctx *ctx, struct guest *g, const char *ns, const char *id,
                      struct err *err);
int bridge_connect_port(struct ctx *ctx, struct guest *g, const char *ns, bool ipv6, uint16_t port,
                        struct stream **ret, struct err *err);
