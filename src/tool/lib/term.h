/* term.h - the user's terminal: raw mode that is undone on every way out, also when the program
 * crashes; window size; a line of progress. Never waits. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cancel;
struct loop;

/* Raw mode on fd 0. There is one terminal, so there is one state. 0 or -errno. */
int term_raw(void);
void term_restore(void); /* repeatable; safe in a signal handler */
/* The size of fd 0, 1 or 2, whichever is a terminal. false: none is. */
bool term_size(uint16_t *ret_rows, uint16_t *ret_cols);
/* True if colours and cursor movements may be written to fd. */
bool term_is(int fd);
/* True if reading fd 0 would stop this process, because it is a background job of that terminal. */
bool term_in_background(void);

/* SIGINT, SIGTERM and SIGHUP fire c as long as the loop runs. */
void term_cancel_by_signals(struct loop *loop, struct cancel *c);

/* One line on stderr that is redrawn while something takes long; silent without a terminal. */
struct spinner;
struct spinner *spinner_new(struct loop *loop);
/* text: borrowed, must stay until the next call. Redraws at once. */
void spinner_say(struct spinner *s, const char *text);
/* Wipes the line and frees it. NULL is fine. */
void spinner_free(struct spinner *s);
