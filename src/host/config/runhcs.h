/* runhcs.h - hcsshim's runtime options (containerd.runhcs.v1.Options): a verdict for each field, as
 * annotations.h has one for each annotation. Who reads them: shim/bootstrap.c. Pure. */
#pragma once

struct sbuf;

enum runhcs_verdict {
    RUNHCS_WORKS,
    RUNHCS_REFUSED,     /* if it is set */
    RUNHCS_MEANINGLESS, /* here; logged if it is set */
};
struct runhcs_option {
    const char *name;
    enum runhcs_verdict verdict;
    const char *doc; /* or why not */
};
/* NULL: unknown. */
const struct runhcs_option *runhcs_option(const char *name);
void runhcs_print_markdown(struct sbuf *out);
