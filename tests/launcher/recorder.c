/* SPDX-License-Identifier: Apache-2.0
 *
 * A runtime that does nothing but keep what it was given: in "<own path>.record/" the files
 * cmdline and environ as /proc has them, and fds with a line "NUMBER TARGET" for each descriptor.
 * Where that directory does not exist it only exits: the next runtime of bench/runtime.py.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void copy(const char *from, int directory, const char *name)
{
	static char bytes[1 << 16];
	int source = open(from, O_RDONLY | O_CLOEXEC);
	int target = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	ssize_t length;

	while ((length = read(source, bytes, sizeof(bytes))) > 0)
		if (write(target, bytes, (size_t)length) != length)
			_exit(2);
	close(source);
	close(target);
}

static void list_descriptors(int directory)
{
	DIR *descriptors = opendir("/proc/self/fd");
	char target[PATH_MAX];
	struct dirent *entry;
	FILE *list;
	int fd;

	fd = openat(directory, "fds", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || descriptors == NULL)
		_exit(2);
	list = fdopen(fd, "w");
	if (list == NULL)
		_exit(2);
	while ((entry = readdir(descriptors)) != NULL) {
		ssize_t length =
			readlinkat(dirfd(descriptors), entry->d_name, target, sizeof(target) - 1);

		/* Without the recorder's own. */
		if (length < 0 || strstr(entry->d_name, ".") != NULL)
			continue;
		target[length] = '\0';
		if (strcmp(target, "/proc/self/fd") != 0 && strstr(target, ".record") == NULL &&
		    strncmp(target, "/proc/", 6) != 0)
			fprintf(list, "%s %s\n", entry->d_name, target);
	}
	fclose(list);
	closedir(descriptors);
}

int main(void)
{
	char path[PATH_MAX + sizeof(".record")];
	ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
	int directory;

	if (length <= 0)
		return 2;
	memcpy(path + length, ".record", sizeof(".record"));
	directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return 0;
	list_descriptors(directory);
	copy("/proc/self/cmdline", directory, "cmdline");
	copy("/proc/self/environ", directory, "environ");
	return 0;
}
