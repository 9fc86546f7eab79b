#include "guest/bridge/stacks.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_FILE 256

static void add_thread(struct sbuf *out, const char *tid)
{
    static const char *const files[] = { "comm", "wchan" };

    sbuf_addf(out, "thread %s", tid);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *text = file_text(SMALL_FILE, "/proc/self/task/%s/%s", tid, files[i]);

        if (text)
            sbuf_addf(out, " %s %.*s", files[i], (int)strcspn(text, "\n"), text);
    }
    sbuf_addc(out, '\n');
}

char *stacks_dump(struct loop *loop)
{
    struct sbuf out = { 0 };
    AUTO(closedir) DIR *dir = opendir("/proc/self/task");

    loop_dump(loop, &out);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            add_thread(&out, e->d_name);
    return sbuf_take(&out);
}

void stacks_log(struct loop *loop)
{
    AUTO_FREE char *text = stacks_dump(loop);
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        log_warn(NULL, "stacks", F_STR("line", line));
}
