/* diagnosis.h - from the words of a failure to the stage at which it happened and what to do about
 * it. A table: a new kind of failure is a new row, a text as it is seen in diagnosis_test.c, and
 * scripts/check-troubles sees to it that the row's words are still said somewhere. Never waits. */
#pragma once
#include <stdbool.h>

enum diagnosis_kind {
    DIAGNOSIS_CAUSE,     /* it went wrong for that */
    DIAGNOSIS_AFTERMATH, /* something else had gone wrong before; the cause if none is told */
    DIAGNOSIS_ASKED,     /* a caller asked for what is not there (any more); the sandbox is well */
    DIAGNOSIS_GENERAL,   /* no row fits */
};

struct diagnosis {
    /* What it is known by: parts that must all be in the text, joined by '&'; '|' between
     * alternatives. */
    const char *words;
    const char *stage;   /* "boot: guest kernel" */
    const char *meaning; /* one sentence */
    const char *remedy;  /* what to do next */
    enum diagnosis_kind kind;
    bool warned; /* it is told as a warning, too */
};

/* text: an error with all that was wrapped around it. NULL: none of the table's rows fits. Static.
 */
const struct diagnosis *diagnose(const char *text);
/* For what fits none: what can be said of a request by its name alone. NULL or unknown: less.
 * Never NULL. Static. */
const struct diagnosis *diagnose_operation(const char *operation);
