/* inspect.h - all that a shim knows, as one JSON document for lcow(1). From fields alone: it never
 * waits, so it answers while the VM, the guest or a client is stuck. What the guest alone knows is
 * as it was when registry_measure() or Stats asked last, or null.
 *
 *     { "version", "namespace", "sandbox", "pid", "now_ns",
 *       "vm": null |
 *       { "state", "stage", "backend", "vmm_version", "kernel", "emulated", "clone",
 *         "clock": { "state", "low_ppm", "high_ppm" },
 *         "pid", "memory_mib", "cpus", "started_ns", "oldest_call_ns", "log_lost",
 *         "boot": [{ "track", "name", "start_ns", "end_ns" }],
 *         "disks": [{ "slot", "path", "read_only", "state", "holders",
 *                     "mounts": [{ "partition", "path", "state", "holders" }] }],
 *         "shares": [{ "name", "host_path", "path", "read_only", "state", "holders" }],
 *         "devices": [{ "device", "place", "state", "holders" }] },
 *       "counters": { "stdio_lost_bytes", "log_lines_dropped", "events_pending",
 *                     "events_dropped" },
 *       "failures": { "DISK_FULL": 1, … },
 *       "containers":
 *       [{ "id", "guest_id", "pod", "bundle", "name", "log_directory", "stdout", "pid",
 *          "interfaces": [{ "name", "mac", "mtu", "addresses": [] }],
 *          "state", "guest_pid", "exit_status", "exited_ns",
 *          "execs": [{ "id", "state", "guest_pid", "exit_status", "exited_ns" }],
 *          "shares": [], "devices": [], "rootfs", "scratch_bytes" }] }
 *
 * "interfaces" is with the first container of a pod that has a network, "exit_status" and
 * "exited_ns" with what has ended. A container's shares and devices are named as the VM's are.
 * Times are wall time in ns; those of "boot" count from the first of them. */
#pragma once

struct ctx;
struct registry;

/* Asks the guest what its containers take of the scratch disk. May wait, five seconds at most; a
 * guest that does not answer leaves what was known. */
void registry_measure(struct ctx *ctx, struct registry *r);
/* Caller frees. */
char *registry_inspect(struct registry *r);
