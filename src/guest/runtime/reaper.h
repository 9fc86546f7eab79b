/* reaper.h - makes this process the parent of what its children leave behind, as a container
 * runtime that has ended leaves its containers, and reaps those whom nobody here knows. Whoever
 * waits for a process holds a pidfd on it: zombies without one are strangers. Silent while no child
 * ends. */
#pragma once

struct err;
struct loop;
struct reaper;

/* One per process. Caller frees, once the loop runs no more. */
int reaper_new(struct loop *loop, struct reaper **ret, struct err *err);
void reaper_free(struct reaper *r);
