/* container_priv.h - for container*.c only. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/list.h"
#include "guest/runtime/container.h"
#include "guest/runtime/process.h"
#include "oci/spec.h"

/* A pod: what its sandbox container and its workloads share. */
struct pod {
    unsigned refs; /* containers */
    char *id, *root, *cgroup;
};

struct container {
    struct list in_table;
    unsigned refs; /* table, calls, watchers */
    struct containers *table;
    char *id, *activity_id, *bundle, *scratch;
    enum spec_kind kind;
    struct pod *pod; /* NULL: standalone */
    uint8_t state;   /* enum container_state */
    struct gate gate;

    struct process *init;
    bool attached; /* the start has been tried: its stdio is given away */
    bool own_pid_ns, terminal;
    int last_signal;     /* TERM or KILL to init */
    char *cgroup, *root; /* full paths */
    char *network;       /* the namespace it holds (guest/net); NULL: none */
    json_t *rlimits, *user;
    struct processes execs;

    unsigned init_waits; /* waits on init under way, until their answer is out */
    bool wait_answered, notified;

    uint64_t oom_told;
    bool oom_watched;
    unsigned oom_waits; /* until their answer is out */
    struct waitq oom;
    struct cancel oom_stop;

    bool sandbox_made; /* files and mounts of a pod's root */
    bool crun_made;
};

struct containers {
    struct containers_opts opts;
    struct crun *crun; /* NULL until the first container */
    struct list containers;
    size_t n;
    struct waitq changed; /* an init has exited, a container has gone */
    struct gate volumes;  /* of pods, while they are made */
};

/* The first call makes it. NULL with err. */
struct crun *containers_crun(struct containers *cs, struct err *err);
/* Borrows; NULL with ERR_NOT_FOUND. Also while it is being created. */
struct container *containers_find(const struct containers *cs, const char *id, struct err *err);
/* Out of the table. */
void container_forget(struct container *c);
void container_leave_network(struct container *c);

/* container_run.c: crun creates the container (process NULL), or runs the OCI process, as JSON
 * text, in it; whoever is started is ours afterwards. on_done gets a reference on c. */
int container_run(struct ctx *ctx, struct container *c, const char *process, bool terminal,
                  void (*on_exit)(void *arg), void (*on_done)(void *arg), struct process **ret,
                  struct err *err);

/* Also there. */
void container_on_exit(void *arg);
void container_on_done(void *arg);

/* sandbox.c: the files and directories in a pod's root, or of a standalone container. All wait. */
struct sandbox {
    const char *root, *hostname, *dns_search, *dns_servers;
    const char *resolv_conf; /* the whole file; NULL: of the two above */
    bool pod;                /* with the directories that its containers share */
};
int sandbox_make(struct ctx *ctx, struct sandbox *s, struct err *err);
int sandbox_remove(struct ctx *ctx, const char *root, struct err *err);
struct rewrite_todo;
/* What the container's mounts name in the pod. Takes what is in todo. gate: of all pods. */
int sandbox_make_todo(struct ctx *ctx, struct gate *gate, struct rewrite_todo *todo,
                      struct err *err);
/* rootfs.c: looks users up in a container's root (user "": nothing to look up). cwd: of a new
 * container, made if absent, and the root is checked for links at /dev, /proc and /sys; NULL for an
 * exec. Waits. */
int rootfs_prepare(struct ctx *ctx, const char *root, const char *user, const char *cwd,
                   uint32_t *ret_uid, uint32_t *ret_gid, struct err *err);
/* devices.c */
struct rewrite_env;
void devices_env(struct rewrite_env *env);

/* rootfs.c: the user of an OCI image, "user|uid[:group|gid]", looked up in the image's own passwd
 * and group files. Pure; never waits. */
#define USERS_MAX_BYTES (1u << 20) /* of either file */

/* passwd and group: the files' texts, "" if there is none. A name must have exactly one entry; a
 * uid or gid without one is taken as it is (a uid then with gid 0). ERR_INVALID names what is
 * missing. */
int users_resolve(const char *user, const char *passwd, const char *group, uint32_t *ret_uid,
                  uint32_t *ret_gid, struct err *err);

/* sandbox.c: hostname, hosts and resolv.conf of a pod (gcs-protocol.md §4.10). Pure. */
/* [a-zA-Z0-9_.-], 0 to 255 of them. */
int etcfiles_check_hostname(const char *name, struct err *err);
/* Caller frees. */
char *etcfiles_hosts(const char *hostname);
/* Comma-separated lists: trimmed, lower-cased, unique; "" is fine. More than 6 search domains, or
 * one with a blank or line feed in it: ERR_INVALID. Caller frees. */
int etcfiles_resolv(const char *search, const char *servers, char **ret, struct err *err);
/* A resolv.conf that somebody else has written: text of lines, at most 16 KiB. */
int etcfiles_check_resolv(const char *text, struct err *err);

/* container_run.c: OCI LinuxResources. The types and ranges of what can be changed while a
 * container runs; crun itself takes a limit that is no number for none. ERR_INVALID names the
 * field. */
int resources_check(const json_t *resources, struct err *err);
