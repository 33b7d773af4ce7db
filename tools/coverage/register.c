// A part of each program and library that counts its executed lines: the counts are written when the process leaves by
// _exit as well (at_exit.c). libgcov is a part of each, so each has counts and a function of its own.
#include <stddef.h>

void __gcov_dump(void);
__attribute__((weak)) void lockstep_write_at_exit(void (*write)(void));

__attribute__((constructor)) static void Register(void) {
  if (lockstep_write_at_exit != NULL) lockstep_write_at_exit(__gcov_dump);
}
