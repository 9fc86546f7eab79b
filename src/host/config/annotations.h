/* annotations.h - what a container's spec may choose by annotations: the table of those we know,
 * ours (io.lcow.*) and hcsshim's (reference/host.md §17). Of those that change the VM or give a
 * container more only what allow_annotations names is taken; what restricts a container is always
 * taken; what asks for something that we do not give is refused, since somebody relies on it. What
 * is not allowed or means nothing here is logged. The rest is ignored, and does not reach the guest
 * (document.h). Unlike the original, a value that makes no sense is an error. Never waits. */
#pragma once
#include "host/config/config.h"
#include "host/config/cpugroup.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct sbuf;
struct spec;
struct strv;

struct annotations {
    uint32_t memory_mib, cpus;  /* 0: not said */
    uint32_t scratch_quota_mib; /* 0: none */
    /* Auto is left only for a container whose writes are to be kept where that is possible. */
    enum config_rootfs rootfs;
    bool shared_empty_dirs; /* of a pod: its first container's word counts … */
    bool said_empty_dirs;   /* … and no other may contradict it */
    bool encrypted_scratch; /* of the VM: the first container's word counts */
    bool privileged;        /* document_opts.privileged */
    /* Nothing of the host is writable in the container. Checked, but for emptyDirs: whether one is
     * the host's is known when it has been looked at. */
    bool no_writable_shares, said_shares;
    /* Of the VM; 0, false or "": not said. What they mean together: shape.h. */
    uint32_t cpu_limit, cpu_weight, disk_iops, disk_bytes_per_s;
    uint32_t low_mmio_mib, high_mmio_mib, node_cpus, node_mib;
    bool committed, backed, deferred, no_timesync;
    char cpu_group[CPUGROUP_NAME_MAX + 1], kernel_args[512];
    char numa_host[64], numa_cpus[64], numa_mib[128], numa_prefer[192];
};
extern const char annotations_no_writable_shares[], annotations_cpu_group[]; /* their names */
/* Removes from the spec what the configuration does not allow, adds what the administrator gives to
 * containers that lack it, and reads the rest. Repeatable. ERR_INVALID: a value that makes no
 * sense, or two that contradict each other. ERR_UNIMPLEMENTED: something that we do not give.
 * ERR_PERMISSION: a mount that is restricted away. */
int annotations_read(const struct config *c, struct spec *s, struct annotations *ret,
                     struct err *err);

/* The sandbox allows no container a writable share: this one has none, and keeps what it writes
 * in the VM, or ERR_PERMISSION. */
int annotations_restrict(const struct spec *s, struct annotations *o, struct err *err);
/* ERR_STATE: a later container says something else of the VM than the first. */
int annotations_contradiction(const struct annotations *first, const struct annotations *later,
                              struct err *err);
/* Whether the configuration allows an annotation that needs it. */
bool annotations_allowed(const struct config *c, const char *name);
/* "works", "works if allowed", "refused", "meaningless here"; NULL: unknown. */
const char *annotations_verdict(const char *name);

/* Is it a name, or a pattern with names, that allow_annotations may have? *ret_near: the nearest,
 * static, or NULL. */
bool annotations_known(const char *word, size_t len, const char **ret_near);
/* Annotations that have an effect with this configuration: exact names, but for the devices', which
 * are a pattern. Appended. */
#define OPTIONS_DEVICES "io.lcow.device/*"
void annotations_taken(const struct config *c, struct strv *ret);
/* The table, as Markdown. */
void annotations_print_markdown(struct sbuf *out);
