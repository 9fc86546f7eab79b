/* clock_step.h - detects that the host's wall clock was set, by a program or after suspend. */
#pragma once

struct ctx;
struct err;

/* An fd that is ready once the clock was set after this call; caller closes. -1 with err. */
int clock_step_open(struct err *err);
/* Waits until the clock was set; ready for the next time afterwards. */
int clock_step_wait(struct ctx *ctx, int fd, struct err *err);
