/* guest.h - THE GUEST SEAM: typed calls of the GCS protocol, as the controllers see them; no wire
 * format. The real one (bridge.c) speaks frames over a stream, the fake one is scripted.
 *
 * Life: new (implementation's own) -> prepare (before the VM starts) -> connect -> calls … ->
 * close -> free. Many calls may be in flight; each waits until ctx ends or the bridge is lost,
 * then ERR_UNAVAILABLE. A call on a guest that is not connected is ERR_UNAVAILABLE, never a
 * crash. close never waits and fails all waiting calls; it can be repeated. */
#pragma once
#include "proto/settings.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct guest;
struct saved;
typedef struct json_t json_t;
struct stream;

#define GUEST_NULL_ID "00000000-0000-0000-0000-000000000000" /* addresses the VM itself */

struct guest_exec {
    const char *container; /* NULL: in the VM, outside containers */
    /* For the VM: */
    const char *const *argv;
    const char *const *env; /* "KEY=value"; the whole environment */
    const char *cwd;
    /* For a container: an OCI process, borrowed, not changed; NULL starts its init. */
    json_t *oci_process;
    bool terminal; /* then no stderr */
    bool want_stdin, want_stdout, want_stderr;
};

/* A container: where it lies in the guest, and its OCI spec (oci/document.h). */
struct guest_container {
    const char *id, *bundle_path;
    const char *scratch_path; /* "": none */
    json_t *spec;             /* borrowed, not changed */
    bool privileged;
    bool holder; /* the guest makes its process without a root file system (has_holder) */
};

struct guest_process {
    uint32_t pid;                  /* in the guest's root pid namespace */
    struct stream *in, *out, *err; /* NULL if not wanted; caller frees */
};

#define GUEST_WAIT_FOREVER UINT32_MAX

/* One process of a container, as the guest reports it; what it does not report is 0 or "". */
#define GUEST_LIST_MAX 4096
#define GUEST_PID_MAX 4194304 /* Linux's own limit: no host has a process beyond it either */
struct guest_listed {
    uint32_t pid;      /* first: in the guest's root pid namespace, 1 to GUEST_PID_MAX */
    uint32_t leader;   /* pid of the exec that it descends from, or is; 0: init, or not known */
    char name[16];     /* printable ASCII */
    uint64_t start_ns; /* host's wall clock */
    uint64_t user_ms, kernel_ms, data_kib, private_kib, shared_kib;
};

/* layers: topmost first; none: only the bundle is made (has_holder). scratch NULL: read-only.
 * scratch_quota: bytes; 0: none. uid_map, gid_map: of a container with a user namespace
 * (base/idmap.h), or NULL; map_layers: its layers are file systems that do not have these ids yet.
 */
struct guest_layers {
    const char *container, *root_path, *scratch_path, *uid_map, *gid_map;
    bool map_layers;
    uint64_t scratch_quota;
    const char *const *layers; /* NULL-terminated */
};

/* One NIC of the VM, found by its MAC, to be configured in namespace ns of the guest, which is made
 * when it is first named. Texts as inet_pton takes them; "" where there is none. */
struct guest_neighbour {
    const char *address;
    uint8_t mac[6];
};
struct guest_nic {
    const char *ns, *id; /* id is ours, for remove_nic */
    const char *name;    /* of the interface in the pod; "": as the kernel calls it */
    uint8_t mac[6];
    uint32_t mtu; /* 0: leave */
    const struct guest_ip *ips;
    const struct guest_route *routes; /* in the order in which they are to be made */
    const struct guest_neighbour *neighbours;
    const struct guest_rule *rules;
    size_t n_ips, n_routes, n_neighbours, n_rules;
    const char *const *sysctls;           /* "ipv4.conf.rp_filter=2"; NULL-terminated, or NULL */
    const char *dns_servers, *dns_search; /* comma-separated */
};

struct guest_ops {
    /* Opens the ports for entropy, log and bridge. If that of the log fails, prepare continues and
     * sets log_lost. */
    int (*prepare)(struct ctx *ctx, struct guest *g, struct err *err);
    /* Accepts the bridge, negotiates version 4. */
    int (*connect)(struct ctx *ctx, struct guest *g, struct err *err);
    void (*close)(struct guest *g, const char *why);
    /* Until it was closed: by us, by the guest or by what it did. At once afterwards. */
    int (*wait_closed)(struct ctx *ctx, struct guest *g, struct err *err);
    /* Waits until the guest's log stream has ended, or ctx. At once if it never began. After
     * close it also ends the guest's own fibers: nothing touches the VMM from then on. */
    int (*drain_log)(struct ctx *ctx, struct guest *g, struct err *err);
    void (*free)(struct guest *g);
    /* A guest that is connected, and of whose calls only waits (wait_process, wait_oom) are
     * outstanding, for saved.h. Reading: into a new object, instead of prepare and connect. NULL:
     * it cannot be saved. */
    void (*saved)(struct guest *g, struct saved *s);

    bool (*connected)(const struct guest *g);
    /* Age of the oldest outstanding call in ns, 0 if none; waits for processes do not count. */
    uint64_t (*oldest_call)(const struct guest *g);
    /* The guest's log is not forwarded, since the host could not listen for it. */
    bool (*log_lost)(const struct guest *g);
    /* It was said when it connected; an older agent has none. */
    bool (*has_holder)(const struct guest *g);

    /* Ports for stdio are opened before the request and never reused. */
    int (*exec)(struct ctx *ctx, struct guest *g, const struct guest_exec *e,
                struct guest_process *ret, struct err *err);
    /* ERR_DEADLINE when timeout_ms passed in the guest, ERR_NOT_FOUND for an unknown pid. The
     * answer comes only after the output streams were read to their end and closed.
     * wait_id, of the two waits (this one and wait_oom): while the wait is outstanding, it names
     * the request; 0 before and after. Not 0 at the call: the request was sent before the guest was
     * saved (saved below), and its answer is awaited here. */
    int (*wait_process)(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                        uint32_t timeout_ms, uint32_t *ret_exit_code, uint64_t *wait_id,
                        struct err *err);
    int (*signal_process)(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          int signo, struct err *err);
    int (*resize_console)(struct ctx *ctx, struct guest *g, const char *container, uint32_t pid,
                          uint16_t rows, uint16_t cols, struct err *err);
    /* LCOWMetrics of a container and, unless that is NULL, what it uses of the scratch disk.
     * ERR_NOT_FOUND if the guest has no metrics. Caller unrefs *ret_metrics. */
    int (*read_stats)(struct ctx *ctx, struct guest *g, const char *container, json_t **ret_metrics,
                      uint64_t *ret_scratch_bytes, struct err *err);
    /* All processes of a container, by pid, each once, at most GUEST_LIST_MAX. Caller frees *ret.
     */
    int (*list_processes)(struct ctx *ctx, struct guest *g, const char *container,
                          struct guest_listed **ret, size_t *ret_n, struct err *err);
    int (*dump_stacks)(struct ctx *ctx, struct guest *g, char **ret_text, struct err *err);
    /* Success means asked for. The VM itself answers by going away. */
    int (*shutdown)(struct ctx *ctx, struct guest *g, const char *container, bool forced,
                    struct err *err);

    int (*create_container)(struct ctx *ctx, struct guest *g, const struct guest_container *c,
                            struct err *err);
    int (*start_container)(struct ctx *ctx, struct guest *g, const char *container,
                           struct err *err);
    int (*delete_container)(struct ctx *ctx, struct guest *g, const char *container,
                            struct err *err);
    /* resources: OCI LinuxResources, borrowed, not changed. */
    int (*update_container)(struct ctx *ctx, struct guest *g, const char *container,
                            json_t *resources, struct err *err);
    /* The VM's memory has changed: what all pods together may use follows it. */
    int (*limit_pods)(struct ctx *ctx, struct guest *g, struct err *err);
    /* lcow's own requests; a guest that does not know them answers ERR_UNIMPLEMENTED. freeze
     * returns when all processes are frozen (or thawed); wait_oom returns when the kernel killed
     * a process of the container (*ret_oom) or the container is gone; set_clock steps the clock;
     * read_clock reads the monotonic one, which is never stepped. */
    int (*freeze_container)(struct ctx *ctx, struct guest *g, const char *container, bool frozen,
                            struct err *err);
    int (*wait_oom)(struct ctx *ctx, struct guest *g, const char *container, bool *ret_oom,
                    uint64_t *wait_id, struct err *err);
    int (*set_clock)(struct ctx *ctx, struct guest *g, uint64_t wall_ns, struct err *err);
    int (*read_clock)(struct ctx *ctx, struct guest *g, uint64_t *ret_ns, struct err *err);

    /* Files. Removing what is gone already is success. */
    int (*mount_disk)(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                      struct err *err);
    int (*unmount_disk)(struct ctx *ctx, struct guest *g, const struct guest_disk *d,
                        struct err *err);
    int (*eject_disk)(struct ctx *ctx, struct guest *g, uint8_t controller, uint8_t lun,
                      struct err *err);
    int (*mount_share)(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                       struct err *err);
    int (*unmount_share)(struct ctx *ctx, struct guest *g, const struct guest_share *s,
                         struct err *err);
    int (*combine_layers)(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                          struct err *err);
    int (*uncombine_layers)(struct ctx *ctx, struct guest *g, const struct guest_layers *l,
                            struct err *err);

    /* A PCI device that the VMM has just added: returns when the guest has it, driver and nodes
     * included. place: from pci_add (vmm.h). The guest is not asked before the device is removed.
     */
    int (*add_device)(struct ctx *ctx, struct guest *g, const char *place, struct err *err);

    /* Network. add waits for the device to appear. Removing what is gone already is success; the
     * interface is taken down first, so that the device can be pulled. */
    int (*add_nic)(struct ctx *ctx, struct guest *g, const struct guest_nic *n, struct err *err);
    int (*remove_nic)(struct ctx *ctx, struct guest *g, const char *ns, const char *id,
                      struct err *err);
    /* Connects to a TCP port in namespace ns: on loopback of that family, else on an address of the
     * pod. If no process listens there, the guest's error says so. Caller frees *ret, both ways
     * half-closable. */
    int (*connect_port)(struct ctx *ctx, struct guest *g, const char *ns, bool ipv6, uint16_t port,
                        struct stream **ret, struct err *err);
};

struct guest {
    const struct guest_ops *ops;
};
