package agents

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// renewed is the number of reads of one clone.
const renewed = 500

// repository is a bare one, and a clone for each agent. An agent commits what it changed in the files that it has
// read, and pushes on top of what others pushed meanwhile; if git cannot merge, it reads again.
type repository struct {
	dir    string // of all
	shared string
	turns  chan struct{} // pushes at a time: more cost each other their races for the branch
}

// newRepository makes the bare repository with its files, and the hook that calls binary.
func newRepository(ctx context.Context, dir string, files int, binary string) (*repository, error) {
	s := &repository{dir: dir, shared: filepath.Join(dir, "shared.git"), turns: make(chan struct{}, runtime.GOMAXPROCS(0))}
	seed := filepath.Join(dir, "seed")
	if err := fill(seed, files); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "."}, {"commit", "-qm", "files"}, {"clone", "-q", "--bare", ".", s.shared},
		{"-C", s.shared, "config", "receive.advertisePushOptions", "true"}, {"-C", s.shared, "config", "gc.autoDetach", "false"},
		{"-C", s.shared, "config", "core.fsync", "none"},
	} {
		if out, err := s.git(ctx, seed, args...); err != nil {
			return nil, fault.New("agents.repository", fault.Unavailable, "git %v: %w\n%s", args, err, out)
		}
	}
	hook := fmt.Sprintf("#!/bin/sh\nexec '%s' guard git\n", binary)
	err := os.WriteFile(filepath.Join(s.shared, "hooks", "pre-receive"), []byte(hook), 0o700) //nolint:gosec // a hook runs
	return s, fault.As("agents.repository", fault.Unavailable, err)
}

// git runs git without the settings of this user.
func (s *repository) git(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := s.command(ctx, dir, args...).CombinedOutput()
	return string(out), err
}

func (s *repository) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "maintenance.auto=false", "-c", "core.fsync=none"}, args...)...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second // the server's end of a killed push goes on
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "LC_ALL=C", "GIT_EDITOR=true",
		"GIT_AUTHOR_NAME=agent", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=agent", "GIT_COMMITTER_EMAIL=a@example.com")
	return cmd
}

// read brings the clone up to date.
func (s *repository) read(ctx context.Context, a *agent, files []string) (map[string]string, error) {
	steps := [][]string{{"fetch", "-q", "origin", "main"}, {"reset", "-q", "--hard", "FETCH_HEAD"}}
	if a.reads++; a.reads%renewed == 1 { // a clone is never packed, so it is made anew
		if err := os.RemoveAll(a.clone); err != nil {
			return nil, fault.As("agents.read", fault.Unavailable, err)
		}
		a.clone = filepath.Join(s.dir, fmt.Sprintf("clone-%02d", a.index))
		steps = [][]string{{"clone", "-q", s.shared, a.clone}}
	}
	for _, args := range steps {
		dir := a.clone
		if args[0] == "clone" {
			dir = s.dir
		}
		if out, err := s.git(ctx, dir, args...); err != nil {
			return nil, fault.New("agents.read", fault.Unavailable, "git %v: %w\n%s", args, err, out)
		}
	}
	return load(a.clone, files)
}

func (s *repository) write(ctx context.Context, a *agent, e edit) (verdict, error) {
	message := e.line + "\n\n"
	push := []string{"push", "-q", "origin", "HEAD:main"}
	for _, file := range slices.Sorted(maps.Keys(e.texts)) {
		if err := os.WriteFile(filepath.Join(a.clone, file), []byte(e.texts[file]), 0o600); err != nil {
			return refused, fault.As("agents.write", fault.Unavailable, err)
		}
		message += fmt.Sprintf("%s %d\n", file, e.tokens[file])
		push = append(push, "-o", fmt.Sprintf("token=%d:%s", e.tokens[file], file))
	}
	if out, err := s.git(ctx, a.clone, "commit", "-qam", message); err != nil {
		return refused, fault.New("agents.write", fault.Unavailable, "git commit: %w\n%s", err, out)
	}
	if err := e.pause(ctx); err != nil {
		return refused, err
	}
	s.turns <- struct{}{}
	defer func() { <-s.turns }()
	for {
		if out, err := s.git(ctx, a.clone, "pull", "-q", "--rebase", "origin", "main"); err != nil {
			if _, aborted := s.git(ctx, a.clone, "rebase", "--abort"); aborted != nil {
				return refused, fault.New("agents.write", fault.Unavailable, "git pull --rebase: %w\n%s", err, out)
			}
			return changed, nil
		}
		life, end := context.WithCancel(ctx)
		if e.dies {
			time.AfterFunc(time.Duration(a.rng.Int64N(int64(100*time.Millisecond))), end)
		}
		out, err := s.git(life, a.clone, push...)
		died := life.Err() != nil
		end()
		switch {
		case ctx.Err() != nil:
			return refused, fault.Wrap("agents.write", ctx.Err())
		case died:
			return unknown, nil
		case err == nil:
			return accepted, nil
		case strings.Contains(out, "is stale, "):
			return refused, nil
		case !raced(out) && !strings.Contains(err.Error(), "broken pipe"): // the server's git may leave first
			return refused, fault.New("agents.write", fault.Internal, "git push: %w\n%s", err, out)
		}
	}
}

// raced reports whether git refused a push because the branch went on.
func raced(out string) bool {
	for _, words := range []string{"fetch first", "non-fast-forward", "cannot lock ref", "failed to update ref"} {
		if strings.Contains(out, words) {
			return true
		}
	}
	return false
}

// check reads a new clone, and the tokens of each file through all commits. A commit that takes a line away is a
// lost edit, whoever brought it: the files are then not what the report expects.
func (s *repository) check(ctx context.Context, files []string) (texts map[string]string, older int, err error) {
	const op = "agents.check"
	clone := filepath.Join(s.dir, "check")
	if out, err := s.git(ctx, s.dir, "clone", "-q", s.shared, clone); err != nil {
		return nil, 0, fault.New(op, fault.Unavailable, "git clone: %w\n%s", err, out)
	}
	if texts, err = load(clone, files); err != nil {
		return nil, 0, err
	}
	cmd := s.command(ctx, clone, "log", "--reverse", "--format=%B", "--no-color", "-p", "-U0", "--no-renames", "main")
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, 0, fault.As(op, fault.Unavailable, err)
	}
	older, removed, err := history(pipe)
	_, _ = io.Copy(io.Discard, pipe) // what follows a fault
	if failed := cmd.Wait(); err == nil {
		err = failed
	}
	if err == nil && removed != "" {
		err = fault.New(op, fault.Conflict, "a commit takes a line away: %s", removed)
	}
	return texts, older, fault.As(op, fault.Unavailable, err)
}

// history reads a log with patches: the tokens that a message names for its files, and the first line that a patch
// takes away.
func history(log io.Reader) (older int, removed string, err error) {
	type mark struct {
		token int64
		by    string
	}
	last := map[string]mark{}
	by := ""
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		line := lines.Text()
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "---") && removed == "":
			removed = line
		case len(words) != 2:
		case strings.HasPrefix(words[0], "agent-"):
			by = words[0]
		case strings.HasPrefix(words[0], "file-"):
			token, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				return 0, "", err
			}
			if was := last[words[0]]; token < was.token || token == was.token && by != was.by {
				older++
			}
			last[words[0]] = mark{token, by}
		}
	}
	return older, removed, lines.Err()
}
