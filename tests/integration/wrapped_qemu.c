/* wrapped_qemu.c - the real QEMU, which is appended to this program, with "-accel kvm" replaced by
 * emulation: for tests of what lcow does where KVM works. Static, since it runs in the jail, where
 * nothing but one program is. The last 8 bytes of the file are the length of what is appended. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

static int fail(const char *what)
{
    perror(what);
    return 120;
}

int main(int argc, char **argv)
{
    int self = open((const char *)getauxval(AT_EXECFN), O_RDONLY | O_CLOEXEC);
    int qemu = memfd_create("qemu", MFD_CLOEXEC);
    const char **args = calloc((size_t)argc + 5, sizeof(*args));
    uint64_t len = 0;
    int n = 0;
    off_t end = lseek(self, 0, SEEK_END) - (off_t)sizeof(len);

    if (self < 0 || qemu < 0 || !args || pread(self, &len, sizeof(len), end) != sizeof(len))
        return fail("wrapped_qemu: find the program");
    for (off_t at = end - (off_t)len; at < end;)
        if (sendfile(qemu, self, &at, (size_t)(end - at)) <= 0)
            return fail("wrapped_qemu: copy the program");
    args[n++] = "/usr/bin/qemu-system-x86_64"; /* from where it looks for its firmware */
    for (int i = 1; i < argc; i++) {
        bool accel = strcmp(argv[i - 1], "-accel") == 0, cpu = strcmp(argv[i - 1], "-cpu") == 0;

        if (accel && strcmp(argv[i], "kvm") == 0)
            args[n++] = "tcg,thread=single,tb-size=64";
        else if (cpu && strncmp(argv[i], "host", 4) == 0)
            args[n++] = "max,-la57,-erms,-fsrm";
        else
            args[n++] = argv[i];
    }
    args[n++] = "-L";
    args[n++] = "/usr/share/qemu";
    args[n++] = "-L";
    args[n++] = "/usr/share/seabios";
    setenv("QEMU_MODULE_DIR", "/usr/lib/x86_64-linux-gnu/qemu", 1);
    syscall(SYS_execveat, qemu, "", args, environ, AT_EMPTY_PATH);
    return fail("wrapped_qemu: run the program");
}
