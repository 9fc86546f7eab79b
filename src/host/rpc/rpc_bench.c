/* rpc_bench.c - prints, as JSON, what the server costs: the round trip of an empty unary call over
 * a unix socket, the same on the server's side alone, and the memory of idle connections. A
 * server process and a client process, because that is how it is used. */
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/rpc/rpc_server.h"
#include "proto/ttrpc.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 20000
#define IDLE 500

struct self {
    int unused;
};

static int connect_handler(struct ctx *ctx, struct self *self, const ConnectRequest *req,
                           ConnectResponse *resp, struct err *err)
{
    (void)ctx, (void)self, (void)req, (void)err;
    resp->shim_pid = 1;
    return 0;
}

static const struct rpc_method methods[] = {
    RPC_UNARY("Connect", connect_handler, struct self, ConnectRequest, ConnectResponse),
};
static const struct rpc_service service = { &task__descriptor, methods, 1 };

/* Private memory in KiB: what the process costs that no other shares. */
static long private_kib(pid_t pid)
{
    AUTO_FREE char *path = str_format("/proc/%d/smaps_rollup", (int)pid), *text = NULL;
    size_t len;
    const char *at;

    if (file_read_all(path, 65536, &text, &len) < 0 || !(at = strstr(text, "Private_Dirty:")))
        return 0;
    return strtol(at + strlen("Private_Dirty:"), NULL, 10);
}

static void serve(const int *fds, size_t n)
{
    struct loop *loop = loop_new(NULL);
    struct rpc_server *s = rpc_server_new(loop);

    rpc_server_add(s, "containerd.task.v2.Task", &service, NULL);
    for (size_t i = 0; i < n; i++)
        rpc_server_serve(s, stream_from_fd(loop, fds[i]));
    (void)loop_run(loop);
    rpc_server_free(s);
    loop_free(loop);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* One Connect on a blocking socket. */
static uint64_t round_trip(int fd, uint32_t id)
{
    struct sbuf body = { 0 };
    uint8_t out[256], in[256];
    struct ttrpc_frame f = { .stream = id, .type = TTRPC_REQUEST };
    uint64_t start;

    ttrpc_put_request(&body,
                      &(struct ttrpc_request){ .service = pb_slice_of("containerd.task.v2.Task"),
                                               .method = pb_slice_of("Connect"),
                                               .payload = pb_slice_of("\x0a\x02"
                                                                      "c1") });
    f.body = (struct pb_slice){ (uint8_t *)body.data, body.len };

    ssize_t n = ttrpc_frame_encode(&f, out, sizeof(out));

    start = clock_mono();
    if (fd_write_full(fd, out, (size_t)n) < 0 || fd_read_full(fd, in, TTRPC_HEADER_BYTES) < 0 ||
        fd_read_full(fd, in, in[3]) < 0)
        abort();
    sbuf_release(&body);
    return clock_mono() - start;
}

static pid_t start_server(size_t n, int *clients)
{
    int *servers = mem_alloc(n * sizeof(int)), pair[2];
    pid_t pid;

    for (size_t i = 0; i < n; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
            abort();
        clients[i] = pair[0];
        servers[i] = pair[1];
    }
    pid = fork();
    if (pid == 0) {
        for (size_t i = 0; i < n; i++)
            close(clients[i]);
        serve(servers, n);
        _exit(0);
    }
    for (size_t i = 0; i < n; i++)
        close(servers[i]);
    free(servers);
    return pid;
}

/* Private memory of a server with n connections, each of which has made two calls. */
static long server_kib(size_t n)
{
    int *clients = mem_alloc(n * sizeof(int));
    pid_t pid = start_server(n, clients);

    for (size_t i = 0; i < n; i++) {
        (void)round_trip(clients[i], 1);
        (void)round_trip(clients[i], 3);
    }

    long kib = private_kib(pid);

    for (size_t i = 0; i < n; i++)
        close(clients[i]);
    waitpid(pid, NULL, 0);
    free(clients);
    return kib;
}

int main(void)
{
    static uint64_t times[ROUNDS];
    struct rlimit files = { 4 * IDLE, 4 * IDLE };
    struct rusage usage;
    int fd;

    (void)setrlimit(RLIMIT_NOFILE, &files);

    pid_t pid = start_server(1, &fd);

    for (uint32_t i = 0; i < ROUNDS; i++)
        times[i] = round_trip(fd, 2 * i + 1);
    close(fd);
    if (wait4(pid, NULL, 0, &usage) < 0)
        return 1;
    qsort(times, ROUNDS, sizeof(times[0]), compare);

    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    long one = server_kib(1), many = server_kib(IDLE + 1);

    printf("{\"unary_round_trip_us\": {\"median\": %.1f, \"p99\": %.1f}, "
           "\"server_cpu_per_call_us\": %.1f, \"idle_connection_bytes\": %ld, "
           "\"server_private_kib\": %ld}\n",
           (double)times[ROUNDS / 2] / 1e3, (double)times[ROUNDS * 99 / 100] / 1e3, cpu / ROUNDS,
           (many - one) * 1024 / IDLE, one);
    return 0;
}
