/* fake_guest_priv.h - the inside of the scripted guest, for fake_guest*.c. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/list.h"
#include "host/bridge/fake_guest.h"
#include "proto/bridge.h"

struct stream;

struct fake_container {
    struct list node;
    char *id;
    bool started, stopped;
    uint32_t init_pid;
    bool oom_told;
    uint64_t started_ns;
    struct waitq changed;
};

struct process {
    struct list node;
    unsigned refs;
    struct fake *guest;
    uint32_t pid;
    char *container; /* "" outside */
    bool init;
    struct stream *in, *out, *err;
    struct cancel killed;
    uint32_t exit_code;
    struct latch exited;
};

struct fake {
    struct fake_guest_opts opts;
    unsigned refs;
    struct cancel power; /* ours, fired by the VM's */
    struct stream *bridge;
    unsigned bridge_users;
    bool bridge_ended;
    struct gate writer;
    struct list processes, containers;
    uint32_t next_pid;
    struct fake_guest_facts facts;
    char clock[64]; /* the last answer that told it */
};

struct fake_container *fake_container_find(struct fake *g, const char *id);
/* Its init was started, or has ended: the others end with it. */
void fake_container_started(struct fake *g, const char *id, uint32_t pid);
void fake_container_stopped(struct fake *g, const char *id);
void fake_containers_forget(struct fake *g);
/* Create, Start, DeleteContainerState, ModifySettings and the wait for OOM. */
int fake_container_answer(struct ctx *ctx, struct fake *g, const struct bridge_request *r,
                          struct bridge_response *resp, struct err *err);
/* Copies what is true now to the test's struct. */
void fake_guest_tell(struct fake *g);
