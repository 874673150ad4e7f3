/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole launcher, its edges replaced: the input says what the bundle, the agent and the system
 * answer. Four bytes choose outcomes; then come, each up to a NUL, the agent's message, config.json
 * and the words of the command line.
 */
#include "fuzz.h"

/* Its failure text is built once a process. */
int launcher_main(int argc, char **argv);
#define main launcher_main
#include "main.c" // NOLINT(bugprone-suspicious-include)
#undef main

#include <fcntl.h>
#include <setjmp.h>

static struct {
	enum agent_outcome outcome;
	enum reply_kind reply;
	enum bundle_state state;
	bool has_low_level, has_gpu, low_level_runs, gpu_runs, found_runs;
	char *message;
	const char *config;
} world;

static struct {
	jmp_buf ran;
	unsigned asked, opened, reported;
	const char *runtime;
} seen;

static const char low_level_path[] = "/low-level", gpu_path[] = "/gpu", found_path[] = "/found";

struct conf conf_load(void)
{
	return (struct conf){
		.source = "/source",
		.low_level_runtime = world.has_low_level ? low_level_path : NULL,
		.gpu_runtime = world.has_gpu ? gpu_path : NULL,
		.agent_socket = "/socket",
		.verdict_ms = 10000,
		.absent_ms = 5500,
	};
}

enum agent_outcome agent_ask(const struct conf *conf, const struct request *request, int bundle,
			     bool patient, struct reply *reply)
{
	HOLDS(conf != NULL && request->command != NULL && request->id != NULL && bundle >= 0);
	HOLDS(request->root == NULL || request->root[0] == '/');
	HOLDS(request->pid_file == NULL || request->pid_file[0] == '/');
	HOLDS(request->bundle[0] == '/');
	HOLDS(patient == marks_bind(marks_find(world.config, strlen(world.config))));
	seen.asked++;
	if (world.outcome != AGENT_ANSWERED)
		return world.outcome;
	*reply = (struct reply){.kind = world.reply, .major = 7, .minor = 3};
	if (reply->kind == REPLY_REFUSE)
		reply->message = world.message;
	return world.outcome;
}

enum bundle_state bundle_open(const char *path, const char *config, struct bundle *bundle)
{
	static int directory = -1;

	HOLDS(path != NULL && (config == NULL || strcmp(config, "config.json") != 0));
	seen.opened++;
	if (directory < 0)
		directory = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	*bundle = (struct bundle){
		.directory = directory,
		.marks = marks_find(world.config, strlen(world.config)),
		.error = EMFILE,
	};
	return world.state;
}

void runtime_exec(const char *path, char **argv)
{
	HOLDS(argv[0] != NULL);
	if (path == low_level_path ? world.low_level_runs : world.gpu_runs) {
		seen.runtime = path;
		longjmp(seen.ran, 1); // NOLINT(cert-err52-cpp): an exec does not return
	}
	errno = ENOENT;
}

void runtime_exec_found(char **argv)
{
	HOLDS(argv[0] != NULL);
	if (!world.found_runs)
		return;
	seen.runtime = found_path;
	longjmp(seen.ran, 1); // NOLINT(cert-err52-cpp): an exec does not return
}

const char *runtime_failure(int error)
{
	HOLDS(error == ENOENT);
	return "it is not there";
}

void report_failure(const struct command_line *line, const char *text)
{
	HOLDS(line != NULL && is_line(text));
	HOLDS(text == world.message || strncmp(text, "vgpu: ", 6) == 0);
	seen.reported++;
}

/* A container that asks for a GPU becomes a runtime only by a verdict that says so. */
static void check_closed(const struct command_line *line, bool ran)
{
	const bool binds = marks_bind(marks_find(world.config, strlen(world.config)));
	const bool answered = world.outcome == AGENT_ANSWERED;

	HOLDS(seen.asked <= 1 && seen.opened <= 1);
	HOLDS(line->creates || (seen.asked == 0 && seen.opened == 0));
	if (!ran)
		return;
	HOLDS(seen.reported == 0);
	if (seen.runtime == gpu_path)
		HOLDS(seen.asked == 1 && answered && world.reply == REPLY_GPU);
	else if (seen.opened == 1 && world.state == BUNDLE_READ && binds)
		HOLDS(seen.asked == 1 && answered && world.reply == REPLY_LOW_LEVEL);
	else if (seen.asked == 1 && answered)
		HOLDS(world.reply != REPLY_REFUSE && world.reply != REPLY_GPU);
	HOLDS(!line->creates || !world.has_low_level || seen.runtime != found_path);
}

/* Whether the launcher became a runtime; else it has failed. */
static bool becomes_runtime(int argc, char **argv)
{
	if (setjmp(seen.ran) != 0) // NOLINT(cert-err52-cpp)
		return true;
	HOLDS(launcher_main(argc, argv) == EXIT_FAILURE);
	return false;
}

static void run(char *text, size_t size)
{
	char *argv[WORDS_MAX + 2];
	const int argc = words_of(text, size, argv);
	const struct command_line line = argv_parse(argc, argv);
	bool ran;

	message = TEXT(message_bytes);
	message_bytes[0] = '\0';
	memset(&seen, 0, sizeof(seen));
	ran = becomes_runtime(argc, argv);
	HOLDS(ran || seen.reported == 1);
	check_closed(&line, ran);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text, *words;

	if (size < 4)
		return -1;
	text = string_of(data + 4, size - 4);
	world.outcome = data[0] % (AGENT_UNUSABLE + 1);
	world.reply = data[1] % (REPLY_GARBAGE + 1);
	world.state = data[2] % (BUNDLE_FAILED + 1);
	world.has_low_level = (data[3] & 1) != 0;
	world.has_gpu = (data[3] & 2) != 0;
	world.low_level_runs = (data[3] & 4) == 0;
	world.gpu_runs = (data[3] & 8) == 0;
	world.found_runs = (data[3] & 16) == 0;
	world.message = text;
	world.config = text + strlen(text);
	words = text + strlen(text);
	if (words < text + size - 4) {
		world.config = words + 1;
		words += 1 + strlen(words + 1);
	}
	text_clean(world.message); /* as reply_decode does */
	if (words < text + size - 4)
		words++;
	run(words, (size_t)(text + size - 4 - words));
	free(text);
	return 0;
}
