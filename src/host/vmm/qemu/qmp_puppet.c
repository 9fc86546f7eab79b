#include "host/vmm/qemu/qmp_puppet.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QMP = 3, CONSOLE = 4 };

static int held = -1;
static char how[16], which[32];
static unsigned answered_id;

static void say(int fd, const char *text)
{
    size_t n = strlen(text);

    if (write(fd, text, n) != (ssize_t)n)
        _exit(3);
}

void puppet_choke(const char *what)
{
    fprintf(stderr, "puppet: %s\n", what);
    exit(7);
}

void puppet_refuse(const char *class, const char *desc)
{
    char text[256];

    snprintf(text, sizeof(text),
             "{\"error\": {\"class\": \"%s\", \"desc\": \"%s\"}, \"id\": %u}\r\n", class, desc,
             answered_id);
    say(QMP, text);
}

void puppet_answer(const char *why)
{
    char text[64];

    if (why) {
        puppet_refuse("GenericError", why);
        return;
    }
    snprintf(text, sizeof(text), "{\"return\": {}, \"id\": %u}\r\n", answered_id);
    say(QMP, text);
}

void puppet_deleted(const char *fmt, ...)
{
    char device[32], text[192];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(device, sizeof(device), fmt, ap);
    va_end(ap);
    snprintf(text, sizeof(text),
             "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": "
             "\"DEVICE_DELETED\", \"data\": {\"device\": \"%s\", \"path\": \"/x\"}}\r\n",
             device);
    say(QMP, text);
}

unsigned puppet_number(const char *line, const char *key)
{
    const char *p = strstr(line, key);

    if (!p)
        puppet_choke(line);
    return (unsigned)atoi(p + strlen(key));
}

int puppet_take_fd(void)
{
    int fd = held;

    held = -1;
    return fd;
}

void puppet_behave(void)
{
    which[0] = '\0';
}

const char *puppet_how(const char *cmd)
{
    if (strcmp(cmd, which) != 0)
        return "";
    if (strcmp(how, "deaf") != 0)
        puppet_behave();
    return how;
}

static void handle_line(const char *line, puppet_handler *handle, bool (*is_left)(void))
{
    char cmd[32] = "";
    const char *id = strstr(line, "\"id\":");

    /* The message's own id is its last. */
    for (const char *next = id; next; next = strstr(next + 1, "\"id\":"))
        id = next;
    answered_id = id ? (unsigned)atoi(id + 5) : 0;
    if (sscanf(line, " {\"execute\":\"%31[^\"]", cmd) != 1)
        puppet_choke(line);
    if (!strcmp(cmd, "quit")) {
        puppet_answer(NULL);
        exit(is_left() ? 9 : 0);
    }
    if (!strcmp(cmd, "qmp_capabilities"))
        puppet_answer(NULL);
    else
        handle(cmd, line);
}

/* As QEMU: a descriptor that comes replaces the one before. */
static ssize_t receive(char *buf, size_t size)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = { buf, size };
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
    };
    ssize_t n = recvmsg(QMP, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;

    if (c && c->cmsg_type == SCM_RIGHTS) {
        if (held >= 0)
            close(held);
        memcpy(&held, CMSG_DATA(c), sizeof(held));
    }
    return n;
}

int puppet_run(int argc, char **argv, puppet_handler *handle, bool (*is_left)(void))
{
    char line[8192];
    size_t len = 0;

    for (int i = 1; i < argc - 1; i++)
        if (!strcmp(argv[i], "-name"))
            sscanf(argv[i + 1], "guest=%15[a-z].%31[^@,]", how, which);
    say(QMP, "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 1, \"minor\": 0, \"major\": 10}, "
             "\"package\": \"\"}, \"capabilities\": []}}\r\n");
    say(CONSOLE, "[    0.000000] Linux version 6.1.0 (puppet)\r\n");
    for (ssize_t n; (n = receive(line + len, sizeof(line) - 1 - len)) > 0;) {
        len += (size_t)n;
        line[len] = '\0';
        for (char *end; (end = strchr(line, '\n'));) {
            *end = '\0';
            handle_line(line, handle, is_left);
            len -= (size_t)(end + 1 - line);
            memmove(line, end + 1, len + 1);
        }
    }
    return 0;
}
