package coordination

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of a guarded push.
const (
	maxRefs    = 256
	maxChanged = 10_000 // paths
)

// Guard makes the command guard.
func Guard(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{Use: "guard", Short: "Refuse writes under a lock that others have by now"}, guardGit(con))
}

func guardGit(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "git", Short: "Refuse a push with stale tokens, as a pre-receive hook", Args: command.NoArgs,
		Long: "Refuse a push that changes a file under a fencing token below the last one that was pushed for it:\n" +
			"somebody has held the file since. It is the hook pre-receive of a repository, and needs its setting\n" +
			"receive.advertisePushOptions. Who pushes gives the tokens of the files as push options: token=N for\n" +
			"all files, or token=N:PATH for one. The tokens are kept in the folder blackhole-tokens of the\n" +
			"repository. The names of locks are no concern of this command: it compares the tokens of a path. Then\n" +
			"an agent pushes by git push -o token=17 origin main.",
		Example: "  " + command.Program + " guard git",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		tokens, err := pushedTokens(con)
		if err != nil {
			return err
		}
		changed, err := pushedPaths(cmd.Context(), con.Stdin)
		if err != nil {
			return err
		}
		dir, err := git(cmd.Context(), "rev-parse", "--absolute-git-dir")
		if err != nil {
			return err
		}
		return fencePaths(filepath.Join(strings.TrimSpace(dir), "blackhole-tokens"), changed, tokens)
	}
	return cmd
}

// pushedTokens reads the push options: the token of each path, and that of all others by "".
func pushedTokens(con *term.Console) (map[string]fence.Token, error) {
	text, ok := con.Env("GIT_PUSH_OPTION_COUNT")
	if !ok {
		return nil, fault.Invalidf("", nil, "the repository takes no push options: run git config receive.advertisePushOptions true in it")
	}
	n, _ := strconv.Atoi(text)
	tokens := make(map[string]fence.Token)
	for i := range min(n, maxChanged) {
		option, _ := con.Env("GIT_PUSH_OPTION_" + strconv.Itoa(i))
		value, is := strings.CutPrefix(option, "token=")
		if !is {
			continue // of another hook
		}
		number, path, _ := strings.Cut(value, ":")
		token, err := strconv.ParseInt(number, 10, 64)
		if err != nil || token < 1 {
			return nil, fault.Invalidf("-o "+option, nil, "must be token=N or token=N:PATH, with a number above 0")
		}
		tokens[path] = fence.Token(token)
	}
	return tokens, nil
}

// pushedPaths returns the paths that a push changes, sorted. It reads a line for each reference: OLD NEW NAME. A
// branch that begins is compared with the present one; the end of a branch changes no file.
func pushedPaths(ctx context.Context, lines io.Reader) ([]string, error) {
	var all []string
	refs := bufio.NewScanner(io.LimitReader(lines, 1<<20))
	for n := 0; refs.Scan(); n++ {
		part := strings.Fields(refs.Text())
		if len(part) != 3 || n >= maxRefs {
			return nil, fault.Invalidf("", nil, "git gives at most %d lines of three words to this hook", maxRefs)
		}
		from, to := part[0], part[1]
		if strings.Trim(to, "0") == "" {
			continue
		}
		if strings.Trim(from, "0") == "" {
			base, err := git(ctx, "merge-base", "HEAD", to)
			if err != nil { // nothing in common: all files are new
				base, err = git(ctx, "hash-object", "-t", "tree", os.DevNull)
			}
			if err != nil {
				return nil, err
			}
			from = strings.TrimSpace(base)
		}
		text, err := git(ctx, "diff", "--name-only", "--no-renames", "-z", from, to, "--")
		if err != nil {
			return nil, err
		}
		all = append(all, strings.Split(strings.TrimSuffix(text, "\x00"), "\x00")...)
	}
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(path string) bool { return path == "" })
	if len(all) > maxChanged {
		return nil, fault.New("", fault.TooLarge, "the push changes %d files, and at most %d can be compared: push in parts", len(all), maxChanged)
	}
	return all, refs.Err()
}

// fencePaths compares the tokens of all paths before it notes any.
func fencePaths(dir string, changed []string, tokens map[string]fence.Token) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	of := func(path string) fence.Token {
		if t, ok := tokens[path]; ok {
			return t
		}
		return tokens[""]
	}
	file := func(path string) *fence.File {
		sum := sha256.Sum256([]byte(path))
		return fence.NewFile(filepath.Join(dir, hex.EncodeToString(sum[:16])))
	}
	stale := func(path string, last fence.Token) error {
		return exit.With(exit.NotAcquired, fault.New("", fault.Conflict, "%s: token %d is stale, %d was pushed already: hold the file again, and merge what others did", path, of(path), last))
	}
	for _, path := range changed {
		if of(path) == 0 {
			return fault.Invalidf("", nil, "%s: the push gives no token for it: hold it, and push with -o token=N", path)
		}
		last, err := file(path).Highest()
		if err != nil {
			return err
		}
		if of(path) < last {
			return stale(path, last)
		}
	}
	for _, path := range changed {
		if err := file(path).Write(of(path), []byte(path+"\n"), 0o644); err != nil {
			if last, failed := file(path).Highest(); failed == nil && of(path) < last {
				return stale(path, last) // by a push at the same time
			}
			return err
		}
	}
	return nil
}

// git runs git in the repository of the hook.
func git(ctx context.Context, args ...string) (string, error) {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fault.New("", fault.Unavailable, "git %s fails: %w: %s", args[0], err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}
