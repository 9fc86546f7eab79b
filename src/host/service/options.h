/* options.h - which types of runtime options may reach this runtime. Pure. */
#pragma once
struct err;

enum options_type {
    OPTIONS_NONE,    /* nothing in it for us */
    OPTIONS_RUNTIME, /* runtimeoptions.v1.Options */
    OPTIONS_RUNC,    /* clients send runc's options to every runtime */
    OPTIONS_RUNHCS,  /* hcsshim's */
};
/* By the type URL of an Any, with or without a prefix. ERR_INVALID names one that nobody sends to a
 * runtime as its options, and what is understood. */
int options_type(const char *type_url, enum options_type *ret, struct err *err);
