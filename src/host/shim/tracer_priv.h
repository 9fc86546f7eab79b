/* tracer_priv.h - the settings of the tracer, for tracer*.c and its test. */
#pragma once
#include "base/str.h"
#include "host/shim/tracer.h"

struct tracer_settings {
    char *host, *port, *path; /* host NULL: tracing is off */
    char *headers;            /* "Name: value\r\n"…; may hold secrets */
    char *service;
    double share; /* span_sink's */
    bool ignore_parent;
};
/* By the configuration's endpoint, else by the environment. */
int tracer_settings(const char *endpoint, const char *(*env)(const char *name),
                    struct tracer_settings *ret, struct err *err);
void tracer_settings_release(struct tracer_settings *s);
AUTO_VALUE(struct tracer_settings, tracer_settings_release);
