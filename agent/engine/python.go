package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// askLimit bounds how long the engine's Python has to import the connector.
const askLimit = 30 * time.Second

// lacksConnector is the exit status of importModule if the import fails.
const lacksConnector = 3

// importModule imports the module argv[1], as a script in the directory argv[2] would: Python puts
// the script's directory first in its path, and for -c the working directory. It says why that
// fails in its only line of standard output, of 999 bytes at most. What imported modules print
// there goes to standard error.
const importModule = `import os, sys
out = os.dup(1)
os.dup2(2, 1)
if sys.path[:1] == [""]:
    sys.path[0] = sys.argv[2]
status = 0
try:
    __import__(sys.argv[1])
except BaseException as e:
    status = 3
    why = f"{type(e).__name__}: {e}".strip().splitlines()[-1]
    os.write(out, why.encode(errors="replace")[:999])
try:
    sys.stdout.flush()
    sys.stderr.flush()
finally:
    os._exit(status)`

// fallback is the command of an engine whose Python may lack the connector of deploy/vllm.
type fallback struct {
	argv   []string // the command without the connector
	python string   // interpreter if the program does not name its own; "": unknown
	engine *Config  // the configuration that argv was made from
	limit  time.Duration
	taken  atomic.Bool // the engine is started with argv
}

// fallback returns the command that takes the place of kv_offload's, or nil if none does. None does
// if the connector also hands blocks over.
func (c *Config) fallback(l Launch, program string) *fallback {
	instead := c.overS3()
	if instead == nil || c.KVOffload == OffloadKVCached && c.handsCached(l.Role) {
		return nil
	}
	f := &fallback{engine: instead, limit: askLimit}
	f.argv, _ = instead.Command(l) // the environment is the same
	f.argv[0] = program
	for _, e := range c.Env {
		if name, value, _ := strings.Cut(e, "="); name == "PYTHON" {
			f.python = value
		}
	}
	return f
}

// choose has the engine's Python import the connector of deploy/vllm. choose returns the fallback's
// command if that fails, and logs a warning. Otherwise choose returns argv, also if Python could
// not be asked until ctx ended, within the limit, or at all.
func (f *fallback) choose(ctx context.Context, argv, env []string, log *slog.Logger) []string {
	python, err := interpreter(argv[0], f.python)
	lacks := ""
	if err == nil {
		lacks, err = f.asks(ctx, python, argv[0], env, log)
	}
	switch {
	case ctx.Err() != nil:
		return argv
	case err != nil:
		log.Info("it is not known whether the engine's Python has the connector of kv_offload, starting the engine with it",
			"module", connectorModule, "reason", err)
		return argv
	case lacks == "":
		return argv
	}
	log.Warn("the engine's Python cannot import the connector of kv_offload, starting the engine with vLLM's own tiers "+
		"over S3", "module", connectorModule, "error", lacks, "python", strings.Join(python, " "),
		"kv_offload", f.engine.KVOffload, "s3_endpoint", f.engine.Offload.S3Endpoint,
		"fix", "mend what error names; without the package "+connectorPackage+", run this "+
			"Python with -m pip install DIR/deploy/vllm, or add PYTHONPATH=DIR/deploy/vllm to the engine's env, "+
			"where DIR has this project's sources; then restart the agent")
	f.taken.Store(true)
	return f.argv
}

// OwnTiers says whether the started engine keeps blocks in vLLM's own tiers over S3, in the bucket
// Config.TierBucket. With the fallback of an engine whose Python lacks the connector of deploy/vllm
// that is known before the engine starts.
func (e *Engine) OwnTiers() bool {
	switch {
	case e.sup == nil:
		return false
	case e.sup.fallback != nil:
		return e.sup.fallback.taken.Load()
	}
	return e.config.KVOffload == OffloadKVCachedS3 || e.config.KVOffload == OffloadNIXLKVCachedS3
}

// asks has the interpreter import the connector for a program with this environment. asks returns
// the last line of the import's error, or "" if Python has the connector. asks fails
// once ctx ends, after the limit, and if the interpreter fails. The interpreter is gone when asks
// returns.
func (f *fallback) asks(ctx context.Context, python []string, program string, env []string, log *slog.Logger) (
	lacks string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.limit, fmt.Errorf("no answer within %s", f.limit))
	defer cancel()
	args := append(slices.Clone(python[1:]), "-c", importModule, connectorModule, filepath.Dir(resolved(program)))
	cmd := exec.CommandContext(ctx, python[0], args...)
	cmd.Env, cmd.SysProcAttr, cmd.WaitDelay = env, attributes(), pipeWait
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	stderr := &lineLog{log: log.With("stream", "stderr", "python", python[0])}
	cmd.Stderr = stderr
	said := &lineLog{log: stderr.log} // the error stays its unfinished line
	cmd.Stdout = said
	err = cmd.Run()
	stderr.flush()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() == lacksConnector && len(said.line) > 0:
		return string(said.line), nil
	}
	return "", fmt.Errorf("%s: %w", strings.Join(python, " "), err)
}

// resolved returns the path without symbolic links, or path if that fails.
func resolved(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

// maxFirstLines bounds what interpreter reads of a program, in bytes.
const maxFirstLines = 4096

// interpreter returns the command of the Python that runs the program: by the program's #! line,
// or else the given one.
func interpreter(program, otherwise string) ([]string, error) {
	file, err := os.Open(program)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewReader(io.LimitReader(file, maxFirstLines))
	first, _ := lines.ReadString('\n')
	if python := byShebang(first); python != nil {
		return python, nil
	}
	second, _ := lines.ReadString('\n')
	if python := byTrampoline(second, program); python != "" && strings.HasPrefix(first, "#!") {
		return []string{python}, nil
	}
	if otherwise != "" {
		return []string{otherwise}, nil
	}
	return nil, fmt.Errorf("%s does not name a Python in its first line, and env has no PYTHON", program)
}

// byShebang returns the command of a #! line, as the kernel reads it: a path and at most one
// argument. byShebang returns nil if it runs no Python.
func byShebang(line string) []string {
	text, ok := strings.CutPrefix(strings.TrimSpace(line), "#!")
	text = strings.TrimSpace(text)
	path, arg := text, ""
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		path, arg = text[:i], strings.TrimSpace(text[i:])
	}
	words := []string{path}
	if filepath.Base(path) == "env" {
		words = strings.Fields(arg)
	}
	switch {
	case !ok || !slices.ContainsFunc(words, isPython):
		return nil
	case arg == "":
		return []string{path}
	}
	return []string{path, arg}
}

// byTrampoline returns the Python that the second line of a shell script executes. Installers write
// this line into scripts of a Python whose path is too long for a #! line, has a space, or may move
// together with the script:
//
//	'''exec' "/long/path/python" "$0" "$@"
//	'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
func byTrampoline(line, program string) string {
	text, ok := strings.CutPrefix(strings.TrimSpace(line), "'''exec' ")
	path, _, ends := strings.Cut(text, ` "$0" "$@"`)
	if !ok || !ends {
		return ""
	}
	if strings.HasPrefix(path, `"$(dirname `) {
		path = filepath.Join(filepath.Dir(resolved(program)), strings.Trim(path[strings.LastIndex(path, "/")+1:], `'"`))
	}
	if path = strings.Trim(path, `'"`); !isPython(path) || strings.Contains(path, "$") {
		return ""
	}
	return path
}

func isPython(path string) bool {
	base := filepath.Base(path)
	return strings.HasPrefix(base, "python") || strings.HasPrefix(base, "pypy")
}
