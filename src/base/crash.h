/* crash.h - a process that dies of a fault of its own (SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE)
 * logs a backtrace first: one line to the log's sink and, as JSON, to another file. Then the signal
 * has its default effect, a core file included.
 *
 * The backtrace is what lies on the stack and looks like a return address, newest first, after the
 * instruction itself, as "module+0xOFFSET": `addr2line -fe MODULE OFFSET` finds the line. Old
 * addresses that were not overwritten may be among them: the programs have neither frame pointers
 * nor unwind tables, which would cost memory in each process. */
#pragma once

struct loop;

/* fd: -1, or what log_aside() writes to. loop may be NULL; it names the fiber that runs. May be
 * called again with another fd. Not under a sanitizer, which has a report of its own. */
void crash_install(int fd, const struct loop *loop);
