/* evil_guest.c - /init of a guest that means no good. The file /evil in the initramfs names what it
 * does. It comes up as the agent does (modules, link, token), so that it gets as far as an evil
 * agent would. Written without a line of ours: what is wrong in both would not be seen. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define PORT_LOG 109u
#define PORT_BRIDGE 0x40000000u
#define NEGOTIATE_RESPONSE 0x20100b01u
#define EXECUTE_RESPONSE 0x20100501u
#define NOTIFICATION 0x30100101u

static uint8_t token[32];
static uint64_t last_id; /* of the request read last */

static void say(const char *fmt, ...)
{
    char line[256];
    va_list ap;
    int fd = open("/dev/console", O_WRONLY | O_NOCTTY);

    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (fd >= 0 && n > 0 && write(fd, line, (size_t)n) < 0)
        _exit(1);
    close(fd);
}

static void for_ever(void)
{
    for (;;)
        pause();
}

/* --- coming up --- */

static void load(const char *dir, const char *name)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s.ko", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
        say("evil: load %s: %s\n", path, strerror(errno));
    close(fd);
}

/* The line "name: first … name" of the image's load order. */
static void load_chain(const char *name)
{
    static char text[262144];
    char dir[160], key[80];
    struct utsname u;

    uname(&u);
    snprintf(dir, sizeof(dir), "/lib/modules/%.100s", u.release);
    snprintf(key, sizeof(key), "\n%s:", name);
    char path[200];
    snprintf(path, sizeof(path), "%s/order", dir);
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, text + 1, sizeof(text) - 2);
    close(fd);
    text[0] = '\n';
    text[n > 0 ? n + 1 : 1] = '\0';
    char *line = strstr(text, key);
    if (!line)
        return;
    line += strlen(key);
    line[strcspn(line, "\n")] = '\0';
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
        load(dir, word);
}

static void address(struct sockaddr *to, const char *text)
{
    struct sockaddr_in in = { .sin_family = AF_INET };

    inet_pton(AF_INET, text, &in.sin_addr);
    memcpy(to, &in, sizeof(in));
}

static void link_up(void)
{
    static const uint8_t host_mac[] = { 0x02, 0x6c, 0x63, 0x6f, 0x77, 0x01 };
    struct ifreq req = { .ifr_name = "eth0" };
    struct arpreq arp = { .arp_flags = ATF_COM | ATF_PERM, .arp_dev = "eth0" };
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    address(&req.ifr_addr, "169.254.64.2");
    for (int i = 0; i < 200 && ioctl(fd, SIOCSIFADDR, &req) < 0; i++)
        usleep(10000);
    address(&req.ifr_netmask, "255.255.255.252");
    ioctl(fd, SIOCSIFNETMASK, &req);
    req.ifr_flags = IFF_UP;
    ioctl(fd, SIOCSIFFLAGS, &req);
    address(&arp.arp_pa, "169.254.64.1");
    arp.arp_ha.sa_family = ARPHRD_ETHER;
    memcpy(arp.arp_ha.sa_data, host_mac, sizeof(host_mac));
    ioctl(fd, SIOCSARP, &arp);
    close(fd);
}

static void fw_cfg(uint16_t key, void *buf, size_t len)
{
    uint8_t *p = buf;

    if (key != 0xffff)
        outw(key, 0x510);
    while (len--)
        *p++ = inb(0x511);
}

static void read_token(void)
{
    struct {
        uint32_t size;
        uint16_t key, reserved;
        char name[56];
    } entry;
    uint8_t block[128];
    uint32_t count;

    ioperm(0x510, 2, 1);
    fw_cfg(0x19, &count, 4);
    for (count = ntohl(count); count > 0; count--) {
        fw_cfg(0xffff, &entry, sizeof(entry));
        if (strcmp(entry.name, "opt/lcow/boot") == 0) {
            fw_cfg(ntohs(entry.key), block, sizeof(block));
            memcpy(token, block + 16, sizeof(token));
            return;
        }
    }
    say("evil: no token\n");
}

static void come_up(void)
{
    mount("proc", "/proc", "proc", 0, NULL);
    mount("dev", "/dev", "devtmpfs", 0, NULL);
    say("lcow: stage init\n");
    load_chain("virtio_pci");
    load_chain("virtio_net");
    link_up();
    read_token();
}

/* --- talking --- */

static int connect_host(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(1) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    inet_pton(AF_INET, "169.254.64.1", &to.sin_addr);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
        say("evil: connect: %s\n", strerror(errno));
        close(fd);
        return -1;
    }
    return fd;
}

static void send_all(int fd, const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        p += n;
        len -= (size_t)n;
    }
}

static int dial(uint32_t port)
{
    uint8_t preface[40] = { 'L', 'C', 'W', '1' };
    int fd = connect_host();

    memcpy(preface + 4, token, sizeof(token));
    memcpy(preface + 36, &port, 4);
    send_all(fd, preface, sizeof(preface));
    return fd;
}

static void send_header(int fd, uint32_t type, uint32_t size, uint64_t id)
{
    uint8_t header[16];

    memcpy(header, &type, 4);
    memcpy(header + 4, &size, 4);
    memcpy(header + 8, &id, 8);
    send_all(fd, header, sizeof(header));
}

static void send_frame(int fd, uint32_t type, uint64_t id, const char *json)
{
    send_header(fd, type, (uint32_t)(16 + strlen(json)), id);
    send_all(fd, json, strlen(json));
}

static int recv_all(int fd, void *buf, size_t len)
{
    return recv(fd, buf, len, MSG_WAITALL) == (ssize_t)len ? 0 : -1;
}

/* One request; its type, or 0. */
static uint32_t read_request(int fd)
{
    static char payload[1 << 20];
    uint32_t header[4];

    if (recv_all(fd, header, sizeof(header)) < 0 || header[1] < 16 ||
        header[1] - 16 > sizeof(payload) || recv_all(fd, payload, header[1] - 16) < 0)
        return 0;
    memcpy(&last_id, &header[2], 8);
    return header[0];
}

static const char good_answer[] =
    "{\"Result\":0,\"Version\":4,\"Capabilities\":{\"SupportedSchemaVersions\":[{\"Major\":2,"
    "\"Minor\":1}],\"RuntimeOsType\":\"Linux\",\"GuestDefinedCapabilities\":{"
    "\"NamespaceAddRequestSupported\":true,\"SignalProcessSupported\":true,"
    "\"DumpStacksSupported\":true,\"DeleteContainerStateSupported\":true}}}";

static int bridge_asked(void)
{
    int fd = dial(PORT_BRIDGE);

    read_request(fd);
    return fd;
}

static int negotiated(void)
{
    int fd = bridge_asked();

    send_frame(fd, NEGOTIATE_RESPONSE, last_id, good_answer);
    return fd;
}

static int executing(void)
{
    int fd = negotiated();

    read_request(fd);
    return fd;
}

/* --- the deeds --- */

static void exits(void)
{
    exit(1);
}

static void says_nothing(void)
{
    for_ever();
}

static void never_dials(void)
{
    come_up();
    for_ever();
}

static void wrong_token(void)
{
    come_up();
    memset(token, 0x55, sizeof(token));
    for (;;) {
        int fd = dial(PORT_BRIDGE);
        char c;
        /* Refused: the host closes without a word. */
        if (recv(fd, &c, 1, 0) > 0)
            say("evil: the host answered\n");
        close(fd);
        usleep(20000);
    }
}

static void wrong_port(void)
{
    come_up();
    for (uint32_t port = 0x40000005u;; port++) {
        int fd = dial(port);
        char c;
        if (recv(fd, &c, 1, 0) > 0)
            say("evil: the host answered\n");
        close(fd);
        usleep(20000);
    }
}

static void no_preface(void)
{
    come_up();
    for (int i = 0; i < 500; i++) {
        int fd = connect_host();
        if (i % 2)
            send_all(fd, "LCW1abc", 7);
    }
    for_ever();
}

static void wrong_version(void)
{
    come_up();
    int fd = bridge_asked();
    send_frame(fd, NEGOTIATE_RESPONSE, last_id,
               "{\"Result\":-1070137076,\"ErrorMessage\":\"HRESULT: 0xc037010c\"}");
    for_ever();
}

static void other_version(void)
{
    come_up();
    int fd = bridge_asked();
    char text[sizeof(good_answer)];
    memcpy(text, good_answer, sizeof(text));
    memcpy(strstr(text, "\"Version\":4") + 10, "7", 1);
    send_frame(fd, NEGOTIATE_RESPONSE, last_id, text);
    for_ever();
}

static void frame_of(uint32_t size)
{
    come_up();
    int fd = bridge_asked();
    send_header(fd, NEGOTIATE_RESPONSE, size, last_id);
    for_ever();
}

static void frame_zero(void)
{
    frame_of(0);
}

static void frame_huge(void)
{
    frame_of(UINT32_MAX);
}

static void frame_truncated(void)
{
    come_up();
    int fd = bridge_asked();
    send_header(fd, NEGOTIATE_RESPONSE, 200, last_id);
    send_all(fd, "{\"Result\"", 9);
    close(fd);
    for_ever();
}

static void frame_stops(void)
{
    come_up();
    int fd = bridge_asked();
    send_header(fd, NEGOTIATE_RESPONSE, 200, last_id);
    for_ever();
}

static void frame_garbage(void)
{
    come_up();
    int fd = bridge_asked();
    send_frame(fd, NEGOTIATE_RESPONSE, last_id, "\xff\xfe this is no JSON {{{{");
    for_ever();
}

static void bridge_silent(void)
{
    come_up();
    bridge_asked();
    for_ever();
}

static void bridge_closes(void)
{
    come_up();
    close(dial(PORT_BRIDGE));
    for_ever();
}

/* As if the serving role was killed: PID 1 says so and powers off. */
static void dies_before_dial(void)
{
    come_up();
    say("lcow: agent died: killed by signal 9 (Killed)\n");
    reboot(RB_POWER_OFF);
}

static void dies_after_dial(void)
{
    come_up();
    bridge_asked();
    say("lcow: agent died: killed by signal 9 (Killed)\n");
    reboot(RB_POWER_OFF);
}

static void exec_silent(void)
{
    come_up();
    executing();
    say("evil: asked to execute\n");
    for_ever();
}

static void exec_garbage(void)
{
    come_up();
    int fd = executing();
    send_frame(fd, EXECUTE_RESPONSE, last_id, "[[[[");
    for_ever();
}

static void exec_unasked(void)
{
    come_up();
    int fd = executing();
    send_frame(fd, EXECUTE_RESPONSE, last_id + 1000, "{\"Result\":0,\"ProcessId\":7}");
    for_ever();
}

static void exec_closes(void)
{
    come_up();
    close(executing());
    for_ever();
}

/* Says the process runs, but never dials for its stdio. */
static void exec_no_stdio(void)
{
    come_up();
    int fd = executing();
    send_frame(fd, EXECUTE_RESPONSE, last_id, "{\"Result\":0,\"ProcessId\":7}");
    for_ever();
}

static void floods_log(void)
{
    static char line[8192];

    come_up();
    negotiated();
    int fd = dial(PORT_LOG);
    memset(line, 'x', sizeof(line));
    memcpy(line, "{\"msg\":\"", 8);
    strcpy(line + sizeof(line) - 20, "\",\"level\":\"error\"}\n");
    for (;;)
        send_all(fd, line, strlen(line));
}

/* One line without an end. */
static void floods_line(void)
{
    static char part[65536];

    come_up();
    negotiated();
    int fd = dial(PORT_LOG);
    memset(part, 'y', sizeof(part));
    for (;;)
        send_all(fd, part, sizeof(part));
}

static void floods_console(void)
{
    static char part[4096];

    come_up();
    negotiated();
    int fd = open("/dev/console", O_WRONLY | O_NOCTTY);
    memset(part, 'z', sizeof(part));
    for (int i = 0;; i++) {
        part[sizeof(part) - 1] = i % 7 ? 'z' : '\n';
        if (write(fd, part, sizeof(part)) < 0)
            _exit(1);
    }
}

static void floods_bridge(void)
{
    static const char text[] =
        "{\"ContainerId\":\"nobody\",\"Type\":\"None\",\"Operation\":\"None\","
        "\"Result\":0,\"ResultInfo\":\"\"}";

    come_up();
    int fd = negotiated();
    for (;;)
        send_frame(fd, NOTIFICATION, 0, text);
}

/* Of what the host is slowest to read. */
static void notify_for_ever(uint32_t size)
{
    static char text[1 << 20];
    size_t len = size - 16;

    come_up();
    int fd = negotiated();
    memset(text, 0xff, len);
    memcpy(text, "{\"a\":\"", 6);
    memcpy(text + len - 2, "\"}", 2);
    for (;;) {
        send_header(fd, NOTIFICATION, size, 0);
        send_all(fd, text, len);
    }
}

static void floods_notes(void)
{
    notify_for_ever(1 << 20);
}

/* As large as they may be. */
static void floods_bytes(void)
{
    notify_for_ever(4096);
}

static void floods_connections(void)
{
    struct linger at_once = { 1, 0 };

    come_up();
    negotiated();
    for (;;) {
        int fd = connect_host();
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        send_all(fd, "LCW1abc", 7);
        close(fd);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} deeds[] = {
    { "exits", exits },
    { "says-nothing", says_nothing },
    { "never-dials", never_dials },
    { "wrong-token", wrong_token },
    { "wrong-port", wrong_port },
    { "no-preface", no_preface },
    { "wrong-version", wrong_version },
    { "other-version", other_version },
    { "frame-zero", frame_zero },
    { "frame-huge", frame_huge },
    { "frame-truncated", frame_truncated },
    { "frame-stops", frame_stops },
    { "frame-garbage", frame_garbage },
    { "bridge-silent", bridge_silent },
    { "bridge-closes", bridge_closes },
    { "dies-before-dial", dies_before_dial },
    { "dies-after-dial", dies_after_dial },
    { "exec-silent", exec_silent },
    { "exec-garbage", exec_garbage },
    { "exec-unasked", exec_unasked },
    { "exec-closes", exec_closes },
    { "exec-no-stdio", exec_no_stdio },
    { "floods-log", floods_log },
    { "floods-line", floods_line },
    { "floods-console", floods_console },
    { "floods-bridge", floods_bridge },
    { "floods-notes", floods_notes },
    { "floods-bytes", floods_bytes },
    { "floods-connections", floods_connections },
};

int main(void)
{
    char name[32] = "";
    int fd = open("/evil", O_RDONLY);

    if (fd < 0 || read(fd, name, sizeof(name) - 1) < 0)
        return 1;
    close(fd);
    for (size_t i = 0; i < sizeof(deeds) / sizeof(deeds[0]); i++)
        if (strcmp(deeds[i].name, name) == 0)
            deeds[i].run();
    say("evil: no deed is called '%s'\n", name);
    for_ever();
}
