#include "host/jail/mountinfo.h"
#include "base/mem.h"

#include <string.h>

/* \040 and the like. In place. */
static char *unescape(char *text)
{
    char *to = text;

    for (const char *s = text; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
    return text;
}

/* "36 35 98:0 /root /point rw,noatime … - cgroup source rw,cpu" */
bool mountinfo_parse(char *line, struct mountinfo *ret)
{
    char *tail = strstr(line, " - "), *rest = line, *words[8];

    if (!tail)
        return false;
    *tail = '\0';
    tail += strlen(" - ");
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!(words[i] = strsep(i < 5 ? &rest : &tail, " ")))
            return false;
    *ret = (struct mountinfo){
        words[0],           words[2], unescape(words[3]), unescape(words[4]), words[5],
        unescape(words[6]), words[7]
    };
    return true;
}
