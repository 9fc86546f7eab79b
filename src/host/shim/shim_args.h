/* shim_args.h - the shim's command line, by the rules of Go's flag package: -x v, -x=v, --x;
 * booleans -x or -x=true; the first word that is no flag is the action. Never waits. */
#pragma once
#include <stdbool.h>

struct err;

struct shim_args {
    const char *ns, *id, *address, *publish_binary, *bundle, *socket, *debug_socket; /* or "" */
    bool debug, info, version;
    const char *action; /* "" if none */
};

/* Borrows argv. ERR_INVALID names the flag. */
int shim_args_parse(char **argv, struct shim_args *ret, struct err *err);
/* What start, serve and delete need: a namespace and an id that are names. */
int shim_args_check(const struct shim_args *a, struct err *err);
