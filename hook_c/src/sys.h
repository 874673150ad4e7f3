// SPDX-License-Identifier: Apache-2.0
/* System calls without libc between: they leave errno alone, which a program may read after a call
 * of the driver, and they are no cancellation points: a thread that is cancelled inside a call of
 * the driver would leave our words locked. Results: what the kernel says, -errno on failure. */
#ifndef VGPU_SYS_H
#define VGPU_SYS_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#if defined(__x86_64__)

static inline long sys_call(long number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d,
			    uintptr_t e, uintptr_t f)
{
	long result;
	register uintptr_t r10 __asm__("r10") = d;
	register uintptr_t r8 __asm__("r8") = e;
	register uintptr_t r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#elif defined(__aarch64__)

static inline long sys_call(long number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d,
			    uintptr_t e, uintptr_t f)
{
	register long x8 __asm__("x8") = number;
	register uintptr_t x0 __asm__("x0") = a;
	register uintptr_t x1 __asm__("x1") = b;
	register uintptr_t x2 __asm__("x2") = c;
	register uintptr_t x3 __asm__("x3") = d;
	register uintptr_t x4 __asm__("x4") = e;
	register uintptr_t x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return (long)x0;
}

#else
#error "no system calls for this architecture"
#endif

static inline int sys_open(const char *path, int flags, unsigned int mode)
{
	return (int)sys_call(SYS_openat, (uintptr_t)AT_FDCWD, (uintptr_t)path, (uintptr_t)flags,
			     mode, 0, 0);
}

static inline int sys_close(int fd)
{
	return (int)sys_call(SYS_close, (uintptr_t)fd, 0, 0, 0, 0, 0);
}

static inline long sys_read(int fd, void *buffer, size_t size)
{
	return sys_call(SYS_read, (uintptr_t)fd, (uintptr_t)buffer, size, 0, 0, 0);
}

static inline long sys_write(int fd, const void *buffer, size_t size)
{
	return sys_call(SYS_write, (uintptr_t)fd, (uintptr_t)buffer, size, 0, 0, 0);
}

static inline int sys_pipe(int ends[2])
{
	return (int)sys_call(SYS_pipe2, (uintptr_t)ends, O_CLOEXEC, 0, 0, 0, 0);
}

static inline int sys_fcntl(int fd, int command, uintptr_t argument)
{
	return (int)sys_call(SYS_fcntl, (uintptr_t)fd, (uintptr_t)command, argument, 0, 0, 0);
}

static inline int sys_ftruncate(int fd, uint64_t size)
{
	return (int)sys_call(SYS_ftruncate, (uintptr_t)fd, size, 0, 0, 0, 0);
}

/* `status` is the kernel's struct stat, which is libc's on the 64-bit architectures. */
struct stat;
static inline int sys_fstat(int fd, struct stat *status)
{
	return (int)sys_call(SYS_fstat, (uintptr_t)fd, (uintptr_t)status, 0, 0, 0, 0);
}

static inline int sys_exists(const char *path)
{
	return sys_call(SYS_faccessat, (uintptr_t)AT_FDCWD, (uintptr_t)path, 0, 0, 0, 0) == 0;
}

static inline long sys_readlink(const char *path, char *buffer, size_t size)
{
	return sys_call(SYS_readlinkat, (uintptr_t)AT_FDCWD, (uintptr_t)path, (uintptr_t)buffer,
			size, 0, 0);
}

/* NULL on failure. fd -1: private zeroed memory. */
static inline void *sys_map(size_t size, int protection, int fd)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	long address = sys_call(SYS_mmap, 0, size, (uintptr_t)protection, (uintptr_t)flags,
				(uintptr_t)fd, 0);

	return address < 0 && address > -4096 ? NULL : (void *)address;
}

static inline void sys_unmap(void *address, size_t size)
{
	sys_call(SYS_munmap, (uintptr_t)address, size, 0, 0, 0, 0);
}

static inline int sys_protect(uintptr_t start, uintptr_t end, int protection)
{
	return (int)sys_call(SYS_mprotect, start, end - start, (uintptr_t)protection, 0, 0, 0);
}

static inline int sys_advise(void *address, size_t size, int advice)
{
	return (int)sys_call(SYS_madvise, (uintptr_t)address, size, (uintptr_t)advice, 0, 0, 0);
}

static inline uint32_t sys_pid(void)
{
	return (uint32_t)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

static inline uint32_t sys_user(void)
{
	return (uint32_t)sys_call(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* May be cut short by a signal: every caller looks again. */
static inline void sys_sleep_ns(long ns)
{
	const struct timespec wait = {.tv_nsec = ns};

	sys_call(SYS_nanosleep, (uintptr_t)&wait, 0, 0, 0, 0, 0);
}

static inline void sys_yield(void)
{
	sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

#endif
