// A library for LD_PRELOAD: _exit calls what register.c has registered.
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 64

static void (*writers[MOST])(void);
static int count;

void lockstep_write_at_exit(void (*write)(void)) {
  if (count == MOST) abort();
  writers[count++] = write;
}

void _exit(int code) {
  const int had = count;
  count = 0;  // a signal's handler may call _exit meanwhile
  for (int i = 0; i < had; ++i) writers[i]();
  for (;;) syscall(SYS_exit_group, code);
}
