/* shims.h - the shims of this host, found by their run directories and called over their own
 * sockets, without containerd. Each call has its own time limit, so that a stopped or dead shim, or
 * one of another version, does not block the others.
 *
 * Each shim writes `<run_root>/<namespace>/<sandbox>/shim` (host/control/run_file.h).
 * Life: list -> find … -> release. Also the directories of VMs whose owner is dead. */
#pragma once
#include "base/err.h"
#include "base/json.h"
#include <sys/types.h>

struct ctx;
struct ProtobufCServiceDescriptor;
struct rpc_client;

/* Calls fn for each <run_root>/<namespace>/<id>, sorted by name; name is "namespace/id". A
 * directory that cannot be checked is passed with err set. fn's -1 ends the walk. A missing run
 * root has no directories. */
struct leftover {
    const char *name, *dir;
    bool alive;
    const struct err *err; /* NULL if it was checked */
};
int leftovers_walk(const char *run_root, int (*fn)(void *arg, const struct leftover *), void *arg,
                   struct err *err);

/* The resources that a sandbox uses on the host, and those that its guest reports. The host's
 * values (shim, QEMU, anchors) are read from /proc. The guest's values come from Task.Stats of each
 * container, with a time limit; a guest that hangs has no values. */
struct cost {
    uint64_t shim_pss, vmm_pss, anchors_pss; /* bytes */
    uint64_t host_cpu_ns;                    /* of all of them, since they began */
    uint64_t guest;                          /* 1: the guest's values are known */
    uint64_t guest_memory, guest_cpu_ns;     /* of the containers' cgroups */
    uint64_t at;                             /* when it was measured: the loop's clock */
};

struct shim {
    char *ns, *id, *address, *version;
    char *hidden; /* the holder of a sandbox of the Sandbox API; NULL: none */
    pid_t pid;
    json_t *doc;      /* its Inspect document; NULL if it did not answer */
    struct err why;   /* why doc is NULL */
    struct cost cost; /* by shims_cost() */
};
struct shims {
    struct shim *v;
    size_t n, cap;
};

/* All running shims in the order of their names, with their documents. They are called
 * concurrently; one that fails has no document. Waits. */
int shims_list(struct ctx *ctx, const char *run_root, struct shims *ret, struct err *err);
/* Fills the cost of each listed shim, concurrently. Waits 2 s at most. */
void shims_cost(struct ctx *ctx, struct shims *s);
static inline uint64_t cost_host_memory(const struct cost *c)
{
    return c->shim_pss + c->vmm_pss + c->anchors_pss;
}
/* Gets one shim's document again, after the shim has queried its guest. A failure keeps the old
 * document; on success, pointers into the old one become invalid. */
void shims_measure(struct ctx *ctx, struct shims *shims, const struct shim *s);
void shims_release(struct shims *s);
AUTO_VALUE(struct shims, shims_release);

/* word: "[NAMESPACE/]ID" of a sandbox, or of a container whose shim answered; the beginning of an
 * id is enough. *ret_container: the container's whole id, borrowed; NULL: word names a sandbox.
 * ERR_NOT_FOUND names the nearest id, ERR_INVALID those that match. */
int shims_find(const struct shims *s, const char *word, const struct shim **ret,
               const char **ret_container, struct err *err);

/* One of many things by the beginning of its id: "[NAMESPACE/]ID". A whole id is preferred to those
 * that only begin with it. Life: init -> offer … -> end. */
struct search {
    const char *word; /* "[NAMESPACE/]ID"; borrowed */
    char *ns;         /* its namespace; NULL: any */
    const char *id;   /* its id; points into word */
    size_t n;         /* how many match */
    bool exact;
    struct sbuf matches;
    struct strv all;
};

void search_init(struct search *s, const char *word);
/* True if it matches; the caller then remembers it instead of the previous match. */
bool search_offer(struct search *s, const char *ns, const char *id);
/* Releases s. -1 unless exactly one matched: ERR_INVALID names those that did, ERR_NOT_FOUND is
 * `none` and the word, the nearest behind `but`, and what to `see`. */
int search_end(struct search *s, const char *none, const char *but, const char *see,
               struct err *err);

/* One container in the shim's document, or NULL. Borrowed. */
const json_t *shims_container(const struct shim *s, const char *id);
/* Connects to a shim. An error names the shim and says if it is stopped. Caller frees. */
int shim_connect(struct ctx *ctx, const struct shim *s, struct rpc_client **ret, struct err *err);

/* Calls a method of one of its services, within limit_ns unless that is 0. Caller frees *ret_resp
 * with pb_free; ret_resp NULL: the answer is not needed. */
int shim_call(struct ctx *ctx, struct rpc_client *client, uint64_t limit_ns,
              const struct ProtobufCServiceDescriptor *service, const char *method, const void *req,
              void **ret_resp, struct err *err);

/* Another version than this tool's runs in it, or another revision of the package. */
bool shim_is_behind(const struct shim *s);

/* True if the shim did not answer; *err says so. The caller then makes no call without a limit. A
 * shim of another version counts as answering. */
int shim_answers(const struct shim *s, struct err *err);

/* A member of an object in a document or a journal's line; "" or 0 if it is missing. Borrowed. */
const char *doc_text(const json_t *obj, const char *key);
uint64_t doc_number(const json_t *obj, const char *key);
/* A JSON string from any bytes; NULL becomes null. */
json_t *doc_string(const char *text);
