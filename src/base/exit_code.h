/* exit_code.h - what a process's end is reported as, as a shell does it. */
#pragma once

#define EXIT_NOT_STARTED 1u
#define EXIT_LOST 255u /* the exit status is unknown; also the largest code */
#define EXIT_BY_SIGNAL(n) (128u + (n))
#define EXIT_KILLED EXIT_BY_SIGNAL(9u)
