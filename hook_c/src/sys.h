// SPDX-License-Identifier: Apache-2.0
/* System calls without libc between: they leave errno alone, which a program may read after a call
 * of the driver, and they are no cancellation points: a thread that is cancelled inside a call of
 * the driver would leave our words locked. Results: what the kernel says, -errno on failure.
 *
 * A program may forbid calls by seccomp and be killed for them. docs/memory.md lists the calls made
 * here; each is one that libc or the driver needs in such a program, too. */
#ifndef VGPU_SYS_H
#define VGPU_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
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

static inline int sys_pipe(int ends[2])
{
	return (int)sys_call(SYS_pipe2, (uintptr_t)ends, O_CLOEXEC, 0, 0, 0, 0);
}

static inline int sys_fcntl(int fd, int command, uintptr_t argument)
{
	return (int)sys_call(SYS_fcntl, (uintptr_t)fd, (uintptr_t)command, argument, 0, 0, 0);
}

/* Makes a call on a file without the signal that ends a program for its failure: SIGPIPE where
 * nobody reads, SIGXFSZ beyond the limit of file sizes. The program did not make this call.
 *
 * The kernel sends them to this thread alone, so no sigwait or signalfd of another thread takes
 * them, and rt_sigtimedwait takes them before any that was sent to the process. One of the
 * program's own may be pending already where it blocks the signal. The kernel keeps one for each
 * thread, so nothing is taken then. If that one was sent to the process, the program receives two.
 */
__attribute__((noinline, unused)) static long sys_quietly(long number, uintptr_t a, uintptr_t b,
							  uintptr_t c)
{
	const uint64_t no_reader = UINT64_C(1) << (SIGPIPE - 1);
	const uint64_t too_large = UINT64_C(1) << (SIGXFSZ - 1);
	const uint64_t both = no_reader | too_large;
	const struct timespec now = {0};
	uint64_t before = both;
	uint64_t pending = 0;

	sys_call(SYS_rt_sigprocmask, SIG_BLOCK, (uintptr_t)&both, (uintptr_t)&before,
		 sizeof(before), 0, 0);
	if ((before & both) != 0 &&
	    sys_call(SYS_rt_sigpending, (uintptr_t)&pending, sizeof(pending), 0, 0, 0, 0) != 0)
		pending = before; /* denied: what the program blocks itself may be its own */

	long result = sys_call(number, a, b, c, 0, 0, 0);
	uint64_t sent = result == -EPIPE ? no_reader : result == -EFBIG ? too_large : 0;

	sent &= ~pending;
	if (sent != 0)
		sys_call(SYS_rt_sigtimedwait, (uintptr_t)&sent, 0, (uintptr_t)&now, sizeof(sent), 0,
			 0);
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (uintptr_t)&before, 0, sizeof(before), 0, 0);
	return result;
}

static inline long sys_write(int fd, const void *buffer, size_t size)
{
	return sys_quietly(SYS_write, (uintptr_t)fd, (uintptr_t)buffer, size);
}

static inline int sys_ftruncate(int fd, uint64_t size)
{
	return (int)sys_quietly(SYS_ftruncate, (uintptr_t)fd, size, 0);
}

/* `status` is the kernel's struct stat, which is libc's on the 64-bit architectures. */
struct stat;
static inline int sys_fstat(int fd, struct stat *status)
{
	return (int)sys_call(SYS_fstat, (uintptr_t)fd, (uintptr_t)status, 0, 0, 0, 0);
}

static inline int sys_exists(const char *path)
{
	int fd = sys_open(path, O_PATH | O_CLOEXEC, 0);

	if (fd >= 0)
		sys_close(fd);
	return fd >= 0;
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

/* May be cut short by a signal: every caller looks again. By futex, which every program with
 * threads may use: which call sleeps depends on the version of libc. */
static inline void sys_sleep_ns(long ns)
{
	const struct timespec wait = {.tv_nsec = ns};
	const uint32_t word = 0;

	sys_call(SYS_futex, (uintptr_t)&word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, (uintptr_t)&wait,
		 0, 0);
}

static inline void sys_yield(void)
{
	sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

#endif
