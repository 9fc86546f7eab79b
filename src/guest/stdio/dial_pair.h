/* dial_pair.h - for tests: a dialer whose connections are socketpairs. The test is the host: it
 * takes the other end of each by its port, or refuses. */
#pragma once
#include "guest/stdio/dial.h"
#include <stdbool.h>
#include <stddef.h>

#define DIAL_PAIR_MAX 4096

struct dial_pair;

struct dial_pair *dial_pair_new(void);
/* Closes what nobody took. */
void dial_pair_free(struct dial_pair *p);
struct dialer *dial_pair_dialer(struct dial_pair *p); /* borrows */
/* The next dials fail with this errno, so many of them; -1: all. */
void dial_pair_refuse(struct dial_pair *p, int errnum, int times);
/* Waits until the guest has dialled the port; gives the oldest such connection. Blocking fd. */
int dial_pair_accept(struct ctx *ctx, struct dial_pair *p, uint32_t port, int *ret_fd,
                     struct err *err);
/* Dials so far, refused ones too. */
size_t dial_pair_count(const struct dial_pair *p);
/* How many connections nobody has taken yet. */
size_t dial_pair_waiting(const struct dial_pair *p);
