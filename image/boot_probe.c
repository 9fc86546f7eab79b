/* boot_probe.c - replaces the agent when image/test_boot.py boots an image: as PID 1 it tests what
 * the agent relies on, prints the results on the console, and powers off. Each result is a line
 * "probe NAME VALUE"; VALUE is "ok" or the error. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char modules_dir[128];

static void say(const char *name, const char *value)
{
    printf("probe %s %s\n", name, value);
}

static double uptime(void)
{
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* 0, or -errno. Success if the module is loaded already. */
static int load_module(const char *name)
{
    char path[256];
    int fd, r;

    snprintf(path, sizeof(path), "%s/%s.ko", modules_dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    r = syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST ? -errno : 0;
    close(fd);
    return r;
}

/* Loads what the line "NAME: FIRST... NAME" of the order file lists; only NAME, or all if NULL. */
static void load_in_order(const char *only)
{
    char path[256], line[1024];
    FILE *order;

    snprintf(path, sizeof(path), "%s/order", modules_dir);
    order = fopen(path, "re");
    if (!order) {
        say("order-file", strerror(errno));
        return;
    }
    while (fgets(line, sizeof(line), order)) {
        char *rest = line, *root = strsep(&rest, ":"), *name;
        char result[256] = "ok", label[128];

        if (only && strcmp(root, only) != 0)
            continue;
        while ((name = strsep(&rest, " \n")) && strcmp(result, "ok") == 0) {
            int r = *name ? load_module(name) : 0;

            if (r < 0)
                snprintf(result, sizeof(result), "%s: %s", name, strerror(-r));
        }
        snprintf(label, sizeof(label), "module:%s", root);
        say(label, result);
    }
    fclose(order);
}

static void run_program(const char *label, char *const argv[])
{
    char result[64] = "ok";
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        execv(argv[0], argv);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        snprintf(result, sizeof(result), "status %#x", status);
    say(label, result);
}

int main(void)
{
    double started = uptime();
    struct utsname uts;
    char text[64];

    setvbuf(stdout, NULL, _IOLBF, 0);
    uname(&uts);
    say("release", uts.release);
    snprintf(text, sizeof(text), "%.2f", started);
    say("init-at", text);
    snprintf(modules_dir, sizeof(modules_dir), "/lib/modules/%s", uts.release);

    if (mount("proc", "/proc", "proc", 0, NULL) < 0 || mount("sys", "/sys", "sysfs", 0, NULL) < 0 ||
        mount("dev", "/dev", "devtmpfs", 0, NULL) < 0)
        say("mounts", strerror(errno));

    /* Needed at boot. */
    load_in_order("virtio_pci");
    load_in_order("virtio_net");
    say("eth0", access("/sys/class/net/eth0", F_OK) == 0 ? "ok" : "missing");
    snprintf(text, sizeof(text), "%.2f", uptime());
    say("network-at", text);

    /* The kernel loads missing modules through /sbin/modprobe. Once ext4 is loaded, mounting
     * without a device does not fail with ENODEV. */
    (void)mount("none", "/mnt", "ext4", 0, NULL); /* fails by design; errno is the result */
    say("autoload", errno == ENODEV ? "ext4 was not loaded on demand" : "ok");

    load_in_order(NULL);
    run_program("crun", (char *[]){ "/bin/crun", "--version", NULL });
    run_program("shell",
                (char *[]){ "/bin/sh", "-c", "test $(id -u) = 0 && ls -l /usr/bin/awk", NULL });
    say("finished", "ok");
    fflush(stdout);
    reboot(RB_POWER_OFF);
    return 1;
}
