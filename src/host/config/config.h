/* config.h - the configuration: /etc/lcow/lcow.conf and lcow.conf.d/ (INI), one table of keys.
 * Sections may be left out, since no key is in two of them; a key below the wrong one is refused.
 * Unknown sections and keys are refused with the nearest match; a bad value names file, line, key,
 * value and what is allowed. Units are in the names of keys. Reads files of the administrator,
 * blocking; never waits otherwise.
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
    CONFIG_ROOTFS_AUTO, /* kept in the snapshot, but for containers that the CRI throws away */
    CONFIG_ROOTFS_SCRATCH,
    CONFIG_ROOTFS_SHARED,
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
    bool shared_empty_dirs; /* empty_dir = shared */
    bool use_template;      /* template = auto */
    uint32_t device_slots;  /* where allow_devices names something */
    /* [host] */
    char *allow_annotations; /* names, separated by blanks */
    char *allow_devices;     /* devices.h; the same */
    char *cpu_group_dir;     /* cpugroup.h */
    bool run_hooks;          /* hooks = run */
    char *shim_cgroup;       /* "none", "pod" or a path */
    char *run_root;
    char *scratch_dir;
    char *template_dir;
    uint32_t scratch_mib;
    uint32_t scratch_free_mib;
    uint32_t scratch_quota_mib; /* 0: none */
    uint32_t parallel_starts;   /* 0: as many as the processors can carry */
    uint32_t vm_uid_base, vm_uid_count;
    enum log_level log_level;
    char *trace_endpoint; /* "": of the environment, if any */
    /* Not of a file: "NAME=VALUE", for containers that lack NAME (runhcs' options). */
    struct strv default_annotations;
};

void config_init(struct config *c);
void config_release(struct config *c); /* repeatable */
AUTO_VALUE(struct config, config_release);

/* The file, then FILE.d/ *.conf in the order of their names; later values win. path NULL:
 * $LCOW_CONFIG, else CONFIG_PATH, which may be missing; a path that was named must exist. After a
 * failure *c may hold some of the values and can only be released. */
int config_load(struct config *c, const char *path, struct err *err);
/* The options table of containerd's CRI configuration, as it reaches us: TOML, of which this takes
 * tables, strings, numbers, booleans and arrays of strings, and names what it does not. The same
 * keys; allow_annotations may be an array. Fuzzed. */
int config_parse_toml(struct config *c, const char *name, const char *text, struct err *err);

/* Ports for PCI devices that a VM has: none where none are allowed. */
uint32_t config_pci_ports(const struct config *c);

/* ---- for those who look at a configuration rather than use it */
#define CONFIG_KEYS_MAX 64

/* Where values came from, and everything that is wrong. {0} is empty. */
struct config_report {
    struct strv errors;            /* "FILE:LINE: what" */
    struct strv files;             /* those that were read */
    char *origin[CONFIG_KEYS_MAX]; /* "FILE:LINE" by key; NULL: default */
};
void config_report_release(struct config_report *r);
AUTO_VALUE(struct config_report, config_report_release);
/* As config_load, but errors in files are collected and reading goes on. */
int config_read(struct config *c, const char *path, struct config_report *report, struct err *err);
/* One file alone, or its text; name is for messages. report NULL: stops at the first error. */
int config_read_file(struct config *c, const char *path, struct config_report *report,
                     struct err *err);
int config_parse(struct config *c, const char *name, const char *text, size_t len,
                 struct config_report *report, struct err *err); /* fuzzed */
/* What one key cannot know of another. */
void config_check(const struct config *c, struct config_report *report);

/* All keys with their values: a file that config_parse reads back to the same values. meaning: each
 * below what it means and its default. With a report, each line ends with where its value came
 * from. */
void config_print(const struct config *c, const struct config_report *report, bool meaning,
                  struct sbuf *out);
/* [{"section", "key", "value", "origin"}], all text. */
void config_print_json(const struct config *c, const struct config_report *report,
                       struct sbuf *out);
/* The reference, as Markdown (docs/configuration.md). */
void config_print_markdown(struct sbuf *out);
