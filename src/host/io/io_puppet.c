/* io_puppet.c - a log driver for the tests: writes down what it was given, then plays its part.
 * Arguments: "part" WHAT "to" DIRECTORY …. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { OUT = 3, ERR = 4, READY = 5 };

static const char *value(int argc, char **argv, const char *key)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], key) == 0)
            return argv[i + 1];
    return "";
}

/* What it was given: arguments, environment, descriptors. */
static void tell(const char *dir, int argc, char **argv)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s/given", dir);
    f = fopen(path, "we");
    if (!f)
        _exit(9);
    for (int i = 1; i < argc; i++)
        fprintf(f, "arg %s\n", argv[i]);
    for (char **e = environ; *e; e++)
        fprintf(f, "env %s\n", *e);
    for (int fd = 0; fd < 256; fd++)
        if (fd != fileno(f) && fcntl(fd, F_GETFD) >= 0)
            fprintf(f, "fd %d\n", fd);
    fprintf(f, "pid %d\n", getpid());
    fclose(f);
}

static void copy(int from, const char *dir, const char *name)
{
    char path[512], buf[16384];
    int to;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    to = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (ssize_t n; (n = read(from, buf, sizeof(buf))) > 0;)
        if (write(to, buf, (size_t)n) != n)
            _exit(8);
    close(to);
}

int main(int argc, char **argv)
{
    const char *part = value(argc, argv, "part"), *dir = value(argc, argv, "to");
    char c;

    tell(dir, argc, argv);
    if (strcmp(part, "crash") == 0)
        return 3;
    if (strcmp(part, "abort") == 0)
        raise(SIGKILL);
    if (strcmp(part, "mute") == 0)
        for (;;)
            pause();
    if (strcmp(part, "byte") == 0 && write(READY, "r", 1) != 1)
        return 7;
    if (strcmp(part, "stubborn") == 0)
        signal(SIGTERM, SIG_IGN);
    close(READY);
    if (strcmp(part, "stubborn") == 0)
        for (;;)
            pause();
    if (strcmp(part, "obedient") == 0) /* does not care for the end of its input */
        for (;;)
            pause();
    if (strcmp(part, "dies") == 0)
        return read(OUT, &c, 1) == 1 ? 5 : 6;
    if (fork() == 0) {
        copy(ERR, dir, "driver-err");
        _exit(0);
    }
    close(ERR);
    copy(OUT, dir, "driver-out");
    wait(NULL);
    return 0;
}
