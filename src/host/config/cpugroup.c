#include "host/config/cpugroup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int cpugroup_check_name(const char *name, struct err *err)
{
    size_t n = strlen(name), ok = isalnum((unsigned char)*name) ? 1 : 0;

    while (ok && (isalnum((unsigned char)name[ok]) || (name[ok] && strchr("._-", name[ok]))))
        ok++;
    if (n > 0 && n <= CPUGROUP_NAME_MAX && ok == n)
        return 0;
    return err_set(err, ERR_INVALID,
                   "invalid CPU group \"%.64s\": must be 1–%d letters, digits, '.', '_' or '-'",
                   name, CPUGROUP_NAME_MAX);
}

int cpugroup_check_cpus(const char *cpus, struct err *err)
{
    size_t n = strlen(cpus);

    if (n > 0 && n < CPUGROUP_CPUS_MAX && isdigit((unsigned char)*cpus) &&
        strspn(cpus, "0123456789,-") == n)
        return 0;
    return err_set(err, ERR_INVALID, "invalid list of CPUs \"%.64s\": must be like 0-3,8", cpus);
}

int cpugroup_read(const char *dir, const char *name, char **ret_cpus, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name), *text = NULL;
    size_t len;
    int r = cpugroup_check_name(name, err) < 0
                ? -EINVAL
                : file_read_all(path, CPUGROUP_CPUS_MAX, &text, &len);

    if (r == -EINVAL)
        return -1;
    if (r == -ENOENT)
        return err_set(err, ERR_NOT_FOUND,
                       "CPU group %s does not exist; create it with: lcow cpugroup create %s CPUS",
                       name, name);
    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    text[strcspn(text, " \t\r\n")] = '\0';
    if (cpugroup_check_cpus(text, err) < 0)
        return err_wrap(err, "%s", path);
    *ret_cpus = TAKE_PTR(text);
    return 0;
}

static int is_group(const struct dirent *d)
{
    struct err ignored = ERR_INIT;

    return cpugroup_check_name(d->d_name, &ignored) == 0;
}

int cpugroup_list(const char *dir, struct strv *ret, struct err *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_group, alphasort);

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read %s", dir);
    for (int i = 0; i < n; i++) {
        strv_add(ret, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return 0;
}

int cpugroup_write(const char *dir, const char *name, const char *cpus, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name), *line = str_format("%s\n", cpus);
    int r;

    if (cpugroup_check_name(name, err) < 0 || cpugroup_check_cpus(cpus, err) < 0)
        return -1;
    r = dir_make(dir, 0755);
    if (r == 0)
        r = file_replace(path, line, strlen(line), 0644);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}
