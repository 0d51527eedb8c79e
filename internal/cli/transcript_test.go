package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/invite"
	"github.com/blackhole/blackhole/pkg/fault"
)

var update = flag.Bool("update", false, "write what the commands print into the transcripts")

// TestTranscripts plays the dialogues in testdata/transcripts. A line that begins with "$" is
// a command. Its standard output follows, then its standard error with the prefix "! ", then
// "? CODE" for an exit code other than 0. Lines before the first command are comments. PEER
// is the address of a running peer, and TMP is a new directory.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/transcripts/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			got := play(t, string(data), serve(t, new(fake)))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			}
			require.Equal(t, string(data), got)
		})
	}
}

// play returns the dialogue with the current output of its commands.
func play(t *testing.T, script, peer string) string {
	words := strings.NewReplacer("PEER", peer, "TMP", t.TempDir())
	undo := []string{}
	for _, name := range []string{"PEER", "TMP"} {
		undo = append(undo, words.Replace(name), name)
	}
	var out strings.Builder
	intro, _, _ := strings.Cut("\n"+script, "\n$ ")
	out.WriteString(strings.TrimPrefix(intro, "\n"))
	for line := range strings.SplitSeq(script, "\n") {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		fmt.Fprintf(&out, "\n%s\n%s", line, strings.NewReplacer(undo...).Replace(execute(t, words.Replace(command))))
	}
	return strings.TrimPrefix(out.String(), "\n")
}

// execute runs one line: [NAME=VALUE...] blackholed ARG... [< FILE].
func execute(t *testing.T, line string) string {
	args, environ, stdin := shellWords(line), []string(nil), io.Reader(strings.NewReader(""))
	if i := slices.Index(args, "<"); i >= 0 {
		f, err := os.Open(args[i+1])
		require.NoError(t, err)
		defer func() { _ = f.Close() }()
		stdin, args = f, args[:i]
	}
	for args[0] != command.Program {
		environ, args = append(environ, args[0]), args[1:]
	}
	var stdout, stderr bytes.Buffer
	code := testApp(stdin, &stdout, &stderr, environ).Execute(context.Background(), args[1:])
	text := stdout.String()
	for line := range strings.Lines(stderr.String()) {
		text += "! " + line
	}
	if code != 0 {
		text += fmt.Sprintf("? %d\n", code)
	}
	return text
}

// testApp is an app whose daemon prints its settings.
func testApp(stdin io.Reader, stdout, stderr io.Writer, environ []string) App {
	return App{
		Clock:   func() time.Time { return midnight(1).Add(90 * time.Second) },
		Version: "v1.2.3", Build: Build{Revision: "0123456789abcdef", Time: "2026-03-01T00:00:00Z", Platform: "go1.26 linux/amd64"}, Stdin: stdin, Stdout: stdout, Stderr: stderr, Environ: environ,
		Identity: func(string) (string, error) { return provider, nil },
		Examine:  func(config.Config, time.Time) (*fault.Problem, []fault.Problem) { return nil, nil },
		Reclaim: func(dir string) (int, error) {
			if strings.HasSuffix(dir, "/b") {
				return 0, fault.New("daemon.Reclaim", fault.Conflict, "the offers are not suspended: there is nothing to reclaim")
			}
			return 2, nil
		},
		NetworkKeys: func(dir string) ([]identity.Key, error) {
			if strings.HasSuffix(dir, "/b") {
				return nil, nil
			}
			key, err := identity.NewKey(strings.NewReader(strings.Repeat("key ", 8)))
			return []identity.Key{key}, err
		},
		Join: func(dir string, i invite.Invitation) error {
			fmt.Fprintf(stderr, "join %s by %d addresses, with key %t\n", i.Name, len(i.Addresses), i.Key != nil)
			return errors.Join(os.MkdirAll(dir, 0o700), config.Joined{Name: i.Name, Profile: i.Profile, Bootstrap: i.Addresses, Closed: i.Closed}.Save(dir))
		},
		Run: func(_ context.Context, c config.Config, r Runner) error {
			fmt.Fprintf(r.Stderr, "network %s, profile %s, data %s, listen %q, bootstrap %q, http %s, grpc %s\n",
				c.NetworkName(), c.Profile, c.Data, c.Listen, c.Bootstrap, c.HTTP, c.GRPC)
			if r.Alone {
				fmt.Fprintln(r.Stderr, "alone")
			}
			if r.Joined != "" {
				fmt.Fprintln(r.Stderr, "joined", r.Joined)
			}
			if c.Network.Closed {
				fmt.Fprintln(r.Stderr, "the network is closed")
			}
			if c.HTTP == "127.0.0.1:1" {
				return fault.In("http", fault.New("daemon.Run", fault.Unavailable, "address in use"))
			}
			return nil
		},
	}
}

// shellWords splits a line at spaces outside of quotes.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, inWord := rune(0), false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, inWord = r, true
		case quote == 0 && r == ' ':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	return words
}
