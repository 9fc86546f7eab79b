#include "guest/bridge/stages.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

void stages_add(struct stages *s, const char *name, uint64_t start_ns, uint64_t end_ns)
{
    if (s->n == STAGES_MAX)
        return;
    snprintf(s->v[s->n].name, STAGES_NAME, "%s", name);
    s->v[s->n].start_ns = start_ns;
    s->v[s->n].end_ns = end_ns;
    s->n++;
}

/* name=start-end; cuts the text apart. */
static int parse_one(char *item, struct stages *s)
{
    char *start = strchr(item, '='), *end = start ? strchr(start, '-') : NULL;
    uint64_t from, to;

    if (!end || start == item || start - item >= STAGES_NAME ||
        strspn(item, "abcdefghijklmnopqrstuvwxyz") != (size_t)(start - item))
        return -1;
    *start++ = *end++ = '\0';
    if (str_to_u64(start, UINT64_MAX, &from) < 0 || str_to_u64(end, UINT64_MAX, &to) < 0)
        return -1;
    stages_add(s, item, from, to);
    return 0;
}

int stages_parse(struct stages *s, const char *text, struct err *err)
{
    AUTO_FREE char *copy = str_dup(text);
    struct stages found = *s;
    char *save = NULL;

    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
        if (parse_one(item, &found) < 0)
            return err_set(err, ERR_INVALID, "bad boot stage in \"%.100s\"", text);
    *s = found;
    return 0;
}

void stages_line(const struct stages *s, size_t i, uint64_t wall_ns, uint64_t now_ns,
                 struct sbuf *out)
{
    char time[CLOCK_RFC3339_SIZE];

    clock_rfc3339(wall_ns, time);
    sbuf_addf(out,
              "{\"time\":\"%s\",\"level\":\"info\",\"msg\":\"boot stage\",\"stage\":\"%s\","
              "\"start_ns\":%lu,\"end_ns\":%lu,\"boottime_ns\":%lu}\n",
              time, s->v[i].name, s->v[i].start_ns, s->v[i].end_ns, now_ns);
}
