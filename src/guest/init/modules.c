#include "guest/init/modules.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define ORDER_MAX_BYTES (256 * 1024)
#define CHAIN_MAX 64
#define NAME_MAX_BYTES 64

/* Nothing that leaves the directory: names become file names. */
static bool name_ok(const char *name)
{
    size_t len = strlen(name);

    return len <= NAME_MAX_BYTES && len == strspn(name, "0123456789abcdefghijklmnopqrstuvwxyz"
                                                        "ABCDEFGHIJKLMNOPQRSTUVWXYZ_-");
}

static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b))
            break;
    return *a == *b;
}

static int parse_chain(char *chain, const char *root, struct strv *ret_names, struct err *err)
{
    char *save = NULL, *last = NULL;
    size_t n = 0;

    for (char *name; (name = strtok_r(last ? NULL : chain, " \t\r", &save)); last = name) {
        if (!name_ok(name))
            return err_set(err, ERR_INVALID,
                           "invalid module order of %s: \"%.*s\" is not a module name", root,
                           NAME_MAX_BYTES, name);
        if (n++ == CHAIN_MAX)
            return err_set(err, ERR_INVALID, "invalid module order of %s: more than %d modules",
                           root, CHAIN_MAX);
        strv_add(ret_names, name);
    }
    if (!last || !same_name(last, root))
        return err_set(err, ERR_INVALID,
                       "invalid module order of %s: must end with the module itself", root);
    return 0;
}

int modules_order(const char *text, const char *root, struct strv *ret_names, struct err *err)
{
    AUTO_FREE char *copy = str_dup(text);

    for (char *rest = copy, *line; (line = strsep(&rest, "\n"));) {
        const char *name = strsep(&line, ":");

        if (line && same_name(name, root))
            return parse_chain(line, root, ret_names, err);
    }
    return err_set(err, ERR_NOT_FOUND, "module %s is not in the image", root);
}

static int insert_file(const char *dir, const char *name,
                       int (*insert)(void *arg, int fd, const char *name), void *arg,
                       struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s.ko", dir, name);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "open module %s", path);
    int r = insert(arg, fd, name);
    if (r < 0 && r != -EEXIST)
        return err_sys(err, -r, "load module %s", path);
    return 0;
}

int modules_load_from(const char *dir, const char *root,
                      int (*insert)(void *arg, int fd, const char *name), void *arg,
                      struct err *err)
{
    AUTO_FREE char *path = str_format("%s/order", dir), *text = NULL;
    AUTO(strv_release) struct strv names = { 0 };

    if (file_load(path, ORDER_MAX_BYTES, &text, err) < 0 ||
        modules_order(text, root, &names, err) < 0)
        return -1;
    for (size_t i = 0; i < names.n; i++)
        if (insert_file(dir, names.v[i], insert, arg, err) < 0)
            return names.n == 1 ? -1 : err_wrap(err, "for module %s", root);
    return 0;
}

/* With multipath the disk of an nvme device is not below that device in sysfs, so the agent could
 * not find it. */
static const char *parameters_of(const char *name)
{
    return same_name(name, "nvme_core") ? "multipath=N" : "";
}

static int insert_kernel(void *arg, int fd, const char *name)
{
    return syscall(SYS_finit_module, fd, parameters_of(name), 0) < 0 ? -errno : 0;
}

int modules_load(const char *root, struct err *err)
{
    AUTO_FREE char *dir = NULL, *present = str_format("/sys/module/%s", root);
    struct utsname u;

    for (char *c = present; *c; c++)
        if (*c == '-')
            *c = '_';
    /* Loaded, or built in with parameters. */
    if (access(present, F_OK) == 0)
        return 0;
    if (uname(&u) < 0)
        return err_sys(err, errno, "uname");
    dir = str_format("/lib/modules/%s", u.release);
    return modules_load_from(dir, root, insert_kernel, NULL, err);
}
