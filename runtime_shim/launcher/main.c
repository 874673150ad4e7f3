/* SPDX-License-Identifier: Apache-2.0
 *
 * vgpu-container-runtime: what engines run in place of runc or crun.
 *
 * A command that creates no container, or one whose config.json shows no mark of a GPU, becomes the
 * low-level runtime at once. For the others the node agent decides, edits the bundle, and names the
 * runtime. It never forks, never reads fd 0, opens everything O_CLOEXEC, and writes nothing unless
 * it fails.
 */
#include "agent.h"
#include "argv.h"
#include "bundle.h"
#include "conf.h"
#include "marks.h"
#include "report.h"
#include "runtime.h"
#include "text.h"
#include "wire.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATHS_BYTES ((size_t)2 * PATH_MAX) /* of a directory and a path below it */

/* The message of a failure of our own. */
static char message_bytes[VGPU_LAUNCHER_PACKET_BYTES];
static struct text message = TEXT(message_bytes);

/* "vgpu: container 'ID' (ID12): ". The launcher knows no other name; the agent does. An id that no
 * runtime would take must not push the reason out of the message. */
static void begin_message(const struct command_line *line)
{
	const char *id = line->id != NULL ? line->id : "";

	text_add(&message, "vgpu: container '");
	text_add_bytes(&message, id, strnlen(id, 256));
	text_add(&message, "' (");
	text_add_bytes(&message, id, strnlen(id, 12));
	text_add(&message, "): ");
}

static void add_seconds(unsigned ms)
{
	text_add_number(&message, ms / 1000, 1);
	if (ms % 1000 != 0) {
		text_add(&message, ".");
		text_add_number(&message, ms % 1000, 3);
	}
	text_add(&message, " s");
}

static int fail(const struct command_line *line)
{
	text_clean(message.bytes);
	report_failure(line, message.bytes);
	return EXIT_FAILURE;
}

static int refuse(const struct command_line *line, const char *reason, const char *remedy)
{
	begin_message(line);
	text_add(&message, reason);
	text_add(&message, "; ");
	text_add(&message, remedy);
	return fail(line);
}

/* A create must not fall back to another runtime than the configured one: once that is repaired,
 * `kill` and `delete` would not find the container. */
static int become(const struct command_line *line, const struct conf *conf, char **argv,
		  const char *key, const char *path)
{
	runtime_exec(path, argv);
	const char *why = runtime_failure(errno);

	begin_message(line);
	text_add(&message, key);
	text_add(&message, " = ");
	text_add(&message, path);
	text_add(&message, " cannot be run: ");
	text_add(&message, why);
	text_add(&message, "; correct it in ");
	text_add(&message, conf->source);
	return fail(line);
}

static int become_found(const struct command_line *line, char **argv)
{
	runtime_exec_found(argv);
	if (line->creates) {
		begin_message(line);
	} else {
		text_add(&message, "vgpu: command '");
		text_add(&message, line->command != NULL ? line->command : "");
		text_add(&message, "': ");
	}
	text_add(&message,
		 "no low-level runtime: neither runc nor crun can be run from "
		 "/usr/local/sbin, /usr/local/bin, /usr/sbin or /usr/bin; install runc, or "
		 "set low_level_runtime in " CONF_PATH);
	return fail(line);
}

static int low_level(const struct command_line *line, const struct conf *conf, char **argv)
{
	if (conf->low_level_runtime != NULL) {
		if (line->creates)
			return become(line, conf, argv, "low_level_runtime",
				      conf->low_level_runtime);
		runtime_exec(conf->low_level_runtime, argv);
	}
	return become_found(line, argv);
}

static int obey(const struct command_line *line, const struct conf *conf, char **argv,
		const struct reply *reply)
{
	if (reply->kind == REPLY_LOW_LEVEL)
		return low_level(line, conf, argv);
	if (reply->kind == REPLY_REFUSE) {
		report_failure(line, reply->message);
		return EXIT_FAILURE;
	}
	if (conf->gpu_runtime == NULL) {
		begin_message(line);
		text_add(&message, "the vgpu agent asks for the GPU runtime, but none is "
				   "configured; set gpu_runtime in ");
		text_add(&message, conf->source);
		return fail(line);
	}
	return become(line, conf, argv, "gpu_runtime", conf->gpu_runtime);
}

/* Debian's package is unpacked and was never configured: its postinst makes the link, and starts
 * the agent. */
static bool is_unconfigured(void)
{
	return access("/usr/lib/vgpu/packaged", F_OK) == 0 &&
	       access("/usr/lib/vgpu/current", F_OK) != 0;
}

/* There is no verdict, and the marks forbid to start without one. */
static int refuse_unanswered(const struct command_line *line, const struct conf *conf,
			     enum agent_outcome outcome, const struct reply *reply)
{
	const char *remedy = "look into its log: journalctl -u vgpu-node-agent";

	begin_message(line);
	text_add(&message, "it asks for a GPU, and the vgpu agent at ");
	text_add(&message, conf->agent_socket);
	switch (outcome) {
	case AGENT_ABSENT:
		text_add(&message, " did not answer for ");
		add_seconds(conf->absent_ms);
		remedy = is_unconfigured()
				 ? "finish the installation of vgpu-runtime: dpkg --configure -a"
				 : "start it: systemctl start vgpu-node-agent";
		break;
	case AGENT_SILENT:
		text_add(&message, " gave no verdict within ");
		add_seconds(conf->verdict_ms);
		break;
	case AGENT_FORBIDDEN:
		text_add(&message, " is for root only");
		remedy = "use an engine that runs as root";
		break;
	case AGENT_TOO_LONG:
		text_add(&message, " cannot be asked: the command line is too long");
		remedy = "use shorter paths";
		break;
	case AGENT_ANSWERED:
		remedy = "install one release of vgpu (dpkg --configure -a ends an interrupted "
			 "upgrade) and restart the agent";
		if (reply->kind != REPLY_OTHER_MAJOR) {
			text_add(&message, " sent a reply that cannot be read");
			break;
		}
		text_add(&message, " speaks protocol ");
		text_add_number(&message, reply->major, 1);
		text_add(&message, ".");
		text_add_number(&message, reply->minor, 1);
		text_add(&message, ", this launcher ");
		text_add_number(&message, VGPU_LAUNCHER_MAJOR, 1);
		text_add(&message, ".");
		text_add_number(&message, VGPU_LAUNCHER_MINOR, 1);
		break;
	case AGENT_UNUSABLE:
	default:
		text_add(&message, " cannot be reached; correct agent_socket in ");
		text_add(&message, conf->source);
		return fail(line);
	}
	text_add(&message, "; ");
	text_add(&message, remedy);
	return fail(line);
}

/* The absolute path of an open directory; false when it cannot be told. */
static bool path_of(int directory, char path[PATH_MAX])
{
	char link[32];
	struct text text = TEXT(link);
	ssize_t length;

	text_add(&text, "/proc/self/fd/");
	text_add_number(&text, (unsigned long)directory, 1);
	length = readlink(link, path, PATH_MAX - 1);
	if (length <= 0)
		return false;
	path[length] = '\0';
	return true;
}

/* Makes *path, when given, absolute as the runtime will: from the working directory, which the
 * agent does not share. False when that cannot be told. */
static bool absolute(const char **path, char buffer[PATHS_BYTES])
{
	struct text text = {.bytes = buffer, .size = PATHS_BYTES};

	if (*path == NULL || **path == '/')
		return true;
	/* Linux returns "(unreachable)/..." for a directory outside of the process's root. */
	if (getcwd(buffer, PATH_MAX) == NULL || buffer[0] != '/')
		return false;
	text.used = strlen(buffer);
	text_add(&text, "/");
	text_add(&text, *path);
	*path = buffer;
	return !text.cut;
}

/* XDG_RUNTIME_DIR, in which runtimes may keep their state when there is no --root; NULL without. */
static const char *runtime_dir(void)
{
	const char *path = getenv("XDG_RUNTIME_DIR");

	return path != NULL && *path != '\0' ? path : NULL;
}

static int ask(const struct command_line *line, const struct conf *conf, char **argv,
	       const struct bundle *bundle)
{
	static char root[PATHS_BYTES], runtime[PATHS_BYTES], pid_file[PATHS_BYTES];
	char path[PATH_MAX];
	struct request request = {
		.command = line->command,
		.id = line->id,
		.root = line->root,
		.runtime_dir = line->root == NULL ? runtime_dir() : NULL,
		.bundle = path,
		.pid_file = line->pid_file,
	};
	struct reply reply = {.kind = REPLY_GARBAGE};
	enum agent_outcome outcome;

	if (line->config != NULL && marks_bind(bundle->marks))
		return refuse(line, "it asks for a GPU in a file given by --config",
			      "name the file config.json and leave out --config");
	if (line->config != NULL)
		return low_level(line, conf, argv);
	if (!path_of(bundle->directory, path))
		return refuse(line, "the path of its bundle cannot be told", "mount /proc");
	if (!absolute(&request.root, root) || !absolute(&request.runtime_dir, runtime) ||
	    !absolute(&request.pid_file, pid_file))
		return refuse(line, "the working directory of its runtime cannot be told",
			      "give --root and --pid-file as absolute paths");
	outcome = agent_ask(conf, &request, bundle->directory, marks_bind(bundle->marks), &reply);
	if (outcome == AGENT_ANSWERED && reply.kind != REPLY_GARBAGE &&
	    reply.kind != REPLY_OTHER_MAJOR)
		return obey(line, conf, argv, &reply);
	/* Without a verdict the low-level runtime gives no device to a container that has only
	 * NVIDIA's variables or other names of vgpu's, and takes none from one to which the host is
	 * open anyway. */
	if (!marks_bind(bundle->marks))
		return low_level(line, conf, argv);
	return refuse_unanswered(line, conf, outcome, &reply);
}

static int create(const struct command_line *line, const struct conf *conf, char **argv)
{
	struct bundle bundle;

	if (line->id == NULL)
		return low_level(line, conf, argv); /* which says what is missing */
	switch (bundle_open(line->bundle, line->config, &bundle)) {
	case BUNDLE_MISSING:
		return low_level(line, conf, argv);
	case BUNDLE_READ:
		return bundle.marks == 0 ? low_level(line, conf, argv)
					 : ask(line, conf, argv, &bundle);
	case BUNDLE_NO_FILE:
		return refuse(line, "its config.json is not a regular file",
			      "write the bundle's specification to a file");
	case BUNDLE_FAILED:
	default:
		begin_message(line);
		text_add(&message, "its config.json cannot be read: ");
		text_add(&message, strerror(bundle.error));
		text_add(&message, "; try again once the host has recovered");
		return fail(line);
	}
}

int main(int argc, char **argv)
{
	struct command_line line = argv_parse(argc, argv);
	struct conf conf = conf_load();

	return line.creates ? create(&line, &conf, argv) : low_level(&line, &conf, argv);
}
