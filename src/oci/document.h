/* document.h - what the guest gets to make a container of: the client's OCI spec, made fit for
 * another kernel (reference/host.md §15.3). Pure JSON; never waits. */
#pragma once
#include "oci/spec.h"
#include <stdint.h>

struct err;

struct document_opts {
    const char *bundle_path, *root_path, *scratch_path; /* in the guest; scratch "" if none */
    enum spec_kind kind;
    const char *pod_id;
    /* Of the pod's first process in the guest: whose namespaces a workload shares. 0: none runs. */
    uint32_t pod_pid;
    /* Of the container whose processes this one is to see, if not the pod's. 0: none. */
    uint32_t target_pid;
    /* The pod's network namespace in the guest (network_opts.guest_ns): all of its containers name
     * the same, whoever comes first makes it. NULL: one of its own with loopback only, or
     * pod_pid's.
     */
    const char *network_namespace;
};

/* Rewrites spec in place and gives the whole document as text. Caller frees.
 * Hooks, the host's cgroup and its limits on devices, pids, block I/O, huge pages and network are
 * left out. Paths of namespaces mean nothing in the guest: a workload's become its pod's, others
 * become new ones. A container never gets the VM's own network, which holds the link to us, and
 * sees its own cgroup only, with its limits. */
int document_build(struct spec *spec, const struct document_opts *o, char **ret, struct err *err);

/* One entry of mounts. */
enum document_mount {
    DOCUMENT_MOUNT_HOST,  /* a bind of a host path: to be shared */
    DOCUMENT_MOUNT_GUEST, /* passed on */
};
/* ERR_UNIMPLEMENTED names a type that the guest cannot mount; ERR_INVALID a bind without an
 * absolute source. *ret_source is borrowed. */
int document_mount(const json_t *mount, enum document_mount *ret, const char **ret_source,
                   bool *ret_read_only, bool *ret_recursive, struct err *err);
