/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include "protocol.h"
#include "text.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* RFC 3339, UTC. */
static void add_time(struct text *text)
{
	time_t now = time(NULL);
	struct tm utc;

	gmtime_r(&now, &utc);
	text_add_number(text, (unsigned long)utc.tm_year + 1900, 4);
	text_add(text, "-");
	text_add_number(text, (unsigned long)utc.tm_mon + 1, 2);
	text_add(text, "-");
	text_add_number(text, (unsigned long)utc.tm_mday, 2);
	text_add(text, "T");
	text_add_number(text, (unsigned long)utc.tm_hour, 2);
	text_add(text, ":");
	text_add_number(text, (unsigned long)utc.tm_min, 2);
	text_add(text, ":");
	text_add_number(text, (unsigned long)utc.tm_sec, 2);
	text_add(text, "Z");
}

static void add_log_line(struct text *text, bool json, const char *message)
{
	if (json) {
		text_add(text, "{\"level\":\"error\",\"msg\":");
		text_add_quoted(text, message);
		text_add(text, ",\"time\":\"");
		add_time(text);
		text_add(text, "\"}\n");
	} else {
		text_add(text, "time=\"");
		add_time(text);
		text_add(text, "\" level=error msg=");
		text_add_quoted(text, message);
		text_add(text, "\n");
	}
}

/* One write a line where the system takes it whole, so that lines of others do not get into it.
 * What cannot be written is lost: there is no third channel. */
static void write_line(int fd, const struct text *text)
{
	size_t done = 0;
	ssize_t written;

	while (done < text->used &&
	       (written = write(fd, text->bytes + done, text->used - done)) > 0)
		done += (size_t)written;
}

/* crun's --log may name no file but the journal or syslog. */
static bool is_file(const char *log)
{
	return strncmp(log, "journald:", 9) != 0 && strncmp(log, "syslog:", 7) != 0;
}

void report_failure(const struct command_line *line, const char *message)
{
	/* Every byte of a whole packet may need a backslash. */
	static char buffer[2 * VGPU_LAUNCHER_PACKET_BYTES + 256];
	struct text text = TEXT(buffer);

	signal(SIGPIPE, SIG_IGN); /* an engine that reads no stderr still gets exit code 1 */
	if (line->log != NULL && is_file(line->log)) {
		const char *path = strncmp(line->log, "file:", 5) == 0 ? line->log + 5 : line->log;
		/* O_NONBLOCK: a FIFO without a reader must not stop us. */
		int fd = open(path,
			      O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
			      0644);

		if (fd >= 0) {
			add_log_line(&text,
				     line->log_format != NULL &&
					     strcmp(line->log_format, "json") == 0,
				     message);
			write_line(fd, &text);
			close(fd);
		}
	}
	text = TEXT(buffer);
	text_add(&text, message);
	text_add(&text, "\n");
	write_line(STDERR_FILENO, &text);
}
