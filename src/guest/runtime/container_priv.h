/* container_priv.h - for container*.c only. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/idmap.h"
#include "base/list.h"
#include "guest/runtime/container.h"
#include "guest/runtime/process.h"
#include "guest/runtime/rootfs.h"
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
    bool attached; /* start was called: its stdio is used up */
    bool own_pid_ns, terminal;
    bool holder;               /* container_config.holder */
    bool has_hooks;            /* which crun runs at start and delete */
    int last_signal;           /* TERM or KILL to init */
    char *cgroup, *root;       /* full paths */
    char *network;             /* the namespace it holds (guest/net); NULL: none */
    struct idmap ids;          /* of its user namespace; empty: none */
    struct rootfs_owner owner; /* its root, in the VM */
    json_t *rlimits, *user;
    struct processes execs;

    unsigned init_waits; /* waits on init whose answer has not been sent */
    bool wait_answered, notified;

    uint64_t oom_told;
    bool oom_watched;
    unsigned oom_waits; /* until their answer is sent */
    struct waitq oom;
    struct cancel oom_stop;

    struct metrics *metrics; /* NULL: not open */
    bool files_made;         /* there may be files of pod_files.h to remove */
    bool crun_made;
};

struct containers {
    struct containers_opts opts;
    struct crun *crun; /* NULL until the first container */
    struct list containers;
    size_t n;
    size_t n_metrics;     /* containers whose metrics are open */
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
 * text, in it; the started process becomes the agent's child. spec: of a holder, which is started
 * without crun; else NULL. on_done gets a reference on c. */
int container_run(struct ctx *ctx, struct container *c, const struct spec *spec,
                  const char *process, bool terminal, void (*on_exit)(void *arg),
                  void (*on_done)(void *arg), struct process **ret, struct err *err);

/* Also there. */
void container_on_exit(void *arg);
void container_on_done(void *arg);

/* container_run.c: OCI LinuxResources. Checks what can be changed while a container runs, because
 * crun ignores a limit that is not a number. ERR_INVALID names the field. */
int resources_check(const json_t *resources, struct err *err);
