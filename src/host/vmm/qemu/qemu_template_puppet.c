/* qemu_template_puppet.c - stands in for QEMU in the tests of templates, clones and sizes. Runs in
 * the real jail. What it is asked to be it sees on its command line; the VM's name says how a clone
 * fails. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { QMP = 3, CONSOLE = 4, STATE = 9 };

static char part[64];
enum { SLOTS = 4, NONE = -1, BUILT_IN = -2 };
static int cpus[SLOTS] = { BUILT_IN, NONE, NONE, NONE }; /* the number of the device in it */
static bool late; /* a guest called so lets go of its first vCPU when the next is added */
static bool mute; /* the first vCPU that is added to a guest called so is not acknowledged */
static int pending = NONE;
static unsigned dies_at; /* a clone called "dies-at-3" is killed when the third command comes */

static void say(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        _exit(3);
}

static void event(const char *name, const char *data)
{
    char text[256];

    snprintf(text, sizeof(text),
             "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 1}, \"event\": \"%s\", "
             "\"data\": {%s}}\r\n",
             name, data);
    say(QMP, text);
}

static void reply(const char *line, const char *value)
{
    const char *id = strstr(line, "\"id\":");
    char text[1024];

    /* The last one: a device's id comes before the command's. */
    for (const char *next; id && (next = strstr(id + 1, "\"id\":"));)
        id = next;
    snprintf(text, sizeof(text), "{\"return\": %s, \"id\": %d}\r\n", value, id ? atoi(id + 5) : 0);
    say(QMP, text);
}

/* Highest first, as QEMU has them; those that are there have a path. */
static void list_cpus(const char *line)
{
    char text[1024] = "[";

    for (unsigned i = SLOTS; i-- > 0;)
        snprintf(
            text + strlen(text), sizeof(text) - strlen(text),
            "%s{\"type\": \"max-x86_64-cpu\", \"vcpus-count\": 1, %s\"props\": {\"socket-id\": "
            "%u, \"core-id\": 0, \"thread-id\": 0}}",
            i == SLOTS - 1 ? "" : ", ", cpus[i] != NONE ? "\"qom-path\": \"/machine\", " : "", i);
    strcat(text, "]");
    reply(line, text);
}

static int number_after(const char *line, const char *what)
{
    const char *at = strstr(line, what);

    return at ? atoi(at + strlen(what)) : NONE;
}

static int slot_of(int number)
{
    for (int i = 0; i < SLOTS; i++)
        if (cpus[i] == number)
            return i;
    return NONE;
}

static void let_go(int slot)
{
    char text[64];

    snprintf(text, sizeof(text), "\"device\": \"cpu-%d\", \"path\": \"/x\"", cpus[slot]);
    cpus[slot] = NONE;
    event("DEVICE_DELETED", text);
}

static void add_cpu(const char *line)
{
    int slot = number_after(line, "\"socket-id\":"), number = number_after(line, "\"id\":\"cpu-");

    if (slot < 0 || slot >= SLOTS || cpus[slot] != NONE || number < 0 || slot_of(number) != NONE)
        _exit(5); /* no such slot, or one or a name that is taken */
    cpus[slot] = number;
    if (!mute)
        reply(line, "{}");
    mute = false;
    if (pending != NONE)
        let_go(pending);
    pending = NONE;
}

static void remove_cpu(const char *line)
{
    int slot = slot_of(number_after(line, "\"id\":\"cpu-"));

    if (slot == NONE)
        _exit(4); /* nobody asks for what is gone */
    reply(line, "{}");
    if (!late) {
        let_go(slot);
        return;
    }
    pending = slot;
    late = false;
}

static void incoming(const char *line)
{
    if (strcmp(part, "refuses") == 0) {
        reply(line, "{}");
        event("MIGRATION", "\"status\": \"failed\"");
        fprintf(stderr, "puppet: unknown section\n");
        exit(1);
    }
    if (strcmp(part, "dies") == 0)
        abort();
    reply(line, "{}");
    event("MIGRATION", "\"status\": \"completed\"");
    if (dies_at > 0)
        return;
    exit(0); /* a guest that powers off instead of coming to life */
}

static void answer(const char *line)
{
    const char *value = strstr(line, "\"value\":");
    char text[96];

    if (dies_at > 0 && --dies_at == 0)
        __builtin_trap(); /* it is process 1 here, whom its own SIGKILL does not reach */
    if (strstr(line, "\"migrate-incoming\"")) {
        incoming(line);
    } else if (strstr(line, "\"migrate\"")) {
        say(STATE, "devices");
        reply(line, "{}");
        event("MIGRATION", "\"status\": \"completed\"");
    } else if (strstr(line, "query-hotpluggable-cpus")) {
        list_cpus(line);
    } else if (strstr(line, "\"device_add\"")) {
        add_cpu(line);
    } else if (strstr(line, "\"qom-set\"") && value) {
        reply(line, "{}");
        snprintf(text, sizeof(text), "\"id\": \"grow0\", \"size\": %llu",
                 strtoull(value + 8, NULL, 10));
        event("MEMORY_DEVICE_SIZE_CHANGE", text);
    } else if (strstr(line, "\"device_del\"")) {
        remove_cpu(line);
    } else {
        reply(line, "{}");
    }
    if (strstr(line, "\"quit\""))
        exit(0);
}

int main(int argc, char **argv)
{
    char line[4096];
    size_t len = 0;
    bool template = false, clone = false;

    for (int i = 1; i < argc - 1; i++) {
        if (strcmp(argv[i], "-name") == 0)
            sscanf(argv[i + 1], "guest=%63[^@,]", part);
        template = template || strstr(argv[i + 1], "mem-path=/proc/self/fd/");
        clone = clone || strcmp(argv[i], "-incoming") == 0;
    }
    late = strcmp(part, "late") == 0;
    mute = strcmp(part, "mute") == 0;
    if (clone)
        sscanf(part, "dies-at-%u", &dies_at);
    say(QMP, "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 1, \"minor\": 0, \"major\": 10}, "
             "\"package\": \"\"}, \"capabilities\": []}}\r\n");
    if (!clone)
        say(CONSOLE, "[    0.000000] Linux version 6.1.0 (puppet)\r\nlcow: stage init\r\n");
    if (template)
        say(CONSOLE, "lcow: stage ready\r\n");
    for (ssize_t n; (n = read(QMP, line + len, sizeof(line) - 1 - len)) > 0;) {
        len += (size_t)n;
        line[len] = '\0';
        for (char *end; (end = strchr(line, '\n'));) {
            *end = '\0';
            answer(line);
            len -= (size_t)(end + 1 - line);
            memmove(line, end + 1, len + 1);
        }
    }
    return 0;
}
