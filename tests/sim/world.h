/* world.h - what is below the registry in a schedule: the VM controller and the bridge as they are,
 * over a fake VMM, a scripted guest and a host without an OS, on virtual time. What goes wrong is
 * decided by the seed. One world at a time. */
#pragma once
#include "base/clock.h"
#include "base/fiber.h"
#include "base/rand.h"
#include "base/span.h"
#include "base/str.h"
#include "cli.h"
#include "fixture/fake_guest.h"
#include "fixture/fake_vmm.h"
#include "host/config/config.h"

struct events;
struct fake_host;
struct registry;
struct saved;

/* A set of these goes wrong. */
enum world_fault {
    WORLD_BOOT = 1 << 0,     /* the VM does not come up, or late */
    WORLD_DEATH = 1 << 1,    /* the VMM dies at some moment */
    WORLD_REFUSING = 1 << 2, /* some requests of the guest's fail … */
    WORLD_SILENT = 1 << 3,   /* … or are never answered */
    WORLD_LATE = 1 << 4,
    WORLD_HOSTILE = 1 << 5,
    WORLD_HOST = 1 << 6,    /* files, anchors, stdio fail or are late */
    WORLD_DEVICES = 1 << 7, /* the VMM refuses disks and shares, or does not answer */
    WORLD_READER = 1 << 8,  /* nobody reads the output */
    WORLD_DISK = 1 << 9,    /* no file can be written for a while */
    WORLD_CLOCK = 1 << 10,  /* the host's clock is set */
};
#define WORLD_GUEST_FAULTS (WORLD_REFUSING | WORLD_SILENT | WORLD_LATE | WORLD_HOSTILE)

#define WORLD_CODE 42 /* of every program that ends by itself: 0 is always wrong */

struct world {
    struct cli_result *result;
    struct loop *loop;
    struct rng rng;
    unsigned faults;
    bool calm; /* no more faults */
    char dir[256];
    struct config config;
    struct fake_host *host;
    struct fake_vmm_opts vmm_opts;
    struct fake_guest_opts guest_opts;
    struct fake_guest_facts guest;
    struct timeline timeline;
    struct vmm *vmm; /* the last that was made and is there */
    unsigned vms;
    unsigned refused, silent, late, poisoned, host_fails; /* of a thousand */
    uint64_t answer_ns;
    bool disk_was_full;
    bool resumes; /* a VM that is made is the one that there is */
};

/* dir: of ours alone; holds a config.json, see world_prepare. */
void world_open(struct world *w, uint64_t seed, const char *dir, struct cli_result *result);
/* faults: enum world_fault. rare: many at once, each less often. */
void world_plan(struct world *w, unsigned faults, bool rare);
/* A registry in it. */
struct registry *world_registry(struct world *w, struct events *events);
/* --- world_upgrade.c: another program takes over --- */
/* Until all fibers of the shim are at a wait at which they can be saved. -1: not in that time. */
int world_settle(struct world *w, uint64_t limit_ns);
/* Ends the program that has written this: its fibers and the descriptors that are not in the
 * document are gone, its memory is of no more use. Caller frees the reader, before the writer. -1:
 * it cannot be saved, and nothing has changed. */
int world_exec(struct world *w, struct saved *writer, struct saved **ret_reader);
/* All was read: what `lcow inspect` prints must be the same as before. */
void world_resumed(struct world *w, struct saved *reader, const char *before, struct registry *r);
/* What belonged to a program that has ended: kept, since it cannot be freed without closing what
 * the next one uses. */
void world_keep(void *object);

/* From now on everything does what it is asked. */
void world_calm(struct world *w);
/* After the registry: nothing may be left. */
void world_check(struct world *w);
/* Runs until nobody is left. False, and broken, if fibers hang. */
bool world_run(struct world *w);
void world_close(struct world *w);
/* For cli_program: the bundles. dir itself is one of a container that is a pod of its own, dir/pod
 * of one in pod s; dir/a and dir/c are those of pods, dir/b and dir/d of a container in each. */
int world_prepare(const char *dir);

/* A full disk: nothing that is written from here on arrives, until it is set back. */
void world_fill_disk(struct world *w, bool full);
/* The host's clock is set, by so much, and its watchers are woken. */
void world_set_clock(struct world *w, int64_t by_ns);

void world_say(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The first one counts. */
void world_broken(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool world_chance(struct world *w, unsigned of_thousand);
unsigned world_below(struct world *w, unsigned n);
/* Mostly short, sometimes exactly 0, so that things fall together. */
uint64_t world_some_ns(struct world *w, uint64_t max);
/* Is this a status that a process of this world can have ended with? */
bool world_status_ok(uint32_t status);
