/* net_forward.c - one listener for every TCP port of a namespace (docs/decisions/0012). A BPF
 * program of type sk_lookup is asked by the kernel which socket a connection is for that comes to
 * an address of the namespace; it answers "this one", whatever the port. Program, map and
 * attachment live by a descriptor of ours: nothing is on record, and nothing can stay. */
#include "host/net/net_priv.h"

#include "base/loop.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BACKLOG 64

static int bpf(enum bpf_cmd cmd, union bpf_attr *attr)
{
    int fd = (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr));

    if (fd >= 0 && cmd != BPF_MAP_UPDATE_ELEM) /* already CLOEXEC; said again for the reader */
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* A map with the one socket in it. fd or -errno. */
static int make_map(int listener)
{
    union bpf_attr make = {
        .map_type = BPF_MAP_TYPE_SOCKMAP, .key_size = 4, .value_size = 8, .max_entries = 1
    };
    AUTO_FD int map = bpf(BPF_MAP_CREATE, &make);
    uint32_t key = 0;
    uint64_t value = (uint64_t)listener;
    union bpf_attr put = { .map_fd = (uint32_t)map,
                           .key = (uint64_t)(uintptr_t)&key,
                           .value = (uint64_t)(uintptr_t)&value };

    if (map < 0)
        return map;
    int r = bpf(BPF_MAP_UPDATE_ELEM, &put);
    return r < 0 ? r : TAKE_FD(map);
}

#define INSN(c, d, s, o, i)                                                                        \
    {                                                                                              \
        .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)                        \
    }
#define PASS_AT 17 /* the instruction "return SK_PASS" */

/* fd or -errno. */
static int make_program(int map)
{
    const struct bpf_insn code[] = {
        /* 0 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0, 0),
        /* 1: of TCP only */
        INSN(BPF_LDX | BPF_MEM | BPF_W, 2, 6, offsetof(struct bpf_sk_lookup, protocol), 0),
        /* 2 */ INSN(BPF_JMP | BPF_JNE | BPF_K, 2, 0, PASS_AT - 3, IPPROTO_TCP),
        /* 3: the socket at place 0 of the map */
        INSN(BPF_ST | BPF_MEM | BPF_W, 10, 0, -4, 0),
        /* 4, 5 */ INSN(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map),
        INSN(0, 0, 0, 0, 0),
        /* 6 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0),
        /* 7 */ INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -4),
        /* 8 */ INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem),
        /* 9 */ INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, PASS_AT - 10, 0),
        /* 10: is the one */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 7, 0, 0, 0),
        /* 11 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 6, 0, 0),
        /* 12 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 7, 0, 0),
        /* 13 */ INSN(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, 0),
        /* 14 */ INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_sk_assign),
        /* 15 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 7, 0, 0),
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_sk_release),
        /* 17: let it come */ INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, SK_PASS),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    union bpf_attr load = { .prog_type = BPF_PROG_TYPE_SK_LOOKUP,
                            .expected_attach_type = BPF_SK_LOOKUP,
                            .insn_cnt = ARRAY_LEN(code),
                            .insns = (uint64_t)(uintptr_t)code,
                            .license = (uint64_t)(uintptr_t) "Apache-2.0" };

    return bpf(BPF_PROG_LOAD, &load);
}

/* For connections of both families, where there are two. fd or -errno. */
static int make_listener(void)
{
    const struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
    const struct sockaddr_in v4 = { .sin_family = AF_INET };
    AUTO_FD int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool six = fd >= 0;
    int off = 0;

    if (!six)
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) < 0))
        return -errno;
    if (bind(fd, six ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4,
             six ? sizeof(v6) : sizeof(v4)) < 0 ||
        listen(fd, BACKLOG) < 0)
        return -errno;
    return TAKE_FD(fd);
}

static int open_in_thread(struct net_job *j, struct err *err)
{
    j->fd = make_listener();
    if (j->fd < 0)
        return err_sys(err, -j->fd, "listen in the pod's network namespace");
    AUTO_FD int map = make_map(j->fd), program = map < 0 ? map : make_program(map);
    union bpf_attr attach = { .link_create = { .prog_fd = (uint32_t)program,
                                               .target_fd = (uint32_t)j->netns,
                                               .attach_type = BPF_SK_LOOKUP } };

    j->hook = program < 0 ? program : bpf(BPF_LINK_CREATE, &attach);
    if (j->hook < 0)
        return err_sys(err, -j->hook, "attach a BPF program (sk_lookup, Linux 5.9)");
    return 0;
}

int net_forward_open(struct ctx *ctx, int netns, int *ret_listener, int *ret_hook, struct err *err)
{
    struct net_job j = { 0 };

    if (net_run(ctx, &j, netns, open_in_thread, "listen for the pod's ports", err) < 0)
        return -1;
    *ret_listener = j.fd;
    *ret_hook = j.hook;
    return 0;
}

/* What the client dialled is this end's own address. */
static int dialled(int fd, bool *ret_ipv6, uint16_t *ret_port)
{
    struct sockaddr_storage ss = { 0 };
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&ss;

    if (getsockname(fd, (struct sockaddr *)&ss, &(socklen_t){ sizeof(ss) }) < 0)
        return -errno;
    *ret_ipv6 = ss.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
    *ret_port = ntohs(v6->sin6_port); /* at the same place in both */
    return 0;
}

int net_forward_accept(struct ctx *ctx, int listener, int *ret_fd, bool *ret_ipv6,
                       uint16_t *ret_port, struct err *err)
{
    for (;;) {
        AUTO_FD int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0 && dialled(fd, ret_ipv6, ret_port) == 0) {
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
        if (fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            return err_sys(err, errno, "accept a connection to the pod's ports");
        if (fd < 0 && errno == EAGAIN &&
            loop_wait_fd(ctx, listener, POLLIN, "connections to the pod's ports", err) < 0)
            return -1;
    }
}
