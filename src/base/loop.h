/* loop.h - the event loop of a process: ready fibers, timers, fds (epoll), signals. One thread.
 * With virtual_time it is the simulator's: no fds, the clock jumps to the next timer when nothing
 * is ready, and a seed decides which ready fiber runs next. Idle means blocked in epoll_wait. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct loop;
struct sbuf;
struct signalfd_siginfo;

struct loop_opts {
    bool virtual_time;
    uint64_t seed; /* 0: ready fibers run in order */
    bool by_name;  /* with a seed: the next one depends only on the names of the ready ones and on
                    * the time, so that what else has run before changes nothing */
};

/* opts may be NULL. NULL with errno: no file descriptor is left. Caller frees; fibers that are
 * still parked are dropped, so only after loop_run returned with nothing left that matters. */
struct loop *loop_new(const struct loop_opts *opts);
void loop_free(struct loop *loop);

/* Runs until loop_stop, or until no fiber is left. Returns the number of fibers still parked:
 * in virtual time it returns at once when nothing can wake them any more (a hang). */
size_t loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

/* Releases memory that is kept for reuse: free heap, stacks of ended fibers. For idle times. */
void loop_trim(struct loop *loop);

uint64_t loop_now(const struct loop *loop);  /* monotonic; virtual in the simulator */
uint64_t loop_wall(const struct loop *loop); /* since 1970 */
void loop_rand(struct loop *loop, void *data, size_t len);
bool loop_is_virtual(const struct loop *loop);

/* fn runs on the loop, outside any fiber: it may wake and spawn, not wait. One handler a signal.
 * The signal is blocked for the whole process; child_spawn undoes that for children. */
int loop_on_signal(struct loop *loop, int signo,
                   void (*fn)(void *arg, const struct signalfd_siginfo *info), void *arg);

/* Waits until fd is ready for events (POLLIN, POLLOUT), has an error or a hang-up. An fd that
 * epoll refuses (a plain file) is always ready. For listeners, pidfds and the like; streams
 * keep their fd registered instead. */
int loop_wait_fd(struct ctx *ctx, int fd, short events, const char *why, struct err *err);

/* Changes of an fd that reports each of them to the first look only (mountinfo): it stays
 * registered from new to free, so none is lost between two waits. new takes fd, and fails with -1.
 */
struct loop_changes;
int loop_changes_new(struct loop *loop, int fd, struct loop_changes **ret, struct err *err);
/* 0: something changed since the last wait, or since new. */
int loop_changes_wait(struct ctx *ctx, struct loop_changes *c, const char *why, struct err *err);
void loop_changes_free(struct loop_changes *c);

/* Until no other fiber can run, and one has run since the last call: then all others wait. */
int loop_wait_idle(struct ctx *ctx, const char *why, struct err *err);
/* Each fiber but the current one, oldest first, until fn returns false. why: what it waits for;
 * NULL: it is ready to run. */
void loop_each_fiber(const struct loop *loop,
                     bool (*fn)(void *arg, const char *name, const char *why), void *arg);
/* For a program that continues another one: while held, no fiber reads from a stream, writes to it,
 * or accepts a connection. Each waits where it would. Signals are not read, and children not
 * reaped.
 */
void loop_hold_io(struct loop *loop, bool held);
/* For what does so beside the streams. Waits only while that is held. */
int loop_io(struct ctx *ctx, const char *why, struct err *err);
/* For the simulation of a program that is replaced: frees fibers where they wait, without running
 * them; what they own is lost. In virtual time only. */
void loop_drop_fibers(struct loop *loop, bool (*pick)(void *arg, const char *name), void *arg);
/* All fibers, oldest first: name, age, what it waits for and since when. */
void loop_dump(const struct loop *loop, struct sbuf *out);
