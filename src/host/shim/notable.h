/* notable.h - which lines of the shim's log go into its journal, and which of them are a reason to
 * keep it when the shim has ended. The log itself has them all. Waits for nothing. */
#pragma once
#include "base/log.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NOTABLE_POLLS 3 /* operations that others ask for again and again, for ever */
#define NOTABLE_POLL_NS (UINT64_C(600) * 1000000000)

struct notable {
    bool erred; /* something went wrong that `lcow explain` is to tell later */
    /* Of each: when the journal takes the next that failed. One is asked for every 10 s as long as
     * the pod lives; all of them would push everything else out of the journal. */
    uint64_t next_ns[NOTABLE_POLLS];
};

/* line: JSON, as log_tee() gives it. true: the journal takes it. now_ns: any clock that only goes
 * forwards. */
bool notable_take(struct notable *n, enum log_level level, const char *line, size_t len,
                  uint64_t now_ns);
