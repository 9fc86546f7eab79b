/* link_test.c - dialling over real TCP on the loopback device, and over vsock where the kernel has
 * a loopback for it, with a boot block of our own. */
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "guest/bridge/link.h"
#include "harness/tap.h"
#include "proto/link.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct link_boot block;
static unsigned reads;

static int read_block(void *arg, void *buf, size_t len, struct err *err)
{
    reads++;
    if (len != LINK_BOOT_BYTES)
        return err_set(err, ERR_INVALID, "length %zu", len);
    link_boot_encode(&block, buf);
    return 0;
}

static int read_damaged(void *arg, void *buf, size_t len, struct err *err)
{
    memset(buf, 0x55, len);
    return 0;
}

static int listen_on_loopback(uint16_t *ret_port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 8) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        tap_skip("no loopback device: %m");
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static struct link *make(link_read_boot *boot, uint16_t port)
{
    return link_new(&(struct link_opts){ .transport = LINK_TCP,
                                         .read_boot = boot,
                                         .host_addr = INADDR_LOOPBACK,
                                         .host_port = port,
                                         .no_seed = true });
}

TEST_FIBER(a_connection_begins_with_token_and_port)
{
    uint16_t port;
    AUTO_FD int listener = listen_on_loopback(&port);
    AUTO(link_free) struct link *l = make(read_block, port);
    uint8_t raw[LINK_PREFACE_BYTES];
    struct link_preface preface;
    struct err err = ERR_INIT;

    reads = 0;
    for (int i = 0; i < 2; i++) {
        AUTO_FD int fd = -1;
        memset(block.token, 0xa0 + i, sizeof(block.token)); /* a clone's second token */
        ASSERT_OK(dialer_dial(ctx, link_dialer(l), 0x40000007, &fd, &err), err);
        ASSERT_OK(loop_wait_fd(ctx, listener, POLLIN, "connection", &err), err);
        AUTO_FD int host = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        ASSERT_EQ(fd_read_full(host, raw, sizeof(raw)), LINK_PREFACE_BYTES);
        ASSERT_EQ(link_preface_decode(raw, &preface), 0);
        ASSERT_EQ(preface.port, 0x40000007);
        ASSERT(link_token_equal(preface.token, block.token));
        ASSERT_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, 0); /* it may become a stdin */
    }
    ASSERT_EQ(reads, 4); /* twice before each dial */
}

TEST_FIBER(a_template_opens_no_socket)
{
    AUTO(link_free) struct link *l = make(read_block, 1);
    struct err err = ERR_INIT;
    int before = dup(0), fd = -1;

    close(before);
    memset(block.token, 0, sizeof(block.token));
    ASSERT_FAIL(dialer_dial(ctx, link_dialer(l), 1, &fd, &err), err, ERR_UNAVAILABLE);
    ASSERT_MSG_HAS(err.msg, "no token yet");
    int after = dup(0);
    close(after);
    ASSERT_EQ(after, before);
}

TEST_VIRTUAL(a_template_waits_until_it_has_a_token)
{
    AUTO(link_free) struct link *l = make(read_block, 1);
    struct ctx brief = ctx_with_timeout(ctx, 1000 * 1000 * 1000);
    struct err err = ERR_INIT;

    reads = 0;
    memset(block.token, 0, sizeof(block.token));
    ASSERT_FAIL(link_await_token(&brief, l, &err), err, ERR_DEADLINE);
    ASSERT(reads >= 2 * 190 && reads <= 2 * 210); /* twice each 5 ms */
    block.token[5] = 1;
    err_clear(&err);
    ASSERT_OK(link_await_token(ctx, l, &err), err);
}

static void count_clone(void *arg)
{
    ++*(unsigned *)arg;
}

/* The template's builder has logged its lines; only the clone that proves the template sends them
 * again. */
TEST_VIRTUAL(a_clone_forgets_its_templates_log_and_the_one_that_proves_it_does_not)
{
    for (unsigned repeat = 0; repeat < 2; repeat++) {
        unsigned forgot = 0;
        AUTO(link_free)
        struct link *l = link_new(&(struct link_opts){ .transport = LINK_TCP,
                                                       .read_boot = read_block,
                                                       .no_seed = true,
                                                       .on_clone = count_clone,
                                                       .arg = &forgot });
        struct ctx brief = ctx_with_timeout(ctx, 1000 * 1000 * 1000);
        struct err err = ERR_INIT;

        block = (struct link_boot){ 0 };
        ASSERT_FAIL(link_await_token(&brief, l, &err), err, ERR_DEADLINE);
        ASSERT_EQ(forgot, 0);
        block.token[5] = 1;
        block.repeat = (uint8_t)repeat;
        err_clear(&err);
        ASSERT_OK(link_await_token(ctx, l, &err), err);
        ASSERT_EQ(forgot, repeat ? 0 : 1);
    }
    /* A VM that boots cold has no lines to forget. */
    unsigned forgot = 0;
    AUTO(link_free)
    struct link *l = link_new(&(struct link_opts){ .transport = LINK_TCP,
                                                   .read_boot = read_block,
                                                   .no_seed = true,
                                                   .on_clone = count_clone,
                                                   .arg = &forgot });
    struct err err = ERR_INIT;

    block = (struct link_boot){ .token = { 7 } };
    ASSERT_OK(link_await_token(ctx, l, &err), err);
    ASSERT_EQ(forgot, 0);
}

TEST_FIBER(a_damaged_block_is_named)
{
    AUTO(link_free) struct link *l = make(read_damaged, 1);
    struct err err = ERR_INIT;
    int fd = -1;

    ASSERT_FAIL(dialer_dial(ctx, link_dialer(l), 1, &fd, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, LINK_BOOT_FILE);
    ASSERT_FAIL(link_await_token(ctx, l, &err), err, ERR_INVALID);
}

TEST_FIBER(a_host_that_does_not_listen_is_an_error_at_once)
{
    uint16_t port;
    int listener = listen_on_loopback(&port);
    AUTO(link_free) struct link *l = make(read_block, port);
    struct err err = ERR_INIT;
    int fd = -1;

    close(listener);
    block.token[0] = 1;
    ASSERT_FAIL(dialer_dial(ctx, link_dialer(l), 109, &fd, &err), err, ERR_UNAVAILABLE);
    ASSERT_MSG_HAS(err.msg, "port 109");
}

/* --- vsock --- */

static int read_nothing(void *arg, void *buf, size_t len, struct err *err)
{
    return err_set(err, ERR_UNAVAILABLE, "no fw_cfg device: this is not a QEMU machine");
}

static struct link *make_vsock(link_read_boot *boot)
{
    return link_new(&(struct link_opts){ .transport = LINK_VSOCK,
                                         .read_boot = boot,
                                         .host_addr = VMADDR_CID_LOCAL,
                                         .no_seed = true });
}

/* Only where it cannot leave this machine, which may be a VM itself. */
static int listen_on_vsock(uint32_t *ret_port)
{
    struct sockaddr_vm a = { .svm_family = AF_VSOCK,
                             .svm_cid = VMADDR_CID_LOCAL,
                             .svm_port = VMADDR_PORT_ANY };
    socklen_t len = sizeof(a);

    if (access("/sys/module/vsock_loopback", F_OK) < 0)
        tap_skip("no loopback for vsock: modprobe vsock_loopback");
    int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 8) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        tap_skip("no vsock: %m");
    *ret_port = a.svm_port;
    return fd;
}

TEST_FIBER(over_vsock_one_port_of_the_host_takes_all_connections_with_a_preface)
{
    uint32_t port = 0;
    AUTO_FD int listener = listen_on_vsock(&port), fd = -1;
    AUTO(link_free) struct link *l = make_vsock(read_block);
    uint8_t raw[LINK_PREFACE_BYTES];
    struct link_preface preface;
    struct err err = ERR_INIT;

    block = (struct link_boot){ .token = { 9 }, .vsock_port = port };
    ASSERT_OK(link_await_token(ctx, l, &err), err);
    ASSERT(!link_is_foreign(l));
    ASSERT_OK(dialer_dial(ctx, link_dialer(l), 0x40000007, &fd, &err), err);
    ASSERT_OK(loop_wait_fd(ctx, listener, POLLIN, "connection", &err), err);
    AUTO_FD int host = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ASSERT_EQ(fd_read_full(host, raw, sizeof(raw)), LINK_PREFACE_BYTES);
    ASSERT_EQ(link_preface_decode(raw, &preface), 0);
    ASSERT_EQ(preface.port, 0x40000007);
    ASSERT(link_token_equal(preface.token, block.token));
}

TEST_FIBER(a_vsock_host_without_a_boot_block_gets_plain_connections_to_its_ports)
{
    uint32_t port = 0;
    AUTO_FD int listener = listen_on_vsock(&port), fd = -1;
    AUTO(link_free) struct link *l = make_vsock(read_nothing);
    struct err err = ERR_INIT;
    char byte;

    ASSERT_OK(dialer_dial(ctx, link_dialer(l), port, &fd, &err), err);
    ASSERT_OK(loop_wait_fd(ctx, listener, POLLIN, "connection", &err), err);
    AUTO_FD int host = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ASSERT_EQ(write(fd, "x", 1), 1);
    ASSERT_EQ(read(host, &byte, 1), 1);
    ASSERT_EQ(byte, 'x');
}

TEST_VIRTUAL(over_vsock_a_template_waits_and_a_foreign_host_is_not_waited_for)
{
    AUTO(link_free) struct link *ours = make_vsock(read_block), *foreign = make_vsock(read_nothing);
    struct ctx brief = ctx_with_timeout(ctx, 1000 * 1000 * 1000);
    struct err err = ERR_INIT;

    block = (struct link_boot){ 0 };
    ASSERT_FAIL(link_await_token(&brief, ours, &err), err, ERR_DEADLINE);
    ASSERT(!link_is_foreign(ours));
    block.token[5] = 1;
    err_clear(&err);
    ASSERT_OK(link_await_token(ctx, ours, &err), err);
    ASSERT_OK(link_await_token(ctx, foreign, &err), err);
    ASSERT(link_is_foreign(foreign));
}
