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
        AUTO_FREE char *path = str_format("/proc/self/task/%s/%s", tid, files[i]), *text = NULL;
        size_t len;
        if (file_read_all(path, SMALL_FILE, &text, &len) < 0)
            continue;
        text[strcspn(text, "\n")] = '\0';
        sbuf_addf(out, " %s %s", files[i], text);
    }
    sbuf_addc(out, '\n');
}

char *stacks_dump(struct loop *loop)
{
    struct sbuf out = { 0 };
    DIR *dir = opendir("/proc/self/task");

    loop_dump(loop, &out);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            add_thread(&out, e->d_name);
    if (dir)
        closedir(dir);
    return sbuf_take(&out);
}

void stacks_log(struct loop *loop)
{
    AUTO_FREE char *text = stacks_dump(loop);
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        log_warn(NULL, "stacks", F_STR("line", line));
}
