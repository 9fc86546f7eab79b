/* qmp_puppet.h - what the puppets that stand in for QEMU at hot-plug have in common: QMP's lines
 * and answers, the descriptors that come along, and the part they play. A puppet keeps the books as
 * QEMU does, refuses what QEMU refuses, and misbehaves as the VM's name asks for:
 * "HOW.COMMAND@…"; each says for itself which HOWs it knows. What QEMU would choke on ends it with
 * status 7; quit with something left ends it with status 9. Runs in the real jail: nothing but
 * libc. */
#pragma once
#include <stdbool.h>

/* cmd: the command of line. Answers it. */
typedef void puppet_handler(const char *cmd, const char *line);

/* To the end of main. is_left: asked at quit. */
int puppet_run(int argc, char **argv, puppet_handler *handle, bool (*is_left)(void));

/* HOW to misbehave at this command, "" for not at all. Once, but "deaf" until puppet_behave. */
const char *puppet_how(const char *cmd);
void puppet_behave(void);

/* Answers to the line that is being handled. why: NULL if it was done. */
void puppet_answer(const char *why);
void puppet_refuse(const char *class, const char *desc);
/* The event of a device that is gone. */
void puppet_deleted(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void puppet_choke(const char *what);

/* The number behind key in line; chokes if there is none. */
unsigned puppet_number(const char *line, const char *key);
/* The descriptor that came last, which the caller then owns; -1 if there is none. */
int puppet_take_fd(void);
