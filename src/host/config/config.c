#include "host/config/config.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MAX_BYTES (256 * 1024)
#define CONFIG_LINE_MAX 190 /* libinih's buffer holds 200 */

/* Programs run from a build tree (build/bin) find the image beside them. */
static char *default_image_dir(void)
{
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    for (int up = 0; n > 0 && up < 2; up++) {
        while (n > 0 && exe[n - 1] != '/')
            n--;
        n--;
    }
    if (n > 0) {
        exe[n] = '\0';
        AUTO_FREE char *dir = str_format("%s/image", exe);
        AUTO_FREE char *manifest = str_format("%s/manifest.json", dir);

        if (access(manifest, F_OK) == 0)
            return TAKE_PTR(dir);
    }
    return str_dup(CONFIG_IMAGE_DIR);
}

void config_init(struct config *c)
{
    struct err err = ERR_INIT;

    *c = (struct config){ 0 };
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];

        if (k->def && config_key_set(c, k, k->def, &err) < 0)
            abort(); /* the table contradicts itself */
    }
    c->image_dir = default_image_dir();
}

void config_release(struct config *c)
{
    for (size_t i = 0; i < config_n_keys; i++) {
        const struct config_key *k = &config_keys[i];
        char **field = (char **)((char *)c + k->offset);

        if (k->type == KEY_PATH || k->type == KEY_PROGRAM || k->type == KEY_WORDS ||
            k->type == KEY_CGROUP)
            free(TAKE_PTR(*field));
    }
    strv_release(&c->default_annotations);
}

void config_report_release(struct config_report *r)
{
    strv_release(&r->errors);
    strv_release(&r->files);
    for (size_t i = 0; i < ARRAY_LEN(r->origin); i++)
        free(TAKE_PTR(r->origin[i]));
}

/* ------------------------------------------------------------------ one value */

static int refuse(const char *place, const char *what, struct config_report *report,
                  struct err *err)
{
    if (!report)
        return err_set(err, ERR_INVALID, "%s: %s", place, what);
    strv_addf(&report->errors, "%s: %s", place, what);
    return 0;
}

int config_take(struct config *c, const char *place, const char *section, const char *name,
                const char *value, struct config_report *report, struct err *err)
{
    struct err why = ERR_INIT;
    const struct config_key *k = config_key_find(section, name, &why);

    if (!k)
        return refuse(place, why.msg, report, err);
    if (config_key_set(c, k, value, &why) < 0) {
        AUTO_FREE char *what = str_format("%s = %s: %s", name, value, why.msg);

        return refuse(place, what, report, err);
    }
    if (report) {
        char **origin = &report->origin[k - config_keys];

        free(*origin);
        *origin = str_dup(place);
    }
    return 0;
}

/* ------------------------------------------------------------------ reading one file */

struct source {
    struct config *c;
    const char *name;
    const char *at, *end;
    unsigned line; /* the one libinih got last; its own count is not told to handlers */
    bool failed;
    struct config_report *report; /* or NULL */
    struct err *err;
};

static void refuse_line(struct source *s, const char *what)
{
    AUTO_FREE char *place = str_format("%s:%u", s->name, s->line);

    s->failed = refuse(place, what, s->report, s->err) < 0;
}

/* Before one of `wanted` comes neither the end nor a comment (as libinih sees it). */
static bool reaches(const char *at, const char *end, const char *wanted)
{
    for (bool blank = false; at < end; blank = *at == ' ' || *at == '\t', at++) {
        if (strchr(wanted, *at))
            return true;
        if (blank && *at == ';')
            return false;
    }
    return false;
}

/* libinih tells only the first line that it does not understand; we tell all. */
static const char *wrong_line(const char *at, size_t len, size_t size)
{
    const char *end = at + len;

    if (memchr(at, '\0', len))
        return "the line is not text";
    if (len > CONFIG_LINE_MAX || len + 2 > size)
        return "the line is longer than 190 characters";
    while (end > at && (end[-1] == '\r' || end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (at == end || *at == '#' || *at == ';')
        return NULL;
    if (*at == '[' ? reaches(at + 1, end, "]") : reaches(at, end, "=:"))
        return NULL;
    return "neither [section] nor key = value";
}

/* fgets for libinih. Indentation goes: to libinih it would mean a continued value. */
static char *next_line(char *buf, int size, void *arg)
{
    struct source *s = arg;
    const char *wrong, *nl, *stop;
    size_t len;

    if (s->at == s->end || s->failed)
        return NULL;
    nl = memchr(s->at, '\n', (size_t)(s->end - s->at));
    stop = nl ? nl : s->end;
    s->line++;
    while (s->at < stop && (*s->at == ' ' || *s->at == '\t'))
        s->at++;
    len = (size_t)(stop - s->at);
    wrong = wrong_line(s->at, len, (size_t)size);
    if (wrong) {
        refuse_line(s, wrong);
        len = 0;
    }
    if (s->failed)
        return NULL;
    memcpy(buf, s->at, len);
    buf[len] = '\n';
    buf[len + 1] = '\0';
    s->at = nl ? nl + 1 : s->end;
    return buf;
}

static int on_value(void *arg, const char *section, const char *name, const char *value)
{
    struct source *s = arg;

    if (s->failed)
        return 0;
    AUTO_FREE char *place = str_format("%s:%u", s->name, s->line);

    s->failed = config_take(s->c, place, section, name, value, s->report, s->err) < 0;
    return !s->failed;
}

int config_parse(struct config *c, const char *name, const char *text, size_t len,
                 struct config_report *report, struct err *err)
{
    struct source s = {
        .c = c, .name = name, .at = text, .end = text + len, .report = report, .err = err
    };
    int r = ini_parse_stream(next_line, &s, on_value, &s);

    if (s.failed)
        return -1;
    if (r != 0) {
        s.line = (unsigned)r;
        refuse_line(&s, "neither [section] nor key = value");
    }
    return s.failed ? -1 : 0;
}

/* ------------------------------------------------------------------ reading all files */

int config_read_file(struct config *c, const char *path, struct config_report *report,
                     struct err *err)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    int r = file_read_all(path, CONFIG_MAX_BYTES, &text, &len);

    if (r < 0 && report)
        return refuse(path, strerror(-r), report, err);
    if (r < 0)
        return err_sys(err, -r, "read configuration %s", path);
    if (report)
        strv_add(&report->files, path);
    return config_parse(c, path, text, len, report, err);
}

static int is_conf(const struct dirent *d)
{
    return d->d_name[0] != '.' && str_ends(d->d_name, ".conf");
}

static int read_dir(struct config *c, const char *dir, struct config_report *report,
                    struct err *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_conf, alphasort), r = 0;

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read configuration %s", dir);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name);

        if (r == 0)
            r = config_read_file(c, path, report, err);
        free(names[i]);
    }
    free(names);
    return r;
}

int config_read(struct config *c, const char *path, struct config_report *report, struct err *err)
{
    bool named = true;

    if (!path)
        path = getenv(CONFIG_ENV);
    if (!path || !*path) {
        path = CONFIG_PATH;
        named = false;
    }
    AUTO_FREE char *dir = str_format("%s.d", path);

    if ((named || access(path, F_OK) == 0) && config_read_file(c, path, report, err) < 0)
        return -1;
    return read_dir(c, dir, report, err);
}

int config_load(struct config *c, const char *path, struct err *err)
{
    return config_read(c, path, NULL, err);
}
