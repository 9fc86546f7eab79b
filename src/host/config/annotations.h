/* annotations.h - what a container's spec may choose by annotations: the table of known names, ours
 * (io.lcow.*) and hcsshim's (docs/reference/host.md §17). Annotations that change the VM or give a
 * container more privileges take effect only if allow_annotations names them. Those that restrict a
 * container always take effect. Those that ask for something unsupported are refused, because the
 * client relies on it. Annotations that are not allowed or have no effect here are logged. Unknown
 * names are ignored and do not reach the guest (document.h). Unlike in hcsshim, an invalid value is
 * an error. Never waits. */
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
    uint32_t memory_mib, cpus;  /* 0: not set */
    uint32_t scratch_quota_mib; /* 0: no limit */
    /* AUTO remains only for a container whose writes are kept where that is possible. */
    enum config_rootfs rootfs;
    bool shared_empty_dirs; /* for the pod: its first container decides */
    bool said_empty_dirs;   /* it was set, so no other container may contradict it */
    bool encrypted_scratch; /* for the VM: its first container decides */
    bool privileged;        /* document_opts.privileged */
    /* Nothing of the host is writable in the container. All mounts are checked except emptyDirs:
     * whether they are directories of the host is known only when they are mounted. */
    bool no_writable_shares, said_shares;
    /* For the VM; 0, false or "": not set. shape.h checks them together. */
    uint32_t cpu_limit, cpu_weight, disk_iops, disk_bytes_per_s;
    uint32_t low_mmio_mib, high_mmio_mib, node_cpus, node_mib;
    bool committed, backed, deferred, no_timesync;
    char cpu_group[CPUGROUP_NAME_MAX + 1], kernel_args[512];
    char numa_host[64], numa_cpus[64], numa_mib[128], numa_prefer[192];
};
extern const char annotations_no_writable_shares[], annotations_cpu_group[]; /* their names */
/* Removes from the spec the annotations that the configuration does not allow, adds the
 * administrator's defaults where they are missing, and reads the rest. Repeatable. ERR_INVALID: an
 * invalid value, or two that contradict each other. ERR_UNIMPLEMENTED: an unsupported annotation.
 * ERR_PERMISSION: a mount that an annotation forbids. */
int annotations_read(const struct config *c, struct spec *s, struct annotations *ret,
                     struct err *err);

/* For a container whose sandbox forbids writable shares: keeps its writes in the VM.
 * ERR_PERMISSION if the container has a writable share. */
int annotations_restrict(const struct spec *s, struct annotations *o, struct err *err);
/* ERR_STATE if a later container sets an annotation of the VM to another value than the first. */
int annotations_contradiction(const struct annotations *first, const struct annotations *later,
                              struct err *err);
/* Whether the configuration allows an annotation that needs it. */
bool annotations_allowed(const struct config *c, const char *name);
/* "works", "works if allowed", "refused", "ignored"; NULL: unknown. */
const char *annotations_verdict(const char *name);

/* True if allow_annotations may contain this name, or a pattern that matches a known name.
 * *ret_near: the nearest known name (static), or NULL. */
bool annotations_known(const char *word, size_t len, const char **ret_near);
/* Appends the annotations that have an effect with this configuration: exact names, and a pattern
 * for the devices. */
#define OPTIONS_DEVICES "io.lcow.device/*"
void annotations_taken(const struct config *c, struct strv *ret);
/* The table, as Markdown. */
void annotations_print_markdown(struct sbuf *out);
