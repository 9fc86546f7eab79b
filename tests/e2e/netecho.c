/* netecho - bytes there and back, over TCP and UDP, both families; an ADDRESS with a slash is the
 * path of a Unix socket.
 *   netecho serve ADDRESS PORT             answers whatever comes with the same; prints "up"
 *   netecho tcp|udp ADDRESS PORT BYTES     sends so many (UDP: as one datagram), prints "same" when
 *                                          they have come back
 *   netecho rate ADDRESS PORT              prints "up"; a TCP connection's first byte says what to
 * do with it: o: send until the peer closes; i: read all, then send one byte; r: answer each byte
 * at once netecho lines RATE PATH                prints numbered lines of 100 bytes, RATE bytes a
 * second at most, until PATH exists; then "end", exit code 7 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 65536
#define LINE_BYTES 100
#define BLOCK_LINES 200

struct address {
    struct sockaddr_storage at;
    socklen_t len;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static struct address parse(const char *text, const char *port)
{
    struct address a = { 0 };
    struct sockaddr_in *v4 = (struct sockaddr_in *)&a.at;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a.at;
    struct sockaddr_un *un = (struct sockaddr_un *)&a.at;

    if (strchr(text, '/')) {
        un->sun_family = AF_UNIX;
        snprintf(un->sun_path, sizeof(un->sun_path), "%s", text);
        a.len = sizeof(*un);
        return a;
    }
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((unsigned short)atoi(port));
        a.len = sizeof(*v4);
    } else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((unsigned short)atoi(port));
        a.len = sizeof(*v6);
    } else {
        fprintf(stderr, "invalid address %s\n", text);
        exit(2);
    }
    return a;
}

static char byte_at(size_t i)
{
    return (char)(i * 31 + i / 251);
}

static void write_all(int fd, const char *data, size_t len)
{
    for (ssize_t n; len > 0; data += n, len -= (size_t)n) {
        n = write(fd, data, len);
        if (n <= 0)
            die("write");
    }
}

/* ---- server */

static void serve_udp(const struct address *a)
{
    static char data[CHUNK];
    int fd = socket(a->at.ss_family, SOCK_DGRAM, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&a->at, a->len) < 0)
        die("bind udp");
    puts("up");
    fflush(stdout);
    for (;;) {
        struct sockaddr_storage from;
        socklen_t len = sizeof(from);
        ssize_t n = recvfrom(fd, data, sizeof(data), 0, (struct sockaddr *)&from, &len);

        if (n < 0 || sendto(fd, data, (size_t)n, 0, (struct sockaddr *)&from, len) != n)
            perror("echo");
    }
}

static void echo(int peer)
{
    static char data[CHUNK];

    for (ssize_t n; (n = read(peer, data, sizeof(data))) > 0;)
        write_all(peer, data, (size_t)n);
}

static void measured(int peer)
{
    static char data[4 * CHUNK];
    int one = 1;
    char what;

    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (read(peer, &what, 1) != 1)
        return;
    if (what == 'r')
        echo(peer);
    while (what == 'o' && write(peer, data, sizeof(data)) > 0)
        ;
    if (what == 'i') {
        while (read(peer, data, sizeof(data)) > 0)
            ;
        write_all(peer, &what, 1);
    }
}

static void serve_tcp(const struct address *a, void (*serve)(int peer))
{
    int one = 1, fd = socket(a->at.ss_family, SOCK_STREAM, 0);

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || bind(fd, (const struct sockaddr *)&a->at, a->len) < 0 || listen(fd, 16) < 0)
        die("bind tcp");
    if (fork() > 0)
        return;
    for (;;) {
        int peer = accept(fd, NULL, NULL);

        if (peer >= 0 && fork() == 0) {
            serve(peer);
            exit(0);
        }
        close(peer);
    }
}

/* ---- client */

static void send_tcp(int fd, size_t size)
{
    static char data[CHUNK];

    for (size_t at = 0; at < size;) {
        size_t n = 0;

        for (; n < sizeof(data) && at < size; n++, at++)
            data[n] = byte_at(at);
        write_all(fd, data, n);
    }
    shutdown(fd, SHUT_WR);
}

static void check_tcp(int fd, size_t size)
{
    static char data[CHUNK];
    size_t at = 0;

    for (ssize_t n; (n = read(fd, data, sizeof(data))) > 0;) {
        for (ssize_t i = 0; i < n; i++, at++) {
            if (data[i] != byte_at(at)) {
                printf("other bytes at %zu\n", at);
                exit(1);
            }
        }
    }
    printf(at == size ? "same\n" : "%zu bytes came back\n", at);
}

static void client_tcp(const struct address *a, size_t size)
{
    int fd = socket(a->at.ss_family, SOCK_STREAM, 0);

    if (connect(fd, (const struct sockaddr *)&a->at, a->len) < 0)
        die("connect");
    if (fork() == 0) {
        send_tcp(fd, size);
        _exit(0);
    }
    check_tcp(fd, size);
}

static void client_udp(const struct address *a, size_t size)
{
    static char data[CHUNK], back[CHUNK];
    struct timeval limit = { .tv_sec = 10 };
    int fd = socket(a->at.ss_family, SOCK_DGRAM, 0);

    for (size_t i = 0; i < size && i < sizeof(data); i++)
        data[i] = byte_at(i);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (sendto(fd, data, size, 0, (const struct sockaddr *)&a->at, a->len) != (ssize_t)size)
        die("send");
    if (recv(fd, back, sizeof(back), 0) != (ssize_t)size)
        die("receive");
    puts(memcmp(data, back, size) == 0 ? "same" : "other bytes");
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int lines(double rate, const char *path)
{
    static char block[LINE_BYTES * BLOCK_LINES];
    char number[12];
    double begin = now();

    for (unsigned long n = 1, bytes = 0; access(path, F_OK) < 0; bytes += sizeof(block)) {
        memset(block, '.', sizeof(block));
        for (char *p = block; p < block + sizeof(block); p += LINE_BYTES) {
            snprintf(number, sizeof(number), "%010lu ", n++);
            memcpy(p, number, 11);
            p[LINE_BYTES - 1] = '\n';
        }
        if (fwrite(block, sizeof(block), 1, stdout) != 1 || fflush(stdout) != 0)
            die("write");

        double early = (double)bytes / rate - (now() - begin);

        if (early > 0)
            usleep((useconds_t)(early * 1e6));
    }
    puts("end");
    return 7;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "lines") == 0)
        return lines(atof(argv[2]), argv[3]);

    bool rate = argc == 4 && strcmp(argv[1], "rate") == 0;

    if (argc < 4 || (!rate && strcmp(argv[1], "serve") != 0 && argc != 5))
        return 2;

    struct address a = parse(argv[2], argv[3]);

    signal(SIGCHLD, SIG_IGN);
    if (rate || strcmp(argv[1], "serve") == 0) {
        signal(SIGPIPE, SIG_IGN);
        serve_tcp(&a, rate ? measured : echo);
        if (rate || a.at.ss_family == AF_UNIX) {
            puts("up");
            fflush(stdout);
            pause();
        }
        serve_udp(&a);
    } else if (strcmp(argv[1], "tcp") == 0) {
        client_tcp(&a, (size_t)atol(argv[4]));
    } else {
        client_udp(&a, (size_t)atol(argv[4]));
    }
    return 0;
}
