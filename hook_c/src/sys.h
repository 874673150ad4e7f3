// SPDX-License-Identifier: Apache-2.0
/* System calls that are no cancellation points: a thread that is cancelled inside a call of the
 * driver would leave our words locked. They also need nothing but libc.so.6. errno as usual. */
#ifndef VGPU_SYS_H
#define VGPU_SYS_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int sys_open(const char *path, int flags, unsigned int mode)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline int sys_close(int fd)
{
	return (int)syscall(SYS_close, fd);
}

static inline ssize_t sys_read(int fd, void *buffer, size_t size)
{
	return syscall(SYS_read, fd, buffer, size);
}

static inline ssize_t sys_write(int fd, const void *buffer, size_t size)
{
	return syscall(SYS_write, fd, buffer, size);
}

static inline int sys_fcntl(int fd, int command, uintptr_t argument)
{
	return (int)syscall(SYS_fcntl, fd, command, argument);
}

static inline void sys_sleep_ns(long ns)
{
	const struct timespec wait = {.tv_nsec = ns};

	syscall(SYS_nanosleep, &wait, NULL); /* cut short by a signal: every caller looks again */
}

#endif
