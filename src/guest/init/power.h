/* power.h - the end of the VM. */
#pragma once

struct err;

/* At once, without syncing anything. Returns only on failure. */
int power_off(struct err *err);
