/* diagnosis.h - from the words of a failure to the stage at which it happened and what to do about
 * it. A table: a new kind of failure is a new row and a line in its test. Never waits. */
#pragma once

struct diagnosis {
    const char *stage;   /* "boot: guest kernel" */
    const char *meaning; /* one sentence */
    const char *remedy;  /* what to do next */
};

/* text: an error with all that was wrapped around it. NULL: none of the table's rows fits. Static.
 */
const struct diagnosis *diagnose(const char *text);
/* For what fits none. */
extern const struct diagnosis diagnosis_unknown;
