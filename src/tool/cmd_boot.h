/* cmd_boot.h - `lcow boot`: options, one boot from VM to exit code, its result, and the reports. A
 * session is one VM; a boot command runs one session or, with --repeat, several in sequence. */
#pragma once
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/span.h"
#include "host/vmm/vmm.h"
#include "tool/lib/args.h"
#include "tool/lib/image.h"
#include "tool/tool.h"

struct boot_server;
struct guest;
struct ledger;
struct spinner;
struct vm;
struct vm_process;

struct boot_bench { /* of one kind of call over the bridge, in microseconds */
    uint32_t calls;
    double min_us, median_us, p99_us;
};

struct boot_flow {
    uint64_t bytes, ns;
};

/* The result of one boot; plain data, of which only console is owned. */
struct boot_result {
    char id[16];
    int code; /* exit code of lcow for this boot */
    bool ran; /* CMD ran to its end: code is CMD's */
    bool emulated;
    bool clone;         /* of a template */
    char cold_why[160]; /* why it started cold; "" if no clone was requested */
    char vmm_version[64];
    enum vm_stage stage;               /* the last one reached */
    uint64_t stage_at[VM_STAGE_COUNT]; /* loop_now(); 0: not reached */
    uint64_t origin, ended;
    uint64_t failed_at; /* when a boot failed; ended is after the clean-up */
    struct err err;     /* if the exit code is lcow's own */
    const char *next;   /* what to do about it; may be NULL */
    char *console;      /* its last lines after a failed boot; owned */
    struct timeline timeline;
    struct boot_flow in, out;
    struct boot_bench bench;
};
void boot_result_release(struct boot_result *r);

enum boot_phase { BOOT_STARTING, BOOT_RUNNING, BOOT_KEEPING, BOOT_ENDING };

struct boot_session {
    struct tool *tool;            /* borrows */
    const struct tool_opts *opts; /* borrows */
    const struct image *image;    /* borrows */
    char *const *argv;            /* CMD; NULL: only boot */
    bool terminal;
    bool cold; /* never from a template */

    enum boot_phase phase;
    struct ledger *ledger;      /* of a kept VM; NULL: the backend has its own */
    struct boot_server *server; /* while the VM is kept */
    struct vm *vm;
    struct guest *guest; /* belongs to vm */
    struct vm_process *process;
    struct spinner *spinner;
    struct boot_result *result; /* borrows */

    /* Signals: the first is forwarded, the second fires stop. */
    int signo;   /* the first that arrived, 0: none */
    int forward; /* to be sent to CMD */
    bool resized;
    struct waitq news;   /* forward or resized changed */
    struct cancel stop;  /* ends the session */
    struct cancel quiet; /* CMD has exited: ends the helper fibers */
    struct cancel drain; /* ends the relays of its output */
    struct fibers helpers;
};

/* Runs one VM and cleans up. Waits. The exit code is in *ret. */
void boot_session_run(struct ctx *ctx, struct boot_session *s, struct boot_result *ret);
/* Called by the loop on SIGINT, SIGTERM, SIGHUP, SIGWINCH. Never waits. */
void boot_session_signal(struct boot_session *s, int signo);

/* cmd_boot_io.c: runs CMD with our stdio until it has exited and its output is written. 0, or -1.
 */
int boot_run_command(struct ctx *ctx, struct boot_session *s, uint32_t *ret_code, struct err *err);

/* cmd_boot_serve.c: lets the VM answer `lcow ps` and `lcow exec --vm` until unserve, which waits
 * some seconds at most. A failure is only logged, and the VM is kept. */
void boot_serve(struct ctx *ctx, struct boot_session *s);
void boot_unserve(struct boot_session *s);

/* cmd_boot_report.c */
/* Why it failed, what to do, the console's last lines. */
void boot_report_failure(const struct boot_result *r, struct sbuf *out);
/* Caller frees. */
json_t *boot_report_json(const struct boot_result *r, const struct tool_opts *opts,
                         const struct image *image);
/* Cold starts first; then clones, and how much faster they were ready. */
void boot_report_repeat(const struct boot_result *results, size_t n, struct sbuf *out);
void boot_report_timeline(const struct boot_result *r, bool svg, struct sbuf *out);
