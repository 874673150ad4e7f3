/* SPDX-License-Identifier: Apache-2.0 */
#include "agent.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RETRY_MS 100

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void sleep_ms(int64_t ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Lets every wait on the socket end at the deadline; false when that has passed. A stop signal ends
 * a wait with EINTR, so each try sets it anew. */
static bool limit_waits(int fd, int64_t deadline)
{
	int64_t left = deadline - now_ms();
	struct timeval wait = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};

	if (left <= 0)
		return false;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	return true;
}

static enum agent_outcome outcome_of(int error)
{
	switch (error) {
	case ENOENT:
	case ENOTDIR:
	case ECONNREFUSED:
	case ECONNRESET:
	case EPIPE:
		return AGENT_ABSENT;
	case EACCES:
	case EPERM:
		return AGENT_FORBIDDEN;
	case EAGAIN: /* SO_SNDTIMEO, SO_RCVTIMEO; a full backlog, too, waits for the first */
		return AGENT_SILENT;
	default:
		return AGENT_UNUSABLE;
	}
}

static enum agent_outcome send_request(int fd, const struct request *request, int bundle,
				       int64_t deadline)
{
	static char buffer[VGPU_LAUNCHER_PACKET_BYTES - sizeof(struct launcher_header)];
	struct text fields = TEXT(buffer);
	struct launcher_header header = request_encode(request, &fields);
	struct iovec parts[] = {
		{.iov_base = &header, .iov_len = sizeof(header)},
		{.iov_base = fields.bytes, .iov_len = fields.used},
	};
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr message = {
		.msg_iov = parts,
		.msg_iovlen = 2,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};

	if (fields.cut)
		return AGENT_TOO_LONG;
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &bundle, sizeof(int));
	while (sendmsg(fd, &message, MSG_NOSIGNAL) < 0) {
		if (errno != EINTR)
			return outcome_of(errno);
		if (!limit_waits(fd, deadline))
			return AGENT_SILENT;
	}
	return AGENT_ANSWERED;
}

static enum agent_outcome receive_reply(int fd, int64_t deadline, struct reply *reply)
{
	static char packet[VGPU_LAUNCHER_PACKET_BYTES];
	ssize_t length;

	/* MSG_TRUNC: the length the packet had, so that a cut one is seen as garbage. */
	while ((length = recv(fd, packet, sizeof(packet), MSG_TRUNC)) < 0) {
		if (errno != EINTR)
			return outcome_of(errno);
		if (!limit_waits(fd, deadline))
			return AGENT_SILENT;
	}
	if (length == 0)
		return AGENT_ABSENT;
	if ((size_t)length > sizeof(packet))
		*reply = (struct reply){.kind = REPLY_GARBAGE};
	else
		*reply = reply_decode(packet, (size_t)length);
	return AGENT_ANSWERED;
}

static enum agent_outcome ask_once(int fd, const struct sockaddr_un *address,
				   const struct request *request, int bundle, int64_t deadline,
				   struct reply *reply)
{
	enum agent_outcome outcome;

	do {
		if (!limit_waits(fd, deadline))
			return AGENT_SILENT;
		if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0) {
			outcome = send_request(fd, request, bundle, deadline);
			if (outcome != AGENT_ANSWERED)
				return outcome;
			return receive_reply(fd, deadline, reply);
		}
	} while (errno == EINTR);
	return outcome_of(errno);
}

enum agent_outcome agent_ask(const struct conf *conf, const struct request *request, int bundle,
			     bool patient, struct reply *reply)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const int64_t start = now_ms();
	const int64_t deadline = start + conf->verdict_ms;

	if (strlen(conf->agent_socket) >= sizeof(address.sun_path))
		return AGENT_UNUSABLE;
	memcpy(address.sun_path, conf->agent_socket, strlen(conf->agent_socket));
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		enum agent_outcome outcome;

		if (fd < 0)
			return AGENT_UNUSABLE;
		outcome = ask_once(fd, &address, request, bundle, deadline, reply);
		close(fd);
		if (outcome != AGENT_ABSENT || !patient ||
		    now_ms() + RETRY_MS > start + conf->absent_ms)
			return outcome;
		sleep_ms(RETRY_MS);
	}
}
