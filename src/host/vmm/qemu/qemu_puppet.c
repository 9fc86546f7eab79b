/* qemu_puppet.c - stands in for QEMU in the tests of the backend: takes its command line, plays
 * the part that the VM's name asks for. Runs in the real jail. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { QMP = 3, CONSOLE = 4 };

static char part[64] = "";
static const char *status = "running";
static bool kvm;

static void say(int fd, const char *text)
{
    for (size_t n = strlen(text); n > 0;) {
        ssize_t w = write(fd, text, n);
        if (w <= 0)
            _exit(3);
        text += w;
        n -= (size_t)w;
    }
}

static void greet(const char *major, const char *minor)
{
    char text[256];

    snprintf(text, sizeof(text),
             "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 1, \"minor\": %s, \"major\": %s}, "
             "\"package\": \"\"}, \"capabilities\": []}}\r\n",
             minor, major);
    say(QMP, text);
}

static void event_shutdown(const char *reason)
{
    char text[256];

    snprintf(text, sizeof(text),
             "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": \"SHUTDOWN\", "
             "\"data\": {\"guest\": true, \"reason\": \"%s\"}}\r\n",
             reason);
    say(QMP, text);
}

/* As a guest can cause on a disk that is full, and a QEMU that is not ours any more. */
static void flood(void)
{
    for (int i = 0; i < 2000; i++)
        say(QMP, "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, "
                 "\"event\": \"BLOCK_IO_ERROR\", \"data\": {\"reason\": \"full\"}}\r\n");
    event_shutdown("\\u001b[2Jgone");
}

static void event(const char *name)
{
    char text[128];

    snprintf(text, sizeof(text),
             "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": \"%s\"}\r\n", name);
    say(QMP, text);
}

/* As QEMU does when KVM_RUN fails; the registers are longer in reality. */
static void kvm_fails(void)
{
    fprintf(stderr, "error: kvm run failed Bad address\n"
                    "RAX=0000000000000000 RBX=0000000000000000 RCX=0000000000000000\n"
                    "Code=00 00 00 00 <ff> ff ff\n");
    status = "internal-error";
    event("STOP");
}

/* Answers one line; true if it was quit. */
static bool answer(const char *line)
{
    const char *id = strstr(line, "\"id\":");
    char text[128], value[64] = "";

    if (strstr(line, "\"query-status\""))
        snprintf(value, sizeof(value), "\"status\": \"%s\"", status);
    snprintf(text, sizeof(text), "{\"return\": {%s}, \"id\": %d}\r\n", value,
             id ? atoi(id + 5) : 0);
    if (strstr(line, "\"stop\"")) {
        status = "paused";
        event("STOP");
    } else if (strstr(line, "\"cont\"")) {
        /* "stops-STATUS": the test says when, by a resume. */
        status = strncmp(part, "stops-", 6) == 0 ? part + 6 : "running";
        event(strcmp(status, "running") == 0     ? "RESUME"
              : strcmp(status, "suspended") == 0 ? "SUSPEND"
                                                 : "STOP");
    }
    say(QMP, text);
    if (strcmp(part, "kvm-run") == 0 && kvm && strstr(line, "\"qmp_capabilities\""))
        kvm_fails();
    return strstr(line, "\"quit\"");
}

static void serve(void)
{
    char line[4096];
    size_t len = 0;

    for (ssize_t n; (n = read(QMP, line + len, sizeof(line) - 1 - len)) > 0;) {
        len += (size_t)n;
        line[len] = '\0';
        for (char *end; (end = strchr(line, '\n'));) {
            *end = '\0';
            if (answer(line)) {
                event_shutdown("host-qmp-quit");
                exit(0);
            }
            len -= (size_t)(end + 1 - line);
            memmove(line, end + 1, len + 1);
        }
    }
    exit(0);
}

static void boot(void)
{
    say(CONSOLE, "[    0.000000] Linux version 6.1.0 (puppet)\r\n");
    say(CONSOLE, "lcow: stage init\r\n\033[31mred\r\n");
}

/* A vCPU that uses time and gets nowhere, named as QEMU names its thread. */
static void *spin(void *arg)
{
    (void)arg;
    prctl(PR_SET_NAME, "CPU 0/KVM");
    for (volatile unsigned n = 0;; n++)
        ;
    return NULL;
}

static void start_spinning(void)
{
    pthread_t vcpu;

    if (pthread_create(&vcpu, NULL, spin, NULL) != 0)
        _exit(3);
}

/* Wait for qmp_capabilities, which is the first command. */
static void negotiate(void)
{
    char line[512];
    ssize_t n = read(QMP, line, sizeof(line) - 1);

    if (n <= 0)
        exit(0);
    line[n] = '\0';
    answer(line);
}

/* Of the parts that end by themselves; NULL: it is none. */
static const char *end_reason(void)
{
    if (strcmp(part, "poweroff") == 0)
        return "guest-shutdown";
    if (strcmp(part, "reset") == 0)
        return "guest-reset";
    return strcmp(part, "panic") == 0 ? "guest-panic" : NULL;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc - 1; i++) {
        if (strcmp(argv[i], "-name") == 0)
            sscanf(argv[i + 1], "guest=%63[^@,]", part);
        if (strcmp(argv[i], "-accel") == 0)
            kvm = strncmp(argv[i + 1], "kvm", 3) == 0;
    }
    if (argc == 2 && strcmp(argv[1], "-version") == 0) {
        puts("QEMU emulator version 10.0.1");
        return 0;
    }
    if (strcmp(part, "exits") == 0 || (strcmp(part, "no-kvm") == 0 && kvm)) {
        fprintf(stderr, "puppet: first line\npuppet: \033[1mcannot go on\n");
        return 1;
    }
    if (strcmp(part, "silent") == 0)
        for (;;)
            pause();
    if (strcmp(part, "rubbish") == 0) {
        say(QMP, "rubbish\r\n");
        for (;;)
            pause();
    }
    if (strcmp(part, "old") == 0)
        greet("5", "2");
    else
        greet("10", "0");
    fprintf(stderr, "qemu: warning: Number of hotpluggable cpus requested (4) exceeds 2\n");
    if (!kvm || (strcmp(part, "mute-kvm") != 0 && strcmp(part, "spin-kvm") != 0 &&
                 strcmp(part, "kvm-run") != 0))
        boot();
    if (strcmp(part, "spin-kvm") == 0 && kvm)
        start_spinning();
    if (end_reason()) {
        negotiate();
        event_shutdown(end_reason());
        return 0;
    }
    if (strcmp(part, "flood") == 0) {
        negotiate();
        flood();
        return 0;
    }
    serve();
    return 0;
}
