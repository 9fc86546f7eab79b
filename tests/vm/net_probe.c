/* net_probe.c - the ends of a conversation, for tests of networks: runs on the host and, carried
 * there by a share, in the guest. Static, small, no library of ours.
 *     net_probe pod N CMD…                 CMD in the N-th pod's network namespace of this guest
 *     net_probe serve tcp|udp PORT [ADDR]  echoes, both families; prints "ready"; until killed
 *     net_probe ask tcp|udp ADDR PORT N    sends N bytes, wants them back; prints "N bytes" */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECONDS 20

_Noreturn static void die(const char *what)
{
    printf("net_probe: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* --- pod --- */

static int is_agent(const char *pid)
{
    char path[64], name[32] = "";
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
    f = fopen(path, "r");
    if (!f)
        return 0;
    if (!fgets(name, sizeof(name), f))
        name[0] = '\0';
    fclose(f);
    return strncmp(name, "gcs", 3) == 0 || strncmp(name, "init", 4) == 0;
}

/* The agent holds each pod's namespace by a descriptor; they are counted in their order. */
static int enter(const char *pid, int *left)
{
    char dir[64], path[128], to[64];

    snprintf(dir, sizeof(dir), "/proc/%.20s/fd", pid);
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof(path), "%s/%d", dir, fd);
        ssize_t n = readlink(path, to, sizeof(to) - 1);
        if (n < 0)
            continue;
        to[n] = '\0';
        if (strncmp(to, "net:[", 5) != 0 || (*left)-- > 0)
            continue;
        int ns = open(path, O_RDONLY);
        if (ns < 0 || setns(ns, CLONE_NEWNET) < 0)
            die(path);
        close(ns);
        return 1;
    }
    return 0;
}

static int pod(int which, char **cmd)
{
    DIR *d = opendir("/proc");
    int found = 0;

    if (!d)
        die("/proc");
    for (struct dirent *e; !found && (e = readdir(d));)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && is_agent(e->d_name))
            found = enter(e->d_name, &which);
    closedir(d);
    if (!found) {
        errno = ESRCH;
        die("pod");
    }
    execvp(cmd[0], cmd);
    die(cmd[0]);
}

/* "" is any address of both families. */
static socklen_t place(const char *address, const char *port, struct sockaddr_storage *ret)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)ret;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret;

    memset(ret, 0, sizeof(*ret));
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)atoi(port));
        return sizeof(*v4);
    }
    if (address[0] && inet_pton(AF_INET6, address, &v6->sin6_addr) != 1)
        die(address);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)atoi(port));
    return sizeof(*v6);
}

/* --- serve --- */

static void echo(int fd)
{
    static char buf[65536];
    ssize_t n;

    while ((n = read(fd, buf, sizeof(buf))) > 0)
        for (ssize_t at = 0, w; at < n; at += w)
            if ((w = write(fd, buf + at, (size_t)(n - at))) <= 0)
                exit(1);
    exit(0);
}

static void serve_udp(int fd)
{
    static char buf[65536];

    for (;;) {
        struct sockaddr_storage from;
        socklen_t len = sizeof(from);
        ssize_t n = recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len);

        if (n < 0 || sendto(fd, buf, (size_t)n, 0, (struct sockaddr *)&from, len) < 0)
            die("echo");
    }
}

_Noreturn static int serve(int type, const char *port, const char *address)
{
    struct sockaddr_storage at;
    socklen_t len = place(address, port, &at);
    int on = 1, off = 0, fd = socket(at.ss_family, type, 0);

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!address[0])
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) < 0)
        die("bind");
    if (type == SOCK_STREAM && listen(fd, 16) < 0)
        die("listen");
    printf("ready\n");
    fflush(stdout);
    signal(SIGCHLD, SIG_IGN);
    if (type == SOCK_DGRAM)
        serve_udp(fd);
    for (;;) {
        int c = accept(fd, NULL, NULL);
        if (c < 0)
            die("accept");
        if (fork() == 0) {
            close(fd);
            echo(c);
        }
        close(c);
    }
}

/* --- ask --- */

static void fill(char *buf, size_t n, size_t from)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = (char)((from + i) * 131 >> 3);
}

static void want(int fd, short events, const char *what)
{
    struct pollfd p = { .fd = fd, .events = events };

    errno = ETIMEDOUT;
    if (poll(&p, 1, SECONDS * 1000) <= 0)
        die(what);
}

static size_t ask_tcp(int fd, size_t total)
{
    static char buf[65536], same[65536];
    size_t sent = 0, got = 0;

    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (got < total) {
        want(fd, (short)(POLLIN | (sent < total ? POLLOUT : 0)), "answer");
        size_t n = total - sent < sizeof(buf) ? total - sent : sizeof(buf);
        fill(buf, n, sent);
        ssize_t w = n ? send(fd, buf, n, MSG_NOSIGNAL) : 0;
        if (w < 0 && errno != EAGAIN)
            die("send");
        sent += w > 0 ? (size_t)w : 0;
        if (sent == total && w > 0)
            shutdown(fd, SHUT_WR);
        ssize_t r = read(fd, buf, sizeof(buf));
        if (r == 0 || (r < 0 && errno != EAGAIN))
            die("receive");
        if (r > 0) {
            fill(same, (size_t)r, got);
            if (memcmp(buf, same, (size_t)r) != 0) {
                errno = EBADMSG;
                die("compare");
            }
            got += (size_t)r;
        }
    }
    return got;
}

static size_t ask_udp(int fd, size_t total)
{
    static char buf[65536], same[65536];

    fill(same, total, 0);
    for (int i = 0; i < 5; i++) { /* the first may be lost while a neighbour is looked for */
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (send(fd, same, total, 0) != (ssize_t)total)
            die("send");
        if (poll(&p, 1, 2000) <= 0)
            continue;
        ssize_t n = recv(fd, buf, sizeof(buf), 0);
        if (n != (ssize_t)total || memcmp(buf, same, total) != 0)
            die("compare");
        return total;
    }
    errno = ETIMEDOUT;
    die("answer");
}

static int ask(int type, const char *address, const char *port, size_t total)
{
    struct sockaddr_storage to;
    socklen_t len = place(address, port, &to);
    int fd = socket(to.ss_family, type | SOCK_NONBLOCK, 0), why = 0;

    if (fd < 0 || (connect(fd, (struct sockaddr *)&to, len) < 0 && errno != EINPROGRESS))
        die("connect");
    want(fd, POLLOUT, "connect");
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &(socklen_t){ sizeof(why) });
    if ((errno = why))
        die("connect");
    printf("%zu bytes\n", type == SOCK_STREAM ? ask_tcp(fd, total) : ask_udp(fd, total));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && strcmp(argv[1], "pod") == 0)
        return pod(atoi(argv[2]), argv + 3);
    int type = argc >= 3 && strcmp(argv[2], "udp") == 0 ? SOCK_DGRAM : SOCK_STREAM;
    if (argc >= 4 && strcmp(argv[1], "serve") == 0)
        return serve(type, argv[3], argc > 4 ? argv[4] : "");
    if (argc == 6 && strcmp(argv[1], "ask") == 0)
        return ask(type, argv[3], argv[4], (size_t)atol(argv[5]));
    fprintf(stderr, "usage: net_probe pod|serve|ask …\n");
    return 2;
}
