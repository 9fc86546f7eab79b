/* scratch_priv.h - between scratch.c and scratch_save.c. */
#pragma once
#include "host/files/scratch.h"

struct scratch {
    char *ns_dir, *dir, *path;
    int fd, lock;
    int making; /* readable when the last thread that failed or was given up has ended; -1: none */
    struct ledger *ledger;
    uint64_t record; /* 0: none */
};
