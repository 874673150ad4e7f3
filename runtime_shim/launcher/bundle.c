/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle.h"

#include "marks.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum bundle_state failed(struct bundle *bundle)
{
	bundle->error = errno;
	switch (bundle->error) {
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case EACCES:
	case ENAMETOOLONG:
		return BUNDLE_MISSING;
	default:
		return BUNDLE_FAILED;
	}
}

static enum bundle_state search(int fd, struct bundle *bundle)
{
	struct stat file;
	char *bytes;

	if (fstat(fd, &file) < 0)
		return failed(bundle);
	if (!S_ISREG(file.st_mode))
		return BUNDLE_NO_FILE;
	if (file.st_size == 0)
		return BUNDLE_READ;
	bytes = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (bytes == MAP_FAILED)
		return failed(bundle);
	bundle->marks = marks_find(bytes, (size_t)file.st_size);
	munmap(bytes, (size_t)file.st_size);
	return BUNDLE_READ;
}

enum bundle_state bundle_open(const char *path, const char *config, struct bundle *bundle)
{
	enum bundle_state state;
	int fd;

	bundle->marks = 0;
	bundle->directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (bundle->directory < 0)
		return failed(bundle);
	/* O_NONBLOCK: opening a FIFO must not wait for its writer. */
	fd = openat(config != NULL ? AT_FDCWD : bundle->directory,
		    config != NULL ? config : "config.json",
		    O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return failed(bundle);
	state = search(fd, bundle);
	close(fd);
	return state;
}
