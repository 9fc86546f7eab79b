#include "host/jail/cgroup_oom.h"
#include "base/fd.h"
#include "base/str.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
#define SMALL_FILE 4096
#define MIB (UINT64_C(1) << 20)

/* A line "key 123" of a file. */
static bool counter(const char *text, const char *key, uint64_t *ret)
{
    size_t len = strlen(key);

    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, key, len) == 0 && line[len] == ' ') {
            *ret = strtoull(line + len, NULL, 10);
            return true;
        }
    return false;
}

/* The path of the level-th cgroup above; NULL: there are not so many. Caller frees. */
static char *above(const struct oom_watch *w, unsigned level)
{
    size_t len = strlen(w->path);

    for (; level > 0 && len > 0; level--)
        while (len > 0 && w->path[--len] != '/')
            ;
    return level > 0 || (len == 0 && w->path[0]) ? NULL : str_ndup(w->path, len);
}

static struct oom_count count(const struct oom_watch *w, unsigned level)
{
    AUTO_FREE char *path = above(w, level), *all = NULL, *local = NULL;
    struct oom_count c = { 0 };

    if (path)
        all = file_text(SMALL_FILE, "%s%s/%s", w->mount, path,
                        w->v2 ? "memory.events" : "memory.oom_control");
    if (path && w->v2)
        local = file_text(SMALL_FILE, "%s%s/memory.events.local", w->mount, path);
    c.known = counter(all, "oom_kill", &c.kills);
    (void)counter(local, "oom", &c.local);
    return c;
}

void oom_watch_begin_on(struct oom_watch *w, const char *root, const char *cgroup)
{
    const char *v1 = strstr(cgroup, ":memory:"), *v2 = strstr(cgroup, "0::"),
               *at = v1   ? v1 + strlen(":memory:")
                     : v2 ? v2 + strlen("0::")
                          : NULL;

    *w = (struct oom_watch){ .v2 = !v1 };
    if (!at)
        return;
    w->mount = v1 ? str_format("%s/memory", root) : str_dup(root);
    w->path = str_ndup(at, strcspn(at, "\n"));
    if (str_eq(w->path, "/"))
        w->path[0] = '\0';
    for (unsigned i = 0; i < (v1 ? 1u : OOM_LEVELS); i++)
        w->before[i] = count(w, i);
}

void oom_watch_begin(struct oom_watch *w, pid_t pid)
{
    AUTO_FREE char *text = file_text(64 * 1024, "/proc/%d/cgroup", pid);

    oom_watch_begin_on(w, CGROUP_ROOT, text ? text : "");
}

/* What memory.events and the pressure tell about the cgroup whose limit was reached. */
static char *say_limit(const struct oom_watch *w, unsigned level)
{
    AUTO_FREE char *path = above(w, level),
                   *max = file_text(SMALL_FILE, "%s%s/memory.max", w->mount, path),
                   *events = file_text(SMALL_FILE, "%s%s/memory.events", w->mount, path),
                   *pressure = file_text(SMALL_FILE, "%s%s/memory.pressure", w->mount, path);
    const char *full = pressure ? strstr(pressure, "full avg10=") : NULL,
               *name = strrchr(path, '/');
    uint64_t limit = max ? strtoull(max, NULL, 10) : 0, hits = 0, ooms = 0, kills = 0;
    AUTO_FREE char *stalled =
        full ? str_format(", stalled %.*s %% of the last 10 s",
                          (int)strspn(full + strlen("full avg10="), "0123456789."),
                          full + strlen("full avg10="))
             : str_dup("");

    (void)counter(events, "max", &hits);
    (void)counter(events, "oom", &ooms);
    (void)counter(events, "oom_kill", &kills);
    return str_format("cgroup %s reached its memory limit of %" PRIu64 " MiB (memory.events: max "
                      "%" PRIu64 ", oom %" PRIu64 ", oom_kill %" PRIu64 "%s)",
                      name ? name + 1 : path, limit / MIB, hits, ooms, kills, stalled);
}

bool oom_watch_hit(const struct oom_watch *w, char **ret_why)
{
    bool hit = false;

    *ret_why = str_dup("");
    for (unsigned i = 0; w->path && i < OOM_LEVELS && w->before[i].known; i++) {
        struct oom_count now = count(w, i);

        if (!hit && now.known && now.kills == w->before[i].kills)
            return false;
        hit = hit || now.known;
        if (now.local > w->before[i].local) {
            free(*ret_why);
            *ret_why = say_limit(w, i);
            return true;
        }
    }
    if (hit && w->v2) {
        free(*ret_why);
        *ret_why = str_dup("the host ran out of memory; no cgroup limit was reached");
    }
    return hit;
}

void oom_watch_release(struct oom_watch *w)
{
    free(TAKE_PTR(w->mount));
    free(TAKE_PTR(w->path));
}
