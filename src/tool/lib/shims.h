/* shims.h - the shims of this host, found by their run directories and asked over their own
 * sockets, without containerd. Each is asked with a limit of its own: one that is stopped, dead or
 * of another version keeps nothing back.
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
 * directory that cannot be judged is told with err set. fn's -1 ends the walk. A missing run root
 * has none. */
struct leftover {
    const char *name, *dir;
    bool alive;
    const struct err *err; /* NULL if judged */
};
int leftovers_walk(const char *run_root, int (*fn)(void *arg, const struct leftover *), void *arg,
                   struct err *err);

/* What a sandbox costs the host, beside what its guest says it uses. The host's side is read from
 * /proc: shim, QEMU, anchors; nobody is asked. The guest's side is Task.Stats of each container,
 * with a limit of its own: a guest that hangs has no figures, and keeps nothing back. */
struct cost {
    uint64_t shim_pss, vmm_pss, anchors_pss; /* bytes */
    uint64_t host_cpu_ns;                    /* of all of them, since they began */
    uint64_t guest;                          /* 1: what follows is known */
    uint64_t guest_memory, guest_cpu_ns;     /* of the containers' cgroups */
    uint64_t at;                             /* when it was measured: the loop's clock */
};

struct shim {
    char *ns, *id, *address, *version;
    char *hidden; /* the container that holds a sandbox of the Sandbox API; NULL: there is none */
    pid_t pid;
    json_t *doc;      /* its Inspect document; NULL if it did not answer */
    struct err why;   /* why there is none */
    struct cost cost; /* by shims_cost() */
};
struct shims {
    struct shim *v;
    size_t n, cap;
};

/* All whose owner lives, in the order of their names, with what they say of themselves: they are
 * asked all at once, and one that fails has no document. Waits. */
int shims_list(struct ctx *ctx, const char *run_root, struct shims *ret, struct err *err);
/* Fills the cost of each, which was asked before, all at once: one that hangs keeps nobody back.
 * Waits, at most two seconds. */
void shims_cost(struct ctx *ctx, struct shims *s);
static inline uint64_t cost_host_memory(const struct cost *c)
{
    return c->shim_pss + c->vmm_pss + c->anchors_pss;
}
/* Asks one of them again, which asks its guest before. A failure leaves the document as it is; what
 * was found in that one is gone otherwise. */
void shims_measure(struct ctx *ctx, struct shims *shims, const struct shim *s);
void shims_release(struct shims *s);
AUTO_VALUE(struct shims, shims_release);

/* word: "[NAMESPACE/]ID", a sandbox or, of one that answered, a container; the beginning of an id
 * is enough. *ret_container: the container's whole id, borrowed; NULL: a sandbox was meant.
 * ERR_NOT_FOUND names the nearest, ERR_INVALID those that match. */
int shims_find(const struct shims *s, const char *word, const struct shim **ret,
               const char **ret_container, struct err *err);

/* One of many things by the beginning of its id: "[NAMESPACE/]ID". A whole id is preferred to those
 * that only begin with it. Life: init -> offer … -> end. */
struct search {
    const char *word; /* what was given; borrowed */
    char *ns;         /* of it; NULL: any */
    const char *id;   /* the beginning of one, in word */
    size_t n;         /* how many match */
    bool exact;
    struct sbuf matches;
    struct strv all;
};

void search_init(struct search *s, const char *word);
/* true: it matches, and is to be remembered in place of the one before. */
bool search_offer(struct search *s, const char *ns, const char *id);
/* Releases s. -1 unless exactly one matched: ERR_INVALID names those that did, ERR_NOT_FOUND is
 * `none` and the word, the nearest behind `but`, and what to `see`. */
int search_end(struct search *s, const char *none, const char *but, const char *see,
               struct err *err);

/* What the shim said of one of its containers; NULL: nothing. Borrowed. */
const json_t *shims_container(const struct shim *s, const char *id);
/* A connection. An answer that it is no shim of ours, or stopped, names it. Caller frees. */
int shim_connect(struct ctx *ctx, const struct shim *s, struct rpc_client **ret, struct err *err);

/* Calls a method of one of its services, within limit_ns if that is not 0. Caller frees *ret_resp
 * with pb_free; NULL: it does not matter. */
int shim_call(struct ctx *ctx, struct rpc_client *client, uint64_t limit_ns,
              const struct ProtobufCServiceDescriptor *service, const char *method, const void *req,
              void **ret_resp, struct err *err);

/* Did it not answer? Then *err tells of it: a call without a limit would hang. One of another
 * version may know other questions. */
int shim_answers(const struct shim *s, struct err *err);

/* Of an object in its document, or in a line of a journal. "" or 0: it has none. Borrowed. */
const char *doc_text(const json_t *obj, const char *key);
uint64_t doc_number(const json_t *obj, const char *key);
/* For a document of our own: any bytes; NULL becomes null. */
json_t *doc_string(const char *text);
