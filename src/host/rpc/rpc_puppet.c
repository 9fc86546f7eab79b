/* rpc_puppet.c - for rpc_puppet_test.py: our server, or our client, as a process of its own.
 *     rpc_puppet serve ADDRESS      until stdin ends
 *     rpc_puppet forward ADDRESS    sends the exit event of the vectors, prints the outcome */
#include "api/events.pb-c.h"
#include "api/forward.pb-c.h"
#include "api/types.pb-c.h"
#include "host/rpc/rpc_client.h"
#include "host/rpc/rpc_sock.h"
#include "host/rpc/rpc_test.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *address;

/* For the assertions of rpc_test.h: this is no test program, but a part of one. */
_Noreturn void tap_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s:%d: ", file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    abort();
}

static void serve(void *arg)
{
    struct ctx root = ctx_root(arg), soon;
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(arg, &f);
    struct stream *in = stream_reopen(arg, 0, 0);
    struct err err = ERR_INIT;
    size_t n;
    char c;
    int fd;

    ASSERT_OK(rpc_sock_listen(address, &fd, &err), err);
    rpc_server_listen(s, fd);
    printf("ready\n");
    fflush(stdout);
    while (stream_read(&root, in, &c, 1, &n, &err) == 0 && n > 0)
        latch_set(&f.exited); /* any byte: what Wait waits for */
    soon = ctx_with_timeout(&root, NS_PER_S);
    ASSERT_OK(rpc_server_shutdown(&soon, s, &err), err);
    rpc_server_free(s);
    stream_free(in);
}

static void forward(void *arg)
{
    struct ctx root = ctx_root(arg), ctx = ctx_with_timeout(&root, 5 * NS_PER_S);
    AUTO(pb_free) Any *event = NULL;
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    Timestamp when = pb_time_of(UINT64_C(1700000000123456789));
    TaskExit exit = TASK_EXIT__INIT;
    Envelope envelope = ENVELOPE__INIT;
    ForwardRequest req = FORWARD_REQUEST__INIT;
    struct err err = ERR_INIT;

    exit.container_id = exit.id = "c1";
    exit.pid = 4343;
    exit.exit_status = 137;
    exit.exited_at = envelope.timestamp = &when;
    ASSERT_EQ(pb_set_any(&event, &exit), 0);
    envelope.namespace_ = "default";
    envelope.topic = "/tasks/exit";
    envelope.event = event;
    req.envelope = &envelope;
    ASSERT_OK(rpc_client_connect(&ctx, address, &c, &err), err);
    rpc_client_add_metadata(c, "containerd-namespace-ttrpc", "default");
    for (int i = 0; i < 2; i++) {
        err_clear(&err);
        (void)rpc_client_call(&ctx, c, "containerd.services.events.ttrpc.v1.Events", "Forward",
                              &req, NULL, NULL, &err);
        printf("%d %s\n", err.code, err.msg);
    }
}

int main(int argc, char **argv)
{
    struct loop *loop;

    if (argc != 3)
        return 2;
    address = argv[2];
    loop = loop_new(NULL);
    fiber_go(loop, str_eq(argv[1], "serve") ? serve : forward, loop, "main");
    (void)loop_run(loop);
    loop_free(loop);
    return 0;
}
