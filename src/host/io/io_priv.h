/* io_priv.h - what the files of io share. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/str.h"
#include "host/io/io.h"
#include <sys/ioctl.h>

#define IO_NAME_SHOWN 200 /* bytes of a client's string in a message, so that the reason fits */

/* --- io_path.c: the strings of a request --- */

extern const char *const io_names[3]; /* "stdin" … */

enum io_kind {
    IO_NONE,
    IO_PATH, /* plain: a FIFO or a file that exists */
    IO_FIFO,
    IO_FILE,    /* file://: created if missing */
    IO_BINARY,  /* a log driver; ready when it writes to or closes fd 5 */
    IO_BINARY2, /* a log driver; ready only when it writes to fd 5 */
    IO_STREAM,  /* a client's stream to this shim */
};
struct io_form {
    enum io_kind kind;
    char *path;
    struct strv args; /* of a log driver: key, value, key, value …; of a stream: its id */
};
/* ERR_INVALID, or ERR_UNIMPLEMENTED for streams other than ttrpc+unix. Caller releases. */
int io_form_parse(const char *text, struct io_form *ret, struct err *err);
void io_form_release(struct io_form *f);
static inline bool io_form_is_driver(const struct io_form *f)
{
    return f->kind == IO_BINARY || f->kind == IO_BINARY2;
}

/* One of 0, 1, 2. */
struct io_opened {
    int fd;      /* to read from (0) or write to; -1: not a path */
    int held;    /* a FIFO's other end; -1 */
    bool shared; /* 2 is the same file as 1 and was not opened again */
};
/* Waits. On failure nothing is open. */
int io_paths_open(struct ctx *ctx, const struct io_form forms[3], struct io_opened ret[3],
                  struct err *err);

/* Opens a descriptor's file again (O_PATH is enough). -errno. */
int io_reopen(int fd, int flags);
/* For files, which may block: takes the file; *ret is our end of a pipe to it (input: from it). */
int io_pump_start(struct io *io, int which, int file_fd, int *ret, struct err *err);
/* Between a file and a pipe. Bytes are in one of them whenever its fiber waits for the pipe. */
struct io_pump {
    struct io *io; /* the fiber's */
    int which;
    int from, to;   /* the thread's, while one runs */
    bool last;      /* copies until the end */
    bool in_thread; /* set by it */
    bool ended;
    uint64_t lost;
    int failed; /* errno of the first failure */
};
void io_pump_go(struct io_pump *p);

/* --- io.c --- */

/* The side of a relay that faces containerd. */
struct io_end {
    struct stream *stream; /* NULL: none */
    int held;              /* FIFO: its other end; -1 */
    struct io_port *port;  /* of a client's stream, until io_free */
};
struct relay {
    struct io *io;
    int which; /* 0, 1, 2 */
    struct io_end up;
    struct stream *guest;
    struct sbuf pending; /* read and not written yet; empty when spliced */
    bool running;
    bool dropping; /* it could not be delivered: reads and drops the rest */
    uint64_t dropped;
};
void io_relay_go(struct relay *r);

/* A FIFO of an ended output that is not empty; see io.c. */
struct io_leftover {
    struct io *io;
    int read_end, write_end; /* one of them, -1 the other */
    int watch;               /* inotify */
};
void io_leftover_go(struct io_leftover *l);
struct io {
    struct loop *loop;
    unsigned refs; /* the owner's, and one for each fiber */
    char *id;
    struct cancel cut;                 /* io_close: ends relays */
    struct cancel over;                /* a drain took too long; below cut */
    struct cancel gone;                /* io_free: ends the rest */
    struct ctx root, rest, life, flow; /* each with its cancel: none, gone, cut, over */
    struct relay relays[3];
    struct io_driver *drivers[2];
    struct io_pump *pumps[3];
    unsigned outputs; /* relays and pumps that have not ended */
    struct waitq outputs_q;
    struct io_leftover *leftovers[2];
    uint64_t lost;
    bool attached, closed;
};
struct io *io_new(struct loop *loop, const struct io_spec *spec);
struct io *io_ref(struct io *io);
void io_unref(struct io *io);
void io_output_ended(struct io *io);
/* Bytes that have arrived and were not read. */
static inline uint64_t io_unread(int fd)
{
    int n = 0;

    return fd >= 0 && ioctl(fd, FIONREAD, &n) == 0 && n > 0 ? (uint64_t)n : 0;
}

/* --- io_hub.c: the process's side of a port --- */

struct io_port {
    struct list node; /* of the hub, until its process has exited */
    struct io_hub *hub;
    unsigned refs; /* the process', the clients' */
    char *id;
    bool input, opened;
    int fd; /* the clients' end; -1: not open yet, or closed to new clients */
    struct io_client *client;
    struct waitq left; /* woken when the client has left */
};
/* The port of that id, which is made if there is none. The caller adds a reference. */
struct io_port *io_port_of(struct io_hub *h, const char *id);
/* One that no process and no further client finds. */
struct io_port *io_port_new(struct io_hub *h, const char *id);

/* ret_fd: the process's end. ERR_INVALID: another server's socket. ERR_EXISTS: a process has it. */
int io_port_open(struct io_hub *h, const struct io_form *form, bool input, struct io_port **ret,
                 int *ret_fd, struct err *err);
/* For input: it ends when the current client has left. */
void io_port_shut(struct io_port *p);
/* For output: waits until the current client has left. */
int io_port_await(struct ctx *ctx, struct io_port *p, struct err *err);
/* The process has exited. The current client gets the rest; without a client it counts as lost. */
void io_port_close(struct io_port *p, uint64_t *ret_lost);

/* --- io_driver.c: log drivers --- */

struct io_driver {
    struct loop *loop;
    char *name;
    struct child *child;
    const struct io_times *times;
    struct ledger *ledger;
    uint64_t record;         /* 0: none */
    bool ending;             /* end_fiber owns it */
    struct io_driver **slot; /* the owner's pointer to this object; NULL without an owner */
    struct fibers *counted;
};
struct io_driver *io_driver_new(struct loop *loop, const struct io_spec *spec);

/* Waits for readiness. ret_fds: pipes to its fds 3 and 4. */
int io_driver_start(struct ctx *ctx, const struct io_form *form, const struct io_spec *spec,
                    struct io_driver **ret, int ret_fds[2], struct err *err);
/* After its pipes were closed: gives the driver time to finish, then sends SIGTERM, then SIGKILL.
 * Never waits. *slot becomes NULL when it has exited. */
void io_driver_end(struct io_driver **slot);
/* The owner gives up a driver that is ending: it is killed unless it is counted. */
void io_driver_drop(struct io_driver **slot);
