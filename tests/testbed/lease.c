// SPDX-License-Identifier: Apache-2.0
/* lease r|w FILE: takes a lease on a file, gives it back soon after the kernel has asked for it,
 * and takes it again as soon as it can; so for ever. Prints a line with each lease. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;

	int kind = *argv[1] == 'w' ? F_WRLCK : F_RDLCK;

	signal(SIGIO, SIG_IGN);
	for (;;) {
		int fd = open(argv[2], O_RDONLY | O_NONBLOCK);

		if (fd >= 0 && fcntl(fd, F_SETLEASE, kind) == 0) {
			puts("taken");
			fflush(stdout);
			while (fcntl(fd, F_GETLEASE) == kind)
				usleep(1000);
			sleep(20);
			fcntl(fd, F_SETLEASE, F_UNLCK);
		}
		close(fd);
		usleep(100);
	}
}
