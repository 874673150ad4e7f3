// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static void *make(const char *path, size_t size)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	void *file = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)size) == 0)
		file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	close(fd);
	return file;
}

static struct vgpu_header header(uint32_t magic, size_t size)
{
	return (struct vgpu_header){.magic = magic,
				    .major = VGPU_ABI_MAJOR,
				    .minor = VGPU_ABI_MINOR,
				    .size = (uint32_t)size};
}

void files_make(struct files *files, uint64_t memory_bytes)
{
	static int number;

	snprintf(files->usage_path, sizeof(files->usage_path), "/tmp/vgpu-test-%d-%d.usage",
		 (int)getpid(), number);
	snprintf(files->limits_path, sizeof(files->limits_path), "/tmp/vgpu-test-%d-%d.limits",
		 (int)getpid(), number++);
	files->usage = make(files->usage_path, sizeof(*files->usage));
	files->limits = make(files->limits_path, sizeof(*files->limits));
	files->usage->header = header(VGPU_USAGE_MAGIC, sizeof(*files->usage));
	files->limits->header = header(VGPU_LIMITS_MAGIC, sizeof(*files->limits));
	files->limits->ndev = 1;
	files->limits->dev[0].kind = VGPU_KIND_GPU;
	files->limits->dev[0].memory_bytes = memory_bytes;
	memset(files->limits->dev[0].uuid, 0x11, 16);
}

void files_remove(struct files *files)
{
	munmap(files->usage, sizeof(*files->usage));
	munmap(files->limits, sizeof(*files->limits));
	unlink(files->usage_path);
	unlink(files->limits_path);
}

pid_t spawn(int (*run)(const struct files *), const struct files *files)
{
	fflush(stdout);
	pid_t pid = fork();

	if (pid == 0)
		_exit(run(files));
	return pid;
}

int collect(pid_t pid)
{
	int status = 0;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
