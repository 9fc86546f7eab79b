/* console.h - lines of PID 1 on the console, where the host reads how far the boot has come. Each
 * line is one write(2); a missing console falls back to the kernel's log. Never waits for anybody
 * but the console's driver. */
#pragma once

/* "lcow: " and a line feed are added. At most 512 bytes. */
void console_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
