/* fsprobe.c - what tests ask a container's root file system, in one process: under emulation the
 * start of a program costs more than reading a file.
 *
 *   fsprobe tree DIR        how many files, their bytes, their sum, and how long it took
 *   fsprobe write FILE MIB  writes a pattern, then fsync
 *   fsprobe read FILE       bytes, sum, time
 *   fsprobe xattr FILE NAME its value
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1 << 20)

static uint64_t block[BLOCK / 8];
static uint64_t files, bytes, sum;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void add(const uint64_t *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = (sum ^ words[i]) * 1099511628211u;
}

static void read_file(const char *path)
{
    int fd = open(path, O_RDONLY);
    ssize_t n;

    if (fd < 0)
        die(path);
    while ((n = read(fd, block, sizeof(block))) > 0) {
        memset((char *)block + n, 0, (size_t)(-n & 7));
        add(block, ((size_t)n + 7) / 8);
        bytes += (uint64_t)n;
    }
    if (n < 0)
        die(path);
    close(fd);
    files++;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void read_tree(const char *dir)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, by_name);

    if (n < 0)
        die(dir);
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        char path[4096];

        snprintf(path, sizeof(path), "%s/%s", dir, name);
        if (names[i]->d_type == DT_REG)
            read_file(path);
        else if (names[i]->d_type == DT_DIR && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            read_tree(path);
        free(names[i]);
    }
    free(names);
}

static void write_file(const char *path, unsigned long mib)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    uint64_t x = 88172645463325252u;

    if (fd < 0)
        die(path);
    for (unsigned long i = 0; i < mib; i++) {
        for (size_t k = 0; k < BLOCK / 8; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            block[k] = x;
        }
        if (write(fd, block, sizeof(block)) != sizeof(block))
            die(path);
        add(block, BLOCK / 8);
        bytes += sizeof(block);
    }
    if (fsync(fd) < 0 || close(fd) < 0)
        die(path);
    files = 1;
}

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    uint64_t start = now_us();

    if (strcmp(what, "xattr") == 0 && argc == 4) {
        char value[256];
        ssize_t n = getxattr(argv[2], argv[3], value, sizeof(value) - 1);

        if (n < 0)
            die(argv[2]);
        printf("%.*s\n", (int)n, value);
        return 0;
    }
    if (strcmp(what, "tree") == 0 && argc == 3)
        read_tree(argv[2]);
    else if (strcmp(what, "read") == 0 && argc == 3)
        read_file(argv[2]);
    else if (strcmp(what, "write") == 0 && argc == 4)
        write_file(argv[2], strtoul(argv[3], NULL, 10));
    else
        return 2;
    printf("files=%llu bytes=%llu sum=%016llx us=%llu\n", (unsigned long long)files,
           (unsigned long long)bytes, (unsigned long long)sum,
           (unsigned long long)(now_us() - start));
    return 0;
}
