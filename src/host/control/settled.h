/* settled.h - whether the shim can be saved at this moment. Its state is in its objects, except for
 * what a fiber has on its stack. So every fiber must be at a wait at which its stack holds nothing
 * that its object does not hold too: those waits are listed in settled.c. A fiber at any other
 * place is in the middle of a change, and the shim is not settled. */
#pragma once
#include <stdbool.h>

struct err;
struct loop;

/* Whether a fiber of this name that waits for this can be saved. why NULL: it does not wait. */
bool settled_at(const char *name, const char *why);
/* -1 with ERR_STATE: names a fiber that is elsewhere. Never waits. */
int settled_check(struct loop *loop, struct err *err);
