/* fd.h - file descriptors and small files. Every fd is CLOEXEC from birth. Leaf code: 0 or more,
 * or -errno. The file functions block in the kernel: only for paths that we made ourselves
 * (/proc, /sys, /run/lcow); what came from a client goes through base/offload. */
#pragma once
#include "base/mem.h"
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

void fd_close(int fd); /* -1 is fine; keeps errno */
void fd_close_auto(int *fd);
#define AUTO_FD __attribute__((cleanup(fd_close_auto)))
#define TAKE_FD(fd)                                                                                \
    ({                                                                                             \
        int take_fd_ = (fd);                                                                       \
        (fd) = -1;                                                                                 \
        take_fd_;                                                                                  \
    })

/* For a client's file: close() waits for the file's server, without limit for a dead NFS, and the
 * last close of a detached tree unmounts it. Another thread closes it. The caller waits 20 ms at
 * most, so a file whose server answers is closed on return, any other file later. */
void fd_close_later(int fd); /* -1 is fine; keeps errno */
void fd_close_later_auto(int *fd);
#define AUTO_FD_LATER __attribute__((cleanup(fd_close_later_auto)))
/* Threads that still wait for a close(). */
unsigned fd_closing(void);
/* For the exit of a process that has or may have such threads: the kernel closes the other fds only
 * after them. Closes sockets, pipes and files below dir, from 3 on. */
void fd_close_ours(const char *dir);

int fd_nonblock(int fd);
/* Which of events (POLLIN, POLLOUT), POLLERR and POLLHUP hold at this moment. Never waits. */
int fd_ready_now(int fd, short events);
/* Writes or reads all of it on a blocking fd. fd_read_full: bytes read, less only at EOF. */
int fd_write_full(int fd, const void *data, size_t len);
ssize_t fd_read_full(int fd, void *data, size_t len);
/* Sends one byte with a descriptor. */
int fd_send(int sock, int fd);
/* The descriptor that comes with the next message, CLOEXEC; caller closes. -ENOMSG: it has none;
 * -EMSGSIZE: more than one. */
int fd_recv(int sock);

/* Caller frees *ret_text, NUL-terminated behind *ret_len. -EFBIG beyond max. */
int file_read_all(const char *path, size_t max, char **ret_text, size_t *ret_len);
/* The same with an error: "read PATH: …". */
int file_load(const char *path, size_t max, char **ret_text, struct err *err);
/* The same without a reason: NULL on failure. Caller frees. */
char *file_text(size_t max, const char *path_fmt, ...) __attribute__((format(printf, 2, 3)));
/* Plain write: O_WRONLY|O_CREAT|O_TRUNC. */
int file_write(const char *path, const void *data, size_t len, mode_t mode);
/* Into a file that must exist: an attribute of the kernel. */
int file_put(const char *path, const char *text);
/* Temporary file beside it, fsync, rename: whole or not at all. */
int file_replace(const char *path, const void *data, size_t len, mode_t mode);
/* All missing parents too; existing directories are fine. */
int dir_make(const char *path, mode_t mode);
/* The same with an error: "make PATH: …". */
int dir_need(const char *path, mode_t mode, struct err *err);
/* Removes a tree without following symlinks and without crossing into another mount
 * (-EBUSY then). A missing path is fine. */
int dir_remove(const char *path);
/* Also what is marked immutable or append-only (chattr +i, +a): for a tree in which a container
 * with the right to do so has written. */
int dir_remove_marked(const char *path);
AUTO_DEFINE(DIR *, closedir);
