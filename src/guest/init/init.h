/* init.h - the PID 1 role: mounts, modules, loopback, then the serving role as its child. Reaps
 * everything. The VM lives as long as the serving role: when that dies, PID 1 prints the reason on
 * the console and powers off. Blocks for the life of the VM. */
#pragma once

struct err;

/* exe: the program to run as serving role, with argv {"gcs", "serve", …args}; args is
 * NULL-terminated and borrowed. Returns an exit code only if powering off failed too. */
int init_run(const char *exe, const char *const *args);
/* Ends the VM at once, without syncing anything. Returns only on failure. */
int init_power_off(struct err *err);
