/* search.h - one of many things by the beginning of its id: "[NAMESPACE/]ID". A whole id is
 * preferred to those that only begin with it. Life: init -> offer … -> end. Never waits. */
#pragma once
#include "base/str.h"

struct err;

struct search {
    const char *word; /* what was given; borrowed */
    char *ns;         /* of it; NULL: any */
    const char *id;   /* the beginning of one, in word */
    size_t n;         /* how many match */
    bool exact;
    struct sbuf matches;
    struct strv all;
};

void search_init(struct search *s, const char *word);
/* true: it matches, and is to be remembered in place of the one before. */
bool search_offer(struct search *s, const char *ns, const char *id);
/* Releases s. -1 unless exactly one matched: ERR_INVALID names those that did, ERR_NOT_FOUND is
 * `none` and the word, the nearest behind `but`, and what to `see`. */
int search_end(struct search *s, const char *none, const char *but, const char *see,
               struct err *err);
