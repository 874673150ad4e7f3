// SPDX-License-Identifier: Apache-2.0
/* filtered ACTION CALL[,CALL...] COMMAND...: runs a command that is killed for these system calls
 * ("kill"), or gets an error number for them. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST 64

int main(int argc, char **argv)
{
	struct sock_filter filter[2 * MOST + 2] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
	struct sock_fprog program = {.len = 1, .filter = filter};
	unsigned int action = SECCOMP_RET_KILL_PROCESS;

	if (argc < 4)
		return 2;
	if (strcmp(argv[1], "kill") != 0)
		action = SECCOMP_RET_ERRNO | (unsigned int)strtoul(argv[1], NULL, 10);
	for (char *call = strtok(argv[2], ","); call != NULL && program.len < 2 * MOST;
	     call = strtok(NULL, ",")) {
		filter[program.len++] = (struct sock_filter)BPF_JUMP(
			BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)strtoul(call, NULL, 10), 0, 1);
		filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
	}
	filter[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
		perror("seccomp");
		return 2;
	}
	execv(argv[3], argv + 3);
	perror(argv[3]);
	return 2;
}
