/* bridge.h - the host's end of the GCS bridge: struct guest over frames
 * (docs/reference/gcs-protocol.md). Works on whatever streams the VM's backend hands out; knows
 * nothing of how they are made.
 *
 * The guest is hostile: sizes, depths, counts, rates and texts are bounded, and a frame that
 * breaks the rules (size, kind, an id without a call, undecodable) closes the bridge with a
 * reason and wakes every waiter with ERR_UNAVAILABLE. A late answer to a call that was given up
 * is not such a frame. There is no gate: requests carry ids, and a call that hangs holds up no
 * other, nor close. */
#pragma once
#include "base/clock.h"

struct guest;
struct loop;
struct timeline;
struct vmm;

#define BRIDGE_CALL_LIMIT (300 * NS_PER_S) /* for one answer; less if ctx says so */
#define BRIDGE_STDIO_LIMIT (30 * NS_PER_S) /* for the guest to dial a stream it has agreed to */
#define BRIDGE_ENTROPY_BYTES 512

/* Borrows all three; timeline may be NULL. vmm must outlive drain_log, the others the guest.
 * Freed through its ops. */
struct guest *bridge_new(struct loop *loop, struct vmm *vmm, struct timeline *timeline);
