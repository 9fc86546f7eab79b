/* fsprobe.c - what tests ask a container's root file system, in one process: under emulation the
 * start of a program costs more than reading a file.
 *
 *   fsprobe tree DIR        how many files, their bytes, their sum, and how long it took
 *   fsprobe write FILE MIB  writes a pattern, then fsync
 *   fsprobe read FILE       bytes, sum, time
 *   fsprobe xattr FILE NAME its value
 *   fsprobe dump DIR        a line for all that can be known of each file, but for inode numbers
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

/* Names of attributes are sorted: their order is the file system's. */
static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void dump_attributes(const char *path)
{
    static char names[65536], value[65536];
    const char *sorted[256];
    ssize_t n = llistxattr(path, names, sizeof(names));
    size_t count = 0;

    for (const char *at = names; at < names + (n > 0 ? n : 0) && count < 256; at += strlen(at) + 1)
        sorted[count++] = at;
    qsort(sorted, count, sizeof(*sorted), by_text);
    for (size_t i = 0; i < count; i++) {
        ssize_t len = lgetxattr(path, sorted[i], value, sizeof(value));

        sum = 0;
        for (ssize_t k = 0; k < len; k++)
            add(&(uint64_t){ (unsigned char)value[k] }, 1);
        printf(" %s=%zd:%llx", sorted[i], len, (unsigned long long)sum);
    }
}

/* Hard links: the first name by which the same inode was seen. */
static struct seen {
    ino_t ino;
    char *name;
} links[1000];
static size_t n_links;

static const char *first_name(const struct stat *st, const char *name)
{
    for (size_t i = 0; i < n_links; i++)
        if (links[i].ino == st->st_ino)
            return links[i].name;
    if (n_links < sizeof(links) / sizeof(links[0]))
        links[n_links++] = (struct seen){ st->st_ino, strdup(name) };
    return name;
}

static void dump(const char *dir)
{
    struct dirent **names;
    int n = chdir(dir) < 0 ? -1 : scandir(".", &names, NULL, by_name);

    if (n < 0)
        die(dir);
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        char target[4096];
        struct stat st;

        if (strcmp(name, "..") == 0)
            continue;
        if (lstat(name, &st) < 0)
            die(name);
        for (const char *c = name; *c; c++)
            printf(*c > ' ' && *c < 127 ? "%c" : "%%%02x", (unsigned char)*c);
        printf(" %o %u:%u %llx %lld", st.st_mode, st.st_uid, st.st_gid,
               (unsigned long long)st.st_rdev, (long long)st.st_mtim.tv_sec);
        sum = 0;
        if (S_ISREG(st.st_mode))
            read_file(name);
        if (!S_ISDIR(st.st_mode))
            printf(" %lld %llu %llx", (long long)st.st_size, (unsigned long long)st.st_nlink,
                   (unsigned long long)sum);
        if (st.st_nlink > 1 && !S_ISDIR(st.st_mode))
            printf(" as %s", first_name(&st, name));
        if (S_ISLNK(st.st_mode))
            printf(" -> %.*s", (int)readlink(name, target, sizeof(target)), target);
        dump_attributes(name);
        printf("\n");
    }
    for (int i = 0; i < n; i++) {
        struct stat st;

        if (strcmp(names[i]->d_name, "..") != 0 && strcmp(names[i]->d_name, ".") != 0 &&
            lstat(names[i]->d_name, &st) == 0 && S_ISDIR(st.st_mode)) {
            printf("in %s\n", names[i]->d_name);
            dump(names[i]->d_name);
            if (chdir("..") < 0)
                die("..");
        }
        free(names[i]);
    }
    free(names);
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
    if (strcmp(what, "dump") == 0 && argc == 3) {
        dump(argv[2]);
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
