/* template_identity.c - what a template depends on: files, QEMU, the processor. */
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include "host/template/template.h"

#include <elf.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMALL_MAX (1 << 20) /* is read whole */
#define SEGMENTS_MAX 64
#define NOTES_MAX 4096

char *template_file_identity(int fd)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return str_dup("-");
    return str_format("dev %llu inode %llu size %lld mtime %lld.%09ld ctime %lld.%09ld",
                      (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
                      (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                      (long long)st.st_ctim.tv_sec, st.st_ctim.tv_nsec);
}

/* The build id in these notes, as hexadecimal; caller frees. NULL: there is none. */
static char *find_build_id(const char *notes, size_t len)
{
    while (len >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr n;
        memcpy(&n, notes, sizeof(n));
        size_t name = ((size_t)n.n_namesz + 3) & ~(size_t)3,
               desc = ((size_t)n.n_descsz + 3) & ~(size_t)3;

        if (name > len - sizeof(n) || desc > len - sizeof(n) - name)
            return NULL;
        const char *at = notes + sizeof(n);
        if (n.n_type == NT_GNU_BUILD_ID && n.n_namesz == 4 && memcmp(at, "GNU", 4) == 0) {
            struct sbuf out = { 0 };

            for (size_t i = 0; i < n.n_descsz; i++)
                sbuf_addf(&out, "%02x", (unsigned char)at[name + i]);
            return sbuf_take(&out);
        }
        notes = at + name + desc;
        len -= sizeof(n) + name + desc;
    }
    return NULL;
}

static char *build_id(int fd)
{
    Elf64_Ehdr elf;
    Elf64_Phdr segment;
    char notes[NOTES_MAX];
    char *found = NULL;

    if (pread(fd, &elf, sizeof(elf), 0) != sizeof(elf) ||
        memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
        elf.e_phentsize != sizeof(segment))
        return NULL;
    for (unsigned i = 0; !found && i < elf.e_phnum && i < SEGMENTS_MAX; i++) {
        if (pread(fd, &segment, sizeof(segment), (off_t)(elf.e_phoff + i * sizeof(segment))) !=
            sizeof(segment))
            return NULL;
        if (segment.p_type != PT_NOTE)
            continue;
        ssize_t n = pread(fd, notes, segment.p_filesz < NOTES_MAX ? segment.p_filesz : NOTES_MAX,
                          (off_t)segment.p_offset);
        if (n > 0)
            found = find_build_id(notes, (size_t)n);
    }
    return found;
}

char *template_program_identity(int fd)
{
    AUTO_FREE char *id = build_id(fd);
    struct stat st;

    if (fstat(fd, &st) < 0)
        return str_dup("-");
    if (id && *id)
        return str_format("build %s size %lld", id, (long long)st.st_size);
    if (S_ISREG(st.st_mode) && st.st_size <= SMALL_MAX) {
        AUTO_FREE char *path = str_format("/proc/self/fd/%d", fd);
        char hex[SHA256_HEX_SIZE];

        if (sha256_sparse_file(path, hex) == 0)
            return str_format("sha256 %s", hex);
    }
    return template_file_identity(fd);
}

char *template_cpu_identity(const char *cpuinfo)
{
    static const char *const wanted[] = { "vendor_id",  "cpu family", "model\t",
                                          "model name", "stepping",   "flags" };
    struct sbuf out = { 0 };

    /* The first processor's; an empty line ends it. */
    for (const char *line = cpuinfo; *line && *line != '\n';) {
        size_t n = strcspn(line, "\n");

        for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
            if (str_starts(line, wanted[i]))
                sbuf_addf(&out, "%.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    return sbuf_take(&out);
}
