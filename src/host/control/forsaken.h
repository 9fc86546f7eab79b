/* forsaken.h - containers that containerd has given up: `delete` could not reach the shim, and left
 * a file for each of them beside the VM's ledger (run_file.h). The shim kills and deletes them, and
 * publishes nothing more of them. Never waits. */
#pragma once
#include <stdbool.h>

struct registry;

/* Looks for such files, and ends the containers that they name, each in a fiber of its own. */
void forsaken_obey(struct registry *r);
/* After registry_saved: continues to end those that were given up. */
void forsaken_resume(struct registry *r);
bool forsaken_is(const struct registry *r, const char *container_id);
/* All that is left was given up by containerd: the VM may end. */
bool forsaken_all(const struct registry *r);
