/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const places[] = {
	"/usr/local/sbin/runc", "/usr/local/bin/runc", "/usr/sbin/runc", "/usr/bin/runc",
	"/usr/local/sbin/crun", "/usr/local/bin/crun", "/usr/sbin/crun", "/usr/bin/crun",
};

static bool is_launcher(const char *path)
{
	struct stat own, other;

	return stat(path, &other) == 0 && stat("/proc/self/exe", &own) == 0 &&
	       own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

void runtime_exec(const char *path, char **argv)
{
	char *given = argv[0];

	if (path[0] != '/') {
		errno = EINVAL;
		return;
	}
	if (is_launcher(path)) {
		errno = ELOOP;
		return;
	}
	argv[0] = (char *)path;
	execv(path, argv);
	argv[0] = given;
}

void runtime_exec_found(char **argv)
{
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		runtime_exec(places[i], argv);
}

const char *runtime_failure(int error)
{
	switch (error) {
	case EINVAL:
		return "not an absolute path";
	case ELOOP:
		return "it leads back to vgpu-container-runtime";
	case ENOENT:
	case ENOTDIR:
		return "it, or the interpreter it names, is not there";
	case EACCES:
	case EPERM:
		return "it is not executable";
	case ENOEXEC:
		return "it is not a program for this machine";
	default:
		return strerror(error);
	}
}
