/* devices.c - nodes in the guest's own /dev. devtmpfs never blocks. */
#include "guest/runtime/devices.h"
#include "base/fd.h"
#include "base/str.h"
#include "guest/runtime/rewrite.h"
#include "guest/storage/pci.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DEPTH_MAX 8

static int find_device(void *arg, const char *path, struct rewrite_device *ret)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return -errno;
    if (!S_ISCHR(st.st_mode) && !S_ISBLK(st.st_mode))
        return -ENODEV;
    *ret = (struct rewrite_device){
        .type = S_ISCHR(st.st_mode) ? 'c' : 'b',
        .major = major(st.st_rdev),
        .minor = minor(st.st_rdev),
        .uid = st.st_uid,
        .gid = st.st_gid,
    };
    return 0;
}

static int read_symlink(void *arg, const char *path, char **ret)
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof(target) - 1);

    if (n < 0)
        return -errno;
    *ret = str_ndup(target, (size_t)n);
    return 0;
}

static bool is_private(const char *name)
{
    static const char *const names[] = { "console", "pts", "shm", "fd", "mqueue", "ptmx" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return name[0] == '.';
}

static void walk(const char *dir, unsigned depth,
                 void (*fn)(void *arg, const char *path, const struct rewrite_device *d), void *arg)
{
    AUTO(closedir) DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;

    for (struct dirent *e; d && (e = readdir(d));) {
        AUTO_FREE char *path = str_format("%s/%s", dir, e->d_name);
        struct rewrite_device device;

        if (e->d_name[0] == '.' || (depth == 0 && is_private(e->d_name)))
            continue;
        if (e->d_type == DT_DIR)
            walk(path, depth + 1, fn, arg);
        else if (find_device(NULL, path, &device) == 0)
            fn(arg, path, &device);
    }
}

static void each_device(void *arg,
                        void (*fn)(void *fn_arg, const char *path, const struct rewrite_device *d),
                        void *fn_arg)
{
    walk("/dev", 0, fn, fn_arg);
}

struct nodes {
    void (*fn)(void *arg, const char *path, const struct rewrite_device *d);
    void *arg;
};

static void pass_node(void *arg, const struct pci_node *n)
{
    const struct nodes *to = arg;
    const struct rewrite_device d = { .type = n->type, .major = n->major, .minor = n->minor };

    to->fn(to->arg, n->path, &d);
}

static int each_node(void *arg, const char *place,
                     void (*fn)(void *fn_arg, const char *path, const struct rewrite_device *d),
                     void *fn_arg)
{
    struct nodes to = { fn, fn_arg };
    AUTO_FREE char *dir = NULL;
    int r = pci_find("/sys", place, &dir);

    return r < 0 ? r : pci_nodes("/sys", dir, pass_node, &to);
}

void devices_env(struct rewrite_env *env)
{
    env->each_node = each_node;
    env->find_device = find_device;
    env->read_symlink = read_symlink;
    env->each_device = each_device;
}
