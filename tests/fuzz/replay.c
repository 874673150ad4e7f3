/* SPDX-License-Identifier: Apache-2.0
 *
 * Feeds a fuzz target the files of a directory: the committed corpus, in every `make test`.
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static bool replay(int directory, const char *name)
{
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
	struct stat file;
	uint8_t *bytes;
	bool whole;

	if (fd < 0 || fstat(fd, &file) < 0 || !S_ISREG(file.st_mode)) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	bytes = malloc((size_t)file.st_size + 1);
	HOLDS(bytes != NULL);
	whole = read(fd, bytes, (size_t)file.st_size) == file.st_size;
	close(fd);
	if (whole)
		LLVMFuzzerTestOneInput(bytes, (size_t)file.st_size);
	free(bytes);
	return whole;
}

/* The program bears its target's name, and the repository is where tests run. */
int main(int argc, char **argv)
{
	const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
	char path[256];
	DIR *corpus;
	unsigned passed = 0;
	struct dirent *entry;

	snprintf(path, sizeof(path), "tests/fuzz/corpus/%s", slash != NULL ? slash + 1 : "");
	corpus = opendir(path);

	if (corpus == NULL) {
		printf("0 passed, 1 failed\n");
		return 1;
	}
	while ((entry = readdir(corpus)) != NULL)
		if (replay(dirfd(corpus), entry->d_name))
			passed++;
	closedir(corpus);
	printf("%u passed, %d failed\n", passed, passed == 0);
	return passed == 0;
}
