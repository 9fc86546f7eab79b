/* fake_guest.h - a scripted guest that speaks real frames: boots, dials entropy, log and bridge,
 * answers requests, runs "processes". Each answer can be late, refused, missing or poisonous. For
 * tests and simulation; it dies with the VM's power. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cancel;
struct loop;
struct sbuf;
struct stream;

enum fake_answer_how {
    FAKE_ANSWER,
    FAKE_REFUSE, /* with hr */
    FAKE_SILENT, /* never */
    /* From here on the guest is hostile; the bridge must not survive it. */
    FAKE_DISCONNECT,
    FAKE_SIZE_0,
    FAKE_SIZE_15,
    FAKE_SIZE_HUGE, /* 2^32-1 */
    FAKE_TRUNCATED, /* less than announced, then the end */
    FAKE_UNKNOWN_ID,
    FAKE_KIND_4,
    FAKE_KIND_REQUEST,
    FAKE_BAD_JSON,
    FAKE_TWICE,
    FAKE_ANSWER_COUNT
};
#define FAKE_FIRST_HOSTILE FAKE_DISCONNECT

struct fake_answer {
    enum fake_answer_how how;
    uint64_t delay_ns;
    uint32_t hr;
};

/* What the guest has now, and what it was asked for. All but the signals are zero when everything
 * was taken back. */
struct fake_guest_facts {
    unsigned containers, layers, shares, disks, frozen, nics;
    unsigned signals, updates, clocks, clock_reads;
    uint32_t last_signal, last_signal_pid;
};

struct bridge_request;

struct fake_guest_opts {
    struct loop *loop;
    /* 0 or -errno. Everything the guest does ends when power fires. */
    int (*dial)(void *arg, uint32_t port, struct stream **ret);
    void *dial_arg;
    struct cancel *power;

    uint64_t init_ns, agent_ns; /* until PID 1 runs; from there until the agent dials */
    bool skip_entropy, skip_log, agent_hangs;
    const char *log_text; /* on the log port; NULL: nothing */
    size_t log_len;
    bool log_lingers;  /* stays open for a minute beyond the end of the VM */
    int32_t clock_ppm; /* how much too fast its clock runs */
    uint32_t version;  /* 0: the right one */
    const char *os;    /* NULL: "Linux" */
    /* How to answer this request; NULL: at once. */
    struct fake_answer (*decide)(void *arg, uint32_t type);
    /* The same, with all of the request; wins. */
    struct fake_answer (*decide_request)(void *arg, const struct bridge_request *r);
    void *decide_arg;
    struct fake_guest_facts *facts; /* kept up to date; may be NULL; borrows */

    uint64_t process_ns;   /* how long a process runs */
    uint64_t container_ns; /* the same for a container's init; 0: as the others */
    uint64_t oom_ns;       /* from its start until the kernel kills somebody; 0: never */
    bool oom_again;        /* and at once the next one, for ever */
    bool oom_late;         /* of one that has ended meanwhile it tells long afterwards */
    uint32_t exit_code;
    size_t output_bytes;
    bool no_stdio; /* answers exec, but does not dial its streams */
    /* ShutdownGraceful of the VM itself; NULL: it is refused. */
    void (*power_off)(void *arg);
    void *power_off_arg;
};

/* Starts its fibers; frees itself when the last has ended. Copies opts, borrows the texts. */
void fake_guest_boot(const struct fake_guest_opts *opts);
/* One raw notification that this container has ended, appended as a frame to *out (struct sbuf).
 * For tests that write frames themselves. */
void fake_guest_exit_frame(struct sbuf *out, const char *container);
