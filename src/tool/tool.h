/* tool.h - the operator's tool behind cmd/lcow: commands by table, one loop, the command as its
 * first fiber. Which backend runs VMs is the caller's business. */
#pragma once
#include "base/err.h"
#include "base/json.h"
#include "host/config/config.h"
#include "host/control/template_build.h"
#include "tool/lib/args.h"
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct guest;
struct loop;
struct template_info;
struct timeline;
struct vm_doc;
struct vmm;

/* Exit codes beside CMD's own. */
#define TOOL_OK 0
#define TOOL_FAILED 1        /* doctor found something, gc could not take everything back */
#define TOOL_USAGE 2         /* the command line or the configuration is wrong */
#define TOOL_BOOT_FAILED 125 /* lcow itself failed, not CMD */
#define TOOL_NOT_EXECUTABLE 126
#define TOOL_NOT_FOUND 127

enum tool_accel {
    TOOL_ACCEL_NONE,
    TOOL_ACCEL_BROKEN,  /* it is there and failed */
    TOOL_ACCEL_UNTRIED, /* it looks good, but no VM has run with it since the host started */
    TOOL_ACCEL_WORKS,
};

struct tool_backend {
    struct vmm *(*vmm_new)(struct loop *loop);
    struct guest *(*guest_new)(struct loop *loop, struct vmm *vmm, struct timeline *timeline);
    /* What a boot would find, without touching the device. *ret_text: the reason; caller frees. */
    enum tool_accel (*accel)(const char *run_root, char **ret_text);
    /* The next boot tries it as if it were the first. 0 or -errno. */
    int (*accel_forget)(const char *run_root);
    /* NULL: this backend has no templates. */
    template_builder *template_build;
};

/* argv is NULL-terminated and has the program's name first. Returns the exit code. */
int tool_main(const struct tool_backend *backend, char **argv);

/* ---- for the commands */
struct tool_globals {
    const char *config;
    const char *log_level;
    bool version;
};
extern const struct args_opts tool_global_opts;

struct tool {
    const struct tool_backend *backend; /* borrows */
    struct loop *loop;
    struct tool_globals globals;
    struct config config; /* loaded, unless the command is `bare` */
    /* For the command that runs: what its options were written to, and its words. */
    void *opts;
    struct args_rest rest;
    /* What it has to say, printed on stdout unless it fails: a text, or one JSON value. */
    struct sbuf out;
    struct jsw json;
};

/* All of them, NULL-terminated. */
extern const struct args_cmd *const tool_commands[];
extern const struct args_cmd boot_command, completion_command, config_command, console_command,
    cp_command, doctor_command, events_command, exec_command, explain_command, gc_command,
    inspect_command, logs_command, metrics_command, overhead_command, ps_command, report_command,
    share_command, stacks_command, tasks_command, template_command, timeline_command, top_command;

/* For commands whose only option is --json. */
struct tool_json {
    bool json;
};
#define TOOL_JSON_OPTS(doc)                                                                        \
    ARGS_TABLE(((const struct args_opt[]){ { "json", 0, ARGS_FLAG, NULL, 0, doc } }))

/* "lcow: error: …" on stderr, wrapped; returns code. */
int tool_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Writes all of it, blocking; what goes wrong with a closed stdout is not worth an error. */
void tool_print(int fd, const char *text);
void tool_printf(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
