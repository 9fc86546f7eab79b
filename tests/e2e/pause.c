/* pause - the program of a pod's first container: waits for a signal to exit, and reaps its
 * children. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_end(int signo)
{
    _exit(signo == SIGTERM || signo == SIGINT ? 0 : 1);
}

static void on_child(int signo)
{
    (void)signo;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

int main(void)
{
    const struct sigaction end = { .sa_handler = on_end };
    const struct sigaction child = { .sa_handler = on_child, .sa_flags = SA_NOCLDSTOP };

    if (sigaction(SIGTERM, &end, NULL) < 0 || sigaction(SIGINT, &end, NULL) < 0 ||
        sigaction(SIGCHLD, &child, NULL) < 0)
        return 2;
    for (;;)
        pause();
}
