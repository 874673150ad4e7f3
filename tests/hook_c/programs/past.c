// SPDX-License-Identifier: Apache-2.0
/* Uses the driver, then has the object of deep.c look for it. Arguments: that object, the driver's
 * name, and what to do in between. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* From now on no memory is made writable. */
static int forbid_mprotect(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROT_READ | PROT_WRITE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

static void *find(void *handle, const char *name)
{
	void *symbol = dlsym(handle, name);

	if (symbol == NULL)
		printf("no %s\n", name);
	return symbol;
}

/* The program is linked with nothing of the driver's: every name is looked up. */
static int use_driver(void *driver)
{
	int (*init)(unsigned int);
	int (*retain)(void **, int);
	int (*set)(void *);
	void *symbols[] = {find(driver, "cuInit"), find(driver, "cuDevicePrimaryCtxRetain"),
			   find(driver, "cuCtxSetCurrent")};
	void *context;

	memcpy((void *)&init, (const void *)&symbols[0], sizeof(init));
	memcpy((void *)&retain, (const void *)&symbols[1], sizeof(retain));
	memcpy((void *)&set, (const void *)&symbols[2], sizeof(set));
	return init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0;
}

int main(int argc, char **argv)
{
	const char *between = argc > 3 ? argv[3] : "";
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*look)(const char *);

	dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (driver == NULL || (strcmp(between, "seccomp") == 0 && forbid_mprotect() != 0))
		return 2;
	find(dlopen("libnvidia-ml.so.1", RTLD_NOW), "nvmlInit_v2");
	if (use_driver(driver) != 0)
		return 3;
	for (int i = 0; i < 3 && strcmp(between, "reopen") == 0; i++) {
		dlclose(driver);
		driver = dlopen("libcuda.so.1", RTLD_NOW);
	}

	void *deep = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
	void *symbol = deep == NULL ? NULL : find(deep, "look");

	if (symbol == NULL) {
		puts(dlerror());
		return 4;
	}
	memcpy((void *)&look, (const void *)&symbol, sizeof(look));
	if (strcmp(between, "fork") == 0) {
		pid_t child = fork();
		int status = 0;

		if (child != 0)
			return waitpid(child, &status, 0) != child || status != 0;
	}

	int status = look(argv[2]);

	fflush(stdout);
	_exit(status);
}
