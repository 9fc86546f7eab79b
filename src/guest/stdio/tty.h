/* tty.h - the terminal of a process: a pseudo-terminal in the guest, relayed to the host's input
 * and output streams. Life: open -> attach (starts the relays) -> drain (the process has exited)
 * -> free. */
#pragma once
#include "base/mem.h"
#include <stdint.h>

struct ctx;
struct err;
struct loop;
struct tty;

/* Caller frees *ret with tty_free() and closes *ret_slave, the process's end. */
int tty_open(struct loop *loop, struct tty **ret, int *ret_slave, struct err *err);
/* The same with a terminal that crun opened. Takes master. */
struct tty *tty_adopt(struct loop *loop, int master);
/* Takes both sockets; -1 for one that was not asked for. Output that the host did not ask for is
 * read and dropped, so that the process never blocks on it. The caller must have closed its copy of
 * the slave, and the process must have its own. */
void tty_attach(struct tty *t, int in_fd, int out_fd);
/* The process has exited: stops the input, waits until the output was sent, the end of it was
 * signalled (SHUT_WR) and the host has closed its side. Bounded by the connection's life and by
 * ctx. */
int tty_drain(struct ctx *ctx, struct tty *t, struct err *err);
/* Success once the terminal is drained and closed. */
int tty_resize(struct tty *t, uint16_t rows, uint16_t cols, struct err *err);
/* Only when no relay runs: never attached, or drained. NULL is fine. */
void tty_free(struct tty *t);
AUTO_DEFINE(struct tty *, tty_free);
