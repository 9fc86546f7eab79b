/* config.h - the configuration: /etc/lcow/lcow.conf and lcow.conf.d/ (INI), one table of keys.
 * Section lines may be left out, since every key's name is unique; a key in the wrong section is an
 * error. An error about an unknown section or key suggests the nearest one; an error about a value
 * names file, line, key, value and what is allowed. The names of keys contain their units. Reads
 * the administrator's files, blocking; never waits otherwise.
 * Life: config_init (defaults) -> config_load -> config_release. */
#pragma once
#include "base/log.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define CONFIG_PATH "/etc/lcow/lcow.conf"
#define CONFIG_IMAGE_DIR "/usr/lib/lcow/image" /* unless a build tree has its own */
#define CONFIG_ENV "LCOW_CONFIG" /* another path, for tests and side-by-side installations */

/* Below this Debian's 6.1 kernel runs out of memory while it unpacks the initramfs. */
#define CONFIG_MEMORY_MIB_MIN 128
#define CONFIG_MEMORY_MIB_MAX (1024 * 1024)
#define CONFIG_CPUS_MAX 64

/* Where a container's writes to its root file system go. */
enum config_rootfs {
    CONFIG_ROOTFS_AUTO, /* in the snapshot; for CRI containers, which are deleted, on scratch */
    CONFIG_ROOTFS_SCRATCH,
    CONFIG_ROOTFS_SHARED,
};

/* How the layers of a directory snapshot reach a VM. */
enum config_layers {
    CONFIG_LAYERS_AUTO, /* as images, if there are images already */
    CONFIG_LAYERS_OFF,
    CONFIG_LAYERS_ALWAYS, /* and a container waits for them */
};

struct config {
    /* [vm] */
    bool allow_emulation, nested_virtualization;
    uint32_t emulation_cache_mib; /* 0: as much as a start needs */
    uint32_t memory_mib, cpus, boot_timeout_s;
    uint32_t overhead_mib, max_memory_mib, max_cpus; /* of VMs sized by a container's limits */
    char *qemu;                                      /* path or a name in PATH */
    char *image_dir;                                 /* kernel, initramfs, manifest.json */
    enum config_rootfs rootfs;
    enum config_layers layer_images;
    bool layer_verity;
    bool shared_empty_dirs; /* empty_dir = shared */
    bool use_template;      /* template = auto */
    bool vsock_link;        /* link = vsock */
    bool vhost_net;         /* vhost_net = auto */
    uint32_t device_slots;  /* where allow_devices names something */
    /* [host] */
    char *allow_annotations; /* names, separated by blanks */
    char *allow_devices;     /* devices.h; the same */
    char *cpu_group_dir;     /* cpugroup.h */
    bool run_hooks;          /* hooks = run */
    bool auto_upgrade;       /* upgrade = auto */
    char *shim_cgroup;       /* "none", "pod" or a path */
    char *run_root;
    char *scratch_dir;
    char *template_dir;
    char *layer_dir;
    uint32_t layer_images_max_mib;
    uint32_t scratch_mib;
    uint32_t scratch_free_mib;
    uint32_t scratch_quota_mib; /* 0: no limit */
    uint32_t parallel_starts;   /* 0: two for each processor */
    uint32_t vm_uid_base, vm_uid_count;
    enum log_level log_level;
    bool scrub_logs;
    char *trace_endpoint; /* "": the environment's, if any */
    /* From runhcs' options, not from a file: "NAME=VALUE", for containers that lack NAME. */
    struct strv default_annotations;
};

void config_init(struct config *c);
void config_release(struct config *c); /* repeatable */
AUTO_VALUE(struct config, config_release);

/* Reads the file, then FILE.d/ *.conf in the order of their names; later values override earlier
 * ones. path NULL: $LCOW_CONFIG, else CONFIG_PATH, which may be missing; a path that the caller or
 * $LCOW_CONFIG names must exist. After a failure *c may hold some values and can only be released.
 */
int config_load(struct config *c, const char *path, struct err *err);
/* Reads the options table of containerd's CRI configuration, which arrives as TOML. Supported are
 * tables, strings, numbers, booleans and arrays of strings; the error names anything else. The keys
 * are those of the file; allow_annotations may be an array. Fuzzed. */
int config_parse_toml(struct config *c, const char *name, const char *text, struct err *err);

/* Number of ports for PCI devices that a VM has: 0 if no devices are allowed. */
uint32_t config_pci_ports(const struct config *c);

/* ---- for commands that show or check a configuration */
#define CONFIG_KEYS_MAX 64

/* Where values came from, and all errors. {0} is empty. */
struct config_report {
    struct strv errors;            /* "FILE:LINE: what" */
    struct strv files;             /* all files that were read */
    char *origin[CONFIG_KEYS_MAX]; /* "FILE:LINE" by key; NULL: default */
    bool skip_unknown;             /* an unknown key is not an error */
};
void config_report_release(struct config_report *r);
AUTO_VALUE(struct config_report, config_report_release);
/* As config_load, but errors in files are collected and reading continues. */
int config_read(struct config *c, const char *path, struct config_report *report, struct err *err);
/* Parse one file, or its text; name is for messages. report NULL: stop at the first error. */
int config_read_file(struct config *c, const char *path, struct config_report *report,
                     struct err *err);
int config_parse(struct config *c, const char *name, const char *text, size_t len,
                 struct config_report *report, struct err *err); /* fuzzed */
/* The same for what config_print of another version printed: keys that this one lacks are skipped.
 */
int config_parse_saved(struct config *c, const char *name, const char *text, size_t len,
                       struct err *err);
/* Adds errors about keys that contradict each other. */
void config_check(const struct config *c, struct config_report *report);

/* Prints all keys with their values as a file, from which config_parse reads the same values.
 * meaning: with each key's description and default above it. With a report, each line ends with
 * the origin of its value. */
void config_print(const struct config *c, const struct config_report *report, bool meaning,
                  struct sbuf *out);
/* [{"section", "key", "value", "origin"}], all text. */
void config_print_json(const struct config *c, const struct config_report *report,
                       struct sbuf *out);
/* The reference, as Markdown (docs/configuration.md). */
void config_print_markdown(struct sbuf *out);
