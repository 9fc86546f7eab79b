/* udp - one datagram there and back: `udp PORT` answers whatever comes with the same, for ever;
 * `udp ADDRESS PORT BYTES` sends one, waits for it to come back whole, prints "same". */
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

static char data[65536], back[65536];

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int serve(int port)
{
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port) };
    struct sockaddr_storage from;
    int fd = socket(AF_INET6, SOCK_DGRAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0)
        return fail("bind");
    puts("up");
    fflush(stdout);
    for (;;) {
        socklen_t len = sizeof(from);
        ssize_t n = recvfrom(fd, data, sizeof(data), 0, (struct sockaddr *)&from, &len);

        if (n < 0 || sendto(fd, data, (size_t)n, 0, (struct sockaddr *)&from, len) != n)
            perror("echo");
    }
}

int main(int argc, char **argv)
{
    struct addrinfo hints = { .ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST }, *to;
    struct timeval limit = { .tv_sec = 10 };

    if (argc == 2)
        return serve(atoi(argv[1]));
    if (argc != 4 || getaddrinfo(argv[1], argv[2], &hints, &to) != 0)
        return fail("address");

    size_t size = (size_t)atoi(argv[3]);
    int fd = socket(to->ai_family, SOCK_DGRAM, 0);

    for (size_t i = 0; i < size && i < sizeof(data); i++)
        data[i] = (char)(i * 31 + i / 251);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (sendto(fd, data, size, 0, to->ai_addr, to->ai_addrlen) != (ssize_t)size)
        return fail("send");
    if (recv(fd, back, sizeof(back), 0) != (ssize_t)size)
        return fail("receive");
    puts(memcmp(data, back, size) == 0 ? "same" : "other bytes");
    return 0;
}
