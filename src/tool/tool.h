/* tool.h - the operator's tool behind cmd/lcow: a table of commands, one loop, the command as its
 * first fiber. The caller chooses the backend that runs VMs. */
#pragma once
#include "base/json.h"
#include "host/config/config.h"
#include "host/control/template_build.h"
#include "tool/lib/args.h"
#include "tool/lib/shims.h"
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct guest;
struct loop;
struct registry;
struct rpc_server;
struct service;
struct template_info;
struct timeline;
struct vm_doc;
struct vmm;

/* Exit codes other than CMD's own. */
#define TOOL_OK 0
#define TOOL_FAILED 1        /* a check of doctor failed, gc could not clean up everything */
#define TOOL_USAGE 2         /* the command line or the configuration is invalid */
#define TOOL_BOOT_FAILED 125 /* lcow itself failed, not CMD */
#define TOOL_NOT_EXECUTABLE 126
#define TOOL_NOT_FOUND 127

enum tool_accel {
    TOOL_ACCEL_NONE,
    TOOL_ACCEL_BROKEN,  /* the device exists, but a VM failed with it */
    TOOL_ACCEL_UNTRIED, /* the device exists, but no VM has run with it since the host started */
    TOOL_ACCEL_WORKS,
};

struct tool_backend {
    struct vmm *(*vmm_new)(struct loop *loop);
    struct guest *(*guest_new)(struct loop *loop, struct vmm *vmm, struct timeline *timeline);
    /* The state as a boot would see it, without opening the device. *ret_text: the reason; caller
     * frees. */
    enum tool_accel (*accel)(const char *run_root, char **ret_text);
    /* The next boot tries it as if it were the first. 0 or -errno. */
    int (*accel_forget)(const char *run_root);
    /* NULL: this backend has no templates. */
    template_builder *template_build;
    /* Adds to server the services that lcow(1) calls in a shim. Release it after the server. NULL:
     * kept VMs do not answer calls. */
    struct service *(*serve)(struct loop *loop, struct registry *r, struct rpc_server *server);
    void (*unserve)(struct service *s);
};

/* argv is NULL-terminated and has the program's name first. Returns the exit code. */
int tool_main(const struct tool_backend *backend, char **argv);

/* ---- for the commands */

/* The options of all commands; each command's table names those that it accepts. */
struct tool_opts {
    const char *config, *log_level; /* of every command */
    bool version;
    bool json;
    bool execs, whole, once, follow, kernel, agent, shim, container, no_output;
    bool vm, terminal, interactive, writable, compare, retest, origin, syntax;
    bool dry_run, force, all, again, allow_emulation, kvm, keep, cold, after_install;
    uint32_t seconds, lines, memory_mib, cpus, repeat, bench_bridge;
    const char *cwd, *format, *listen, *output, *program, *containerd, *containerd_version;
    struct args_optional timeline, json_file; /* of `boot` */
    const char *volume_path, *mount_info, *device, *fs_type, *options, *fs_group, *fs_group_policy,
        *size;
    bool read_only;
};
#define OPT(field) offsetof(struct tool_opts, field)
#define OPT_JSON(doc)                                                                              \
    {                                                                                              \
        "json", 0, ARGS_FLAG, NULL, OPT(json), doc                                                 \
    }
/* For commands whose only option is --json. */
#define TOOL_JSON_OPTS(doc) ARGS_OPTIONS(OPT_JSON(doc))
extern const struct args_opts tool_global_opts;

struct tool {
    const struct tool_backend *backend; /* borrows */
    struct loop *loop;
    struct config config; /* loaded, unless the command is `bare` */
    struct tool_opts opts;
    struct args_rest rest; /* the command's words */
    /* The output, printed on stdout unless the command fails: a text, or one JSON value (owned). */
    struct sbuf out;
    json_t *json;
    /* By tool_list(), tool_find(), tool_connect(). */
    struct shims shims;
    bool listed;
    const struct shim *shim;   /* borrowed from shims */
    const char *container;     /* borrowed from shims; NULL: the word names a sandbox */
    struct rpc_client *client; /* owned */
};

/* Fills t->shims with the shims of this host, once. Waits. */
int tool_list(struct ctx *ctx, struct tool *t, struct err *err);
/* The same, queried again, with the resources that each uses. */
int tool_measure(struct ctx *ctx, struct tool *t, struct err *err);
/* The same, and sets t->shim to the one that word names, as in shims_find(). */
int tool_find(struct ctx *ctx, struct tool *t, const char *word, struct err *err);
/* The same, and connects to that shim. */
int tool_connect(struct ctx *ctx, struct tool *t, const char *word, struct err *err);
/* Finds or builds a template for the VMs of this configuration; *ret_made: it was built now. Caller
 * releases *ret. Waits. */
int tool_build_template(struct ctx *ctx, struct tool *t, struct template_info *ret, bool *ret_made,
                        struct err *err);
/* Prints what is in `out` so far. */
void tool_flush(struct tool *t);

/* All commands, NULL-terminated. */
extern const struct args_cmd *const tool_commands[];
const char *tool_last_word(const char *name); /* "show" of "config show" */
extern const struct args_cmd boot_command, completion_command, config_command, console_command,
    cp_command, cpugroup_command, doctor_command, events_command, exec_command, explain_command,
    gc_command, inspect_command, logs_command, metrics_command, overhead_command, ps_command,
    report_command, runtimeclass_command, share_command, stacks_command, tasks_command,
    template_command, timeline_command, top_command, upgrade_command, volume_command;

/* "lcow: error: …" on stderr, wrapped; returns code. */
int tool_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Writes all of the text, blocking; ignores errors such as a closed stdout. */
void tool_print(int fd, const char *text);
void tool_printf(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
