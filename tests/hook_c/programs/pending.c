// SPDX-License-Identifier: Apache-2.0
/* pending LIBRARY SIGNAL SENT: blocks a signal, lets one be pending for this thread ("thread") or
 * none ("none"), has cuInit of LIBRARY write where the kernel sends that signal, and prints the
 * code of cuInit and how many are pending then. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv)
{
	const struct timespec now = {0};
	int number = argc == 4 ? (int)strtol(argv[2], NULL, 10) : 0;
	int count = 0;
	sigset_t set;

	if (number == 0)
		return 2;
	sigemptyset(&set);
	sigaddset(&set, number);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (strcmp(argv[3], "thread") == 0)
		raise(number);

	void *driver = dlopen(argv[1], RTLD_NOW);
	void *symbol = driver == NULL ? NULL : dlsym(driver, "cuInit");
	int (*init)(unsigned int);

	if (symbol == NULL)
		return 3;
	memcpy((void *)&init, (const void *)&symbol, sizeof(init));

	int status = init(0);

	while (sigtimedwait(&set, NULL, &now) == number)
		count++;
	printf("%d %d\n", status, count);
	return 0;
}
