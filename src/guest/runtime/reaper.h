/* reaper.h - makes this process the parent of what its children leave behind, as a container
 * runtime that has ended leaves its containers, and reaps strangers: zombies without a pidfd in
 * this process, since code that waits for a process holds one. Does not poll. */
#pragma once

struct err;
struct loop;
struct reaper;

/* One per process. Caller frees, after the loop has ended. */
int reaper_new(struct loop *loop, struct reaper **ret, struct err *err);
void reaper_free(struct reaper *r);
