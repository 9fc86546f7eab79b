#include "guest/storage/pci.h"
#include "base/fd.h"
#include "base/str.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTRIBUTE_MAX 4096
#define MODULES_MAX 16
#define CLASS_STORAGE "0x01"

/* d matches a hexadecimal digit, any other character itself. */
static bool has_form(const char *s, const char *form)
{
    for (; *form; form++, s++)
        if (*form == 'd' ? !isxdigit((unsigned char)*s) : *s != *form)
            return false;
    return *s == '\0';
}

int pci_find(const char *sys, const char *place, char **ret_dir)
{
    if (strlen(place) >= PCI_PLACE_MAX || !has_form(place, "dddd:dd:dd.d/dd.d"))
        return -EINVAL;
    AUTO_FREE char *port = str_format("%s/bus/pci/devices/%.12s", sys, place);
    AUTO_FREE char *real = realpath(port, NULL);
    AUTO(closedir) DIR *dir = real ? opendir(real) : NULL;
    int r = -ENXIO;

    for (struct dirent *e; dir && r < 0 && (e = readdir(dir));) {
        if (!has_form(e->d_name, "dddd:dd:dd.d") || strcmp(e->d_name + 8, place + 13) != 0)
            continue;
        *ret_dir = str_format("%s/%s", real, e->d_name);
        r = 0;
    }
    return r;
}

/* A rescan of the bus takes the lock under which the device is being added. */
int pci_settle(const char *sys, const char *place)
{
    AUTO_FREE char *list = str_format("%s/bus/pci/devices/%.12s/pci_bus", sys, place);
    AUTO(closedir) DIR *dir = opendir(list);
    int r = -ENXIO;

    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        AUTO_FREE char *path = str_format("%s/%s/rescan", list, e->d_name);
        r = file_put(path, "1");
    }
    return r;
}

static char *attribute(const char *dir, const char *name)
{
    char *text = file_text(ATTRIBUTE_MAX, "%s/%s", dir, name);

    if (text)
        text[strcspn(text, "\n")] = '\0';
    return text;
}

static bool has_name(const struct strv *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (str_eq(l->v[i], name))
            return true;
    return false;
}

int pci_modules(const char *dir, const char *aliases, struct strv *ret)
{
    AUTO_FREE char *modalias = attribute(dir, "modalias"), *text = str_dup(aliases);

    if (!modalias)
        return -ENXIO;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        char *words = NULL, *word = strtok_r(line, " ", &words);
        char *pattern = strtok_r(NULL, " ", &words), *name = strtok_r(NULL, " ", &words);

        if (!str_eq(word, "alias") || !pattern || !name || fnmatch(pattern, modalias, 0) != 0)
            continue;
        if (ret->n < MODULES_MAX && !has_name(ret, name))
            strv_add(ret, name);
    }
    return 0;
}

bool pci_has_driver(const char *dir)
{
    AUTO_FREE char *path = str_format("%s/driver", dir);

    return access(path, F_OK) == 0;
}

/* One entry of /sys/dev/char or block: "8:0", a symlink to the device that has this number. */
static void look_node(const char *list, const char *name, char type, const char *dir,
                      void (*fn)(void *arg, const struct pci_node *n), void *arg)
{
    AUTO_FREE char *entry = str_format("%s/%s", list, name), *real = realpath(entry, NULL);
    struct pci_node n = { .type = type };
    size_t len = strlen(dir);
    char *colon = NULL;

    n.major = (unsigned)strtoul(name, &colon, 10);
    if (!real || strncmp(real, dir, len) != 0 || real[len] != '/' || *colon != ':')
        return;
    n.minor = (unsigned)strtoul(colon + 1, NULL, 10);
    AUTO_FREE char *text = file_text(ATTRIBUTE_MAX, "%s/uevent", real);
    if (!text)
        return;
    const char *at = str_starts(text, "DEVNAME=") ? text : strstr(text, "\nDEVNAME=");
    if (!at)
        return;
    at = strchr(at, '=') + 1;
    AUTO_FREE char *node = str_format("/dev/%.*s", (int)strcspn(at, "\n"), at);
    n.path = node;
    fn(arg, &n);
}

int pci_nodes(const char *sys, const char *dir, void (*fn)(void *arg, const struct pci_node *n),
              void *arg)
{
    static const char *const lists[] = { "char", "block" };

    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        AUTO_FREE char *list = str_format("%s/dev/%s", sys, lists[i]);
        AUTO(closedir) DIR *d = opendir(list);

        if (!d)
            return -errno;
        for (struct dirent *e; (e = readdir(d));)
            if (e->d_name[0] != '.')
                look_node(list, e->d_name, lists[i][0], dir, fn, arg);
    }
    return 0;
}

static void see_disk(void *arg, const struct pci_node *n)
{
    *(bool *)arg = *(bool *)arg || n->type == 'b';
}

bool pci_lacks_disk(const char *sys, const char *dir)
{
    AUTO_FREE char *class = attribute(dir, "class");
    bool has_disk = false;

    if (!class || !str_starts(class, CLASS_STORAGE) || !pci_has_driver(dir))
        return false;
    return pci_nodes(sys, dir, see_disk, &has_disk) == 0 && !has_disk;
}
