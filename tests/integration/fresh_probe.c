/* fresh_probe.c - runs in a VM and prints what no other VM may have, as "name value" lines; then
 * answers each line on stdin with its clock in ns. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void hex(const char *name, const void *data, size_t len)
{
    printf("%s ", name);
    for (size_t i = 0; i < len; i++)
        printf("%02x", ((const unsigned char *)data)[i]);
    puts("");
}

static void file(const char *name, const char *path)
{
    char buf[256];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf));

    if (fd >= 0)
        close(fd);
    if (n > 0)
        hex(name, buf, (size_t)n);
    else
        printf("%s missing\n", name);
}

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The kernel makes a connection's first sequence number from its addresses, a secret, and the
 * clock in units of 64 ns (net/core/secure_seq.c). Always the same addresses: what is left without
 * the clock's part prints the secret. */
static void sequence(unsigned i)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons(4000),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct sockaddr_in from = a;
    int on = 1, queue = TCP_SEND_QUEUE;
    int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
    uint32_t seq = 0;
    socklen_t len = sizeof(seq);

    from.sin_port = htons((uint16_t)(5000 + i));
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(c, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(l, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(l, 1) < 0 ||
        bind(c, (struct sockaddr *)&from, sizeof(from)) < 0 ||
        connect(c, (struct sockaddr *)&a, sizeof(a)) < 0)
        exit(3);
    uint64_t clock = now() >> 6;
    if (setsockopt(c, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) < 0 ||
        setsockopt(c, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof(queue)) < 0 ||
        getsockopt(c, IPPROTO_TCP, TCP_QUEUE_SEQ, &seq, &len) < 0)
        exit(4);
    printf("isn%u %u\n", i, seq - (uint32_t)clock);
    close(c);
    close(l);
}

int main(void)
{
    unsigned char bytes[32];
    char line[16], name[128] = "";

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
        return 2;
    hex("getrandom", bytes, sizeof(bytes));
    hex("at_random", (void *)getauxval(AT_RANDOM), 16);
    file("uuid", "/proc/sys/kernel/random/uuid");
    file("boot_id", "/proc/sys/kernel/random/boot_id");
    file("machine_id", "/etc/machine-id");
    gethostname(name, sizeof(name) - 1);
    printf("hostname %s\n", name);
    file("boot_block", "/sys/firmware/qemu_fw_cfg/by_name/opt/lcow/boot/raw");
    for (unsigned i = 0; i < 4; i++)
        sequence(i);
    puts("done");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        printf("%llu\n", (unsigned long long)now());
        fflush(stdout);
    }
    return 0;
}
