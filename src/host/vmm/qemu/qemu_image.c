#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct job {
    char *kernel, *initrd;
    int kernel_fd, initrd_fd;
};

static void job_free(void *arg)
{
    struct job *j = arg;

    free(j->kernel);
    free(j->initrd);
    fd_close(j->kernel_fd);
    fd_close(j->initrd_fd);
    free(j);
}

/* The first bytes go to head; fewer are ERR_DATA_LOSS. */
static int open_image(const char *what, const char *path, void *head, size_t len, int *ret,
                      struct err *err)
{
    struct stat st;
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT)
        return err_set(err, ERR_NOT_FOUND, "%s %s is not there; build it with 'make image'", what,
                       path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, errno, "open %s %s", what, path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "%s %s is no plain file", what, path);
    ssize_t n = fd_read_full(fd, head, len);
    if (n < 0)
        return err_sys(err, (int)-n, "read %s %s", what, path);
    if ((size_t)n < len)
        return err_set(err, ERR_DATA_LOSS,
                       "%s %s is damaged (%zd bytes); build it again with 'make image'", what, path,
                       n);
    *ret = TAKE_FD(fd);
    return 0;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    Elf64_Ehdr elf;
    char magic[6];

    if (open_image("kernel", j->kernel, &elf, sizeof(elf), &j->kernel_fd, err) < 0)
        return -1;
    if (memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
        elf.e_machine != EM_X86_64 || elf.e_phnum == 0)
        return err_set(
            err, ERR_DATA_LOSS,
            "kernel %s is damaged or no vmlinux (an ELF file for x86-64); build it again "
            "with 'make image'",
            j->kernel);
    if (open_image("initrd", j->initrd, magic, sizeof(magic), &j->initrd_fd, err) < 0)
        return -1;
    /* Ours is never compressed: the guest would take longer to unpack it than to read it. */
    if (memcmp(magic, "070701", 6) != 0)
        return err_set(err, ERR_DATA_LOSS,
                       "initrd %s is damaged or no cpio archive; build it again with 'make image'",
                       j->initrd);
    return 0;
}

int qemu_image_open(struct ctx *ctx, const char *kernel, const char *initrd, int *ret_kernel,
                    int *ret_initrd, struct err *err)
{
    struct job *j = mem_new(struct job);
    void *arg = j;

    j->kernel = str_dup(kernel);
    j->initrd = str_dup(initrd);
    j->kernel_fd = j->initrd_fd = -1;
    int r = offload_run(ctx, open_in_thread, &arg, job_free, "open the guest image", err);
    if (!arg)
        return -1;
    if (r == 0) {
        *ret_kernel = TAKE_FD(j->kernel_fd);
        *ret_initrd = TAKE_FD(j->initrd_fd);
    }
    job_free(j);
    return r;
}
