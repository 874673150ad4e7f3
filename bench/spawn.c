/* SPDX-License-Identifier: Apache-2.0
 *
 * spawn PROGRAM [ARGUMENT...]: runs it once with stdin and stdout on /dev/null and prints
 * "WALL_NS CPU_NS MAX_RSS_KIB EXIT_CODE".
 *
 * A static program, because a child's peak memory as the kernel tells it begins with its parent's:
 * measured from Python, everything would have 10 MiB.
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t ns(struct timeval time)
{
	return (int64_t)time.tv_sec * 1000000000 + (int64_t)time.tv_usec * 1000;
}

int main(int argc, char **argv)
{
	posix_spawn_file_actions_t actions;
	struct rusage usage;
	int64_t start, wall, cpu;
	int status;
	pid_t pid;

	if (argc < 2)
		return 2;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	start = now_ns();
	if (posix_spawn(&pid, argv[1], &actions, NULL, argv + 1, environ) != 0)
		return 2;
	if (wait4(pid, &status, 0, &usage) != pid)
		return 2;
	wall = now_ns() - start;
	cpu = ns(usage.ru_utime) + ns(usage.ru_stime);
	printf("%lld %lld %ld %d\n", (long long)wall, (long long)cpu, usage.ru_maxrss,
	       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	return 0;
}
