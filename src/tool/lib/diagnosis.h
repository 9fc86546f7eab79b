/* diagnosis.h - from the reason of a failure to its cause and what to do about it. A table with a
 * row for each of base/reason.h; scripts/check-troubles makes docs/troubleshooting.md from it.
 * Never waits. */
#pragma once
#include "base/reason.h"
#include <stdbool.h>

enum diagnosis_kind {
    DIAGNOSIS_CAUSE,     /* the failure's own cause */
    DIAGNOSIS_AFTERMATH, /* follows from an earlier failure; shown if that one is not known */
    DIAGNOSIS_ASKED,     /* a request that does not fit the present state; the sandbox is well */
    DIAGNOSIS_GENERAL,   /* the reason is not known */
};

struct diagnosis {
    const char *cause;  /* one sentence */
    const char *remedy; /* what to do next */
    enum diagnosis_kind kind;
    bool warned; /* it is a failure also when it is logged as a warning */
};

/* Never NULL. REASON_NONE: what can be said of a request by its name alone (operation; NULL or
 * unknown: less). Static. */
const struct diagnosis *diagnose(enum reason reason, const char *operation);
