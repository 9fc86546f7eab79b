#include "tool/cmd_doctor.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool doctor_parse_version(const char *text, struct doctor_version *ret)
{
    for (const char *p = text; *p; p++) {
        unsigned major, minor;

        char before = p > text ? p[-1] : ' ';
        bool letter_v = before == 'v' && (p == text + 1 || isspace((unsigned char)p[-2]));

        if (!isdigit((unsigned char)*p) ||
            ((isalnum((unsigned char)before) || before == '.') && !letter_v))
            continue;
        if (sscanf(p, "%4u.%4u", &major, &minor) == 2) {
            *ret = (struct doctor_version){ major, minor };
            return true;
        }
    }
    return false;
}

bool doctor_has_device(const char *help, const char *device)
{
    AUTO_FREE char *wanted = str_format("name \"%s\"", device);

    return strstr(help, wanted) != NULL;
}

bool doctor_has_word(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = text; (p = strstr(p, word)); p += len) {
        bool starts = p == text || isspace((unsigned char)p[-1]);
        bool ends = !p[len] || isspace((unsigned char)p[len]);

        if (starts && ends)
            return true;
    }
    return false;
}

bool doctor_parse_available(const char *meminfo, uint64_t *ret_mib)
{
    const char *p = strstr(meminfo, "MemAvailable:");
    unsigned long long kib;

    if (!p || sscanf(p, "MemAvailable: %llu kB", &kib) != 1)
        return false;
    *ret_mib = kib / 1024;
    return true;
}

bool doctor_cgroup_v1_has(const char *cgroups, const char *controller)
{
    for (const char *line = cgroups; *line;) {
        size_t n = strcspn(line, "\n");
        AUTO_FREE char *copy = str_ndup(line, n);
        char name[32];
        int hierarchy, count, enabled;

        if (sscanf(copy, "%31s %d %d %d", name, &hierarchy, &count, &enabled) == 4 &&
            str_eq(name, controller))
            return enabled == 1 && hierarchy > 0;
        line += n + (line[n] == '\n');
    }
    return false;
}

bool doctor_containerd_has_runtime(const char *toml)
{
    for (const char *line = toml; *line;) {
        size_t n = strcspn(line, "\n");
        AUTO_FREE char *copy = str_ndup(line, n);

        copy[strcspn(copy, "#")] = '\0';
        if (strstr(copy, "runtime_type") && strstr(copy, "io.containerd.lcow.v2"))
            return true;
        line += n + (line[n] == '\n');
    }
    return false;
}
