/* standalone_main.c - runs a fuzz target over files and over all files of directories, for
 * compilers without libFuzzer. Says how many it ran; no input at all is an error. */
#include "base/fd.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_MAX (64 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t n_run;

static int run_file(const char *path)
{
    AUTO_FREE char *text = NULL;
    AUTO_FREE void *exact = NULL;
    size_t len;
    int r = file_read_all(path, INPUT_MAX, &text, &len);

    if (r < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(-r));
        return -1;
    }
    /* No byte behind it, so that ASan sees who reads on. */
    exact = mem_dup(text, len);
    fprintf(stderr, "%s\n", path); /* the last line names the input of a crash */
    LLVMFuzzerTestOneInput(exact, len);
    n_run++;
    return 0;
}

static int run_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    int r = 0;

    if (!dir) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    while ((e = readdir(dir))) {
        AUTO_FREE char *file = str_format("%s/%s", path, e->d_name);

        if (e->d_name[0] != '.' && run_file(file) < 0)
            r = -1;
    }
    closedir(dir);
    return r;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 1; i < argc; i++) {
        struct stat st;

        if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode))
            failed |= run_dir(argv[i]) < 0;
        else
            failed |= run_file(argv[i]) < 0;
    }
    printf("%zu inputs\n", n_run);
    return failed || n_run == 0;
}
