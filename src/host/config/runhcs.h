/* runhcs.h - hcsshim's runtime options (containerd.runhcs.v1.Options): a verdict for each field, as
 * annotations.h has one for each annotation. shim/bootstrap.c reads them. Pure. */
#pragma once

struct sbuf;

enum runhcs_verdict {
    RUNHCS_WORKS,
    RUNHCS_REFUSED,     /* an error if it is set */
    RUNHCS_MEANINGLESS, /* ignored; logged if it is set */
};
struct runhcs_option {
    const char *name;
    enum runhcs_verdict verdict;
    const char *doc; /* what it does, or why it is refused or ignored */
};
/* NULL: unknown. */
const struct runhcs_option *runhcs_option(const char *name);
void runhcs_print_markdown(struct sbuf *out);
