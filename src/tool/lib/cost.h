/* cost.h - what a sandbox costs the host, beside what its guest says it uses. The host's side is
 * read from /proc: shim, QEMU, anchors; nobody is asked. The guest's side is Task.Stats of each
 * container, with a limit of its own: a guest that hangs has no figures, and keeps nothing back. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct shims;

struct cost {
    uint64_t shim_pss, vmm_pss, anchors_pss; /* bytes */
    uint64_t host_cpu_ns;                    /* of all of them, since they began */
    uint64_t guest;                          /* 1: what follows is known */
    uint64_t guest_memory, guest_cpu_ns;     /* of the containers' cgroups */
    uint64_t at;                             /* when it was measured: the loop's clock */
};

/* Fills the cost of each, which was asked before, all at once: one that hangs keeps nobody back.
 * Waits, at most two seconds. */
void cost_measure(struct ctx *ctx, struct shims *shims);
static inline uint64_t cost_host_memory(const struct cost *c)
{
    return c->shim_pss + c->vmm_pss + c->anchors_pss;
}
