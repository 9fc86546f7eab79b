/* follow.h - which mounts of the host lie below a directory, from one look at the table of mounts
 * to the next. A mount is known by its id, its parent's, its file system and its place together:
 * the kernel reuses ids, but not the device of a file system that is still shown somewhere. Pure.
 */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mountinfo_list;

#define FOLLOW_MAX 1024 /* mounts below one directory */

struct follow {
    char *source;   /* owned: the directory's real path */
    uint64_t mount; /* the id of the mount that it is in */
    bool late;      /* only what is mounted after the first look */
    char *base;     /* owned: the file system of that mount, from the first look on */
    struct follow_mount {
        uint64_t id, parent;
        char *what;    /* "DEVICE ROOT", owned */
        char *point;   /* owned */
        bool shown;    /* the caller's; until then it is new */
        bool left_out; /* for good: `late`, or the caller has given it up */
        bool there;
    } * v; /* each after the one that it is mounted on */
    size_t n, cap;
    size_t too_many; /* of the last look: those above FOLLOW_MAX */
};
void follow_release(struct follow *f);
AUTO_VALUE(struct follow, follow_release);
/* A look: mounts that are gone have there == false, new ones are neither shown nor left out. */
void follow_look(struct follow *f, const struct mountinfo_list *table);
/* Forgets those that are gone. */
void follow_sweep(struct follow *f);
/* The place of a mount below the source: "/a/b", or "" if it is mounted on the source itself. */
const char *follow_below(const struct follow *f, const struct follow_mount *m);
