package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

// ByHold is the way of this program: all files of an edit by one call of the tool hold, at any of the peers, and
// pushes with its tokens to a repository whose hook is the guard. The peers are host:port of HTTP.
func ByHold(ctx context.Context, c Config, peers []string) (Way, error) {
	s, err := newRepository(ctx, filepath.Join(c.Dir, "guarded"), c.Files, c.Binary)
	return Way{"hold", "repository with guard", &desk{peers: peers, ttl: c.TTL, http: &http.Client{Timeout: callLimit}}, s}, err
}

// ByStamps is the way of others: a lock file for each file, with a time stamp, which whoever finds it older than
// its time takes over. The files are in one folder.
func ByStamps(c Config) (Way, error) {
	l := &stamps{dir: filepath.Join(c.Dir, "locks"), ttl: c.TTL}
	s := &folder{dir: filepath.Join(c.Dir, "folder"), last: map[string]int64{}}
	return Way{"lock files", "one folder", l, s}, errors.Join(os.MkdirAll(l.dir, 0o700), fill(s.dir, c.Files))
}

const (
	callLimit = 10 * time.Second       // for one call of a tool
	breath    = 100 * time.Millisecond // after a failed one
	look      = 20 * time.Millisecond  // from one look at a lock file to the next
	waiting   = 4 * time.Second        // for files, in one call; below the shortest time of a hold
)

// desk is the tools of the peers about names.
type desk struct {
	peers []string
	ttl   time.Duration
	http  *http.Client
}

// answer is what the tools answer.
type answer struct {
	Holding bool              `json:"holding"`
	Tokens  map[string]string `json:"tokens"`
	Names   []struct {
		Name  string `json:"name"`
		By    []any  `json:"by"`
		Waits []any  `json:"waits"`
	} `json:"names"`
}

// args are what an agent gives to hold.
func (d *desk) args(a agent, files []string, wait time.Duration) map[string]any {
	return map[string]any{"names": files, "agent": a.name, "ttl": int(d.ttl.Seconds()), "wait": int(wait.Seconds()), "why": "edit"}
}

func (d *desk) keep(ctx context.Context, a agent, files []string) {
	if body, err := request("hold", d.args(a, files, 0)); err == nil {
		_, _ = d.post(ctx, d.peers[a.peer%len(d.peers)], body) // the next one follows soon
	}
}

func (d *desk) take(ctx context.Context, a *agent, files []string) (map[string]int64, error) {
	for {
		got, err := d.call(ctx, a, "hold", d.args(*a, files, min(waiting, d.ttl-time.Second)))
		if err != nil {
			return nil, err
		}
		if !got.Holding {
			continue // it keeps its place
		}
		tokens := make(map[string]int64)
		for _, file := range files {
			if tokens[file], err = strconv.ParseInt(got.Tokens[file], 10, 64); err != nil {
				return nil, fault.New("agents.take", fault.Internal, "%s has no token: %w", file, err)
			}
		}
		return tokens, nil
	}
}

func (d *desk) release(ctx context.Context, a *agent, _ []string) error {
	_, err := d.call(ctx, a, "release", map[string]any{"agent": a.name})
	return err
}

func (d *desk) who(ctx context.Context, files []string) string {
	got, err := d.call(ctx, &agent{}, "held", map[string]any{"names": files})
	return fmt.Sprint(got.Names, err)
}

func (d *desk) left(ctx context.Context) (n int, err error) {
	got, err := d.call(ctx, &agent{}, "held", map[string]any{})
	for _, name := range got.Names {
		if len(name.By)+len(name.Waits) > 0 {
			n++
		}
	}
	return n, err
}

// call calls a tool. After a failure it repeats the call at the next peer, as agents may, until the end of ctx.
func (d *desk) call(ctx context.Context, a *agent, tool string, args map[string]any) (got answer, err error) {
	body, err := request(tool, args)
	if err != nil {
		return got, fault.As("agents.call", fault.Internal, err)
	}
	for {
		got, err = d.post(ctx, d.peers[a.peer%len(d.peers)], body)
		if err == nil {
			return got, nil
		}
		a.peer++
		if late := await.Pause(ctx, breath); late != nil {
			return got, errors.Join(late, err)
		}
	}
}

// request is the message of a call.
func request(tool string, args map[string]any) ([]byte, error) {
	return json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": args},
	})
}

func (d *desk) post(ctx context.Context, peer string, body []byte) (got answer, err error) {
	asked, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+peer+"/mcp", bytes.NewReader(body))
	if err != nil {
		return got, err
	}
	asked.Header.Set("Content-Type", "application/json")
	asked.Header.Set("Accept", "application/json, text/event-stream")
	asked.Header.Set("MCP-Protocol-Version", "2025-11-25")
	response, err := d.http.Do(asked)
	if err != nil {
		return got, err
	}
	defer response.Body.Close()
	var message struct {
		Error  json.RawMessage `json:"error"`
		Result struct {
			IsError    bool            `json:"isError"`
			Content    json.RawMessage `json:"content"`
			Structured answer          `json:"structuredContent"`
		} `json:"result"`
	}
	if err := json.NewDecoder(response.Body).Decode(&message); err != nil {
		return got, fmt.Errorf("%s: %w", response.Status, err)
	}
	if message.Error != nil || message.Result.IsError {
		return got, fmt.Errorf("%s%s", message.Error, message.Result.Content)
	}
	return message.Result.Structured, nil
}

// stamps are lock files. They have no tokens: those here number the takes, for the check alone.
type stamps struct {
	dir string
	ttl time.Duration

	mu    sync.Mutex // guards the number
	takes int64
}

func (s *stamps) path(file string) string { return filepath.Join(s.dir, file+".lock") }

func (s *stamps) take(ctx context.Context, a *agent, files []string) (map[string]int64, error) {
	tokens := make(map[string]int64)
	for _, file := range files { // in one order, so nobody waits in a circle
		for !s.seize(file, a.name) {
			if err := await.Pause(ctx, look); err != nil {
				return nil, err
			}
		}
		s.mu.Lock()
		s.takes++
		tokens[file] = s.takes
		s.mu.Unlock()
	}
	return tokens, nil
}

// seize makes a lock file, or takes over one that is too old.
func (s *stamps) seize(file, who string) bool {
	mine := []byte(who + " " + time.Now().Format(time.RFC3339Nano))
	f, err := os.OpenFile(s.path(file), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(mine)
		return errors.Join(err, f.Close()) == nil
	}
	text, err := os.ReadFile(s.path(file))
	if err != nil {
		return false
	}
	holder, stamp, _ := strings.Cut(string(text), " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil || holder != who && time.Since(at) <= s.ttl {
		return false
	}
	return os.WriteFile(s.path(file)+"."+who, mine, 0o600) == nil && os.Rename(s.path(file)+"."+who, s.path(file)) == nil
}

func (s *stamps) keep(_ context.Context, a agent, files []string) {
	for _, file := range files {
		if text, err := os.ReadFile(s.path(file)); err == nil && strings.HasPrefix(string(text), a.name+" ") {
			s.seize(file, a.name)
		}
	}
}

func (s *stamps) release(_ context.Context, a *agent, files []string) error {
	for _, file := range files {
		if text, err := os.ReadFile(s.path(file)); err == nil && strings.HasPrefix(string(text), a.name+" ") {
			_ = os.Remove(s.path(file)) // it is its own
		}
	}
	return nil
}

func (s *stamps) who(_ context.Context, files []string) (all string) {
	for _, file := range files {
		text, _ := os.ReadFile(s.path(file))
		all += string(text) + "; "
	}
	return all
}

// left is 0: a lock file is free when its time is over.
func (s *stamps) left(context.Context) (int, error) { return 0, nil }

// folder is one folder that all agents write in.
type folder struct {
	dir string

	mu    sync.Mutex // guards all below
	last  map[string]int64
	older int
}

// fill makes the files of the beginning.
func fill(dir string, n int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.As("agents.fill", fault.Unavailable, err)
	}
	for _, file := range names(n) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(begins()), 0o600); err != nil {
			return fault.As("agents.fill", fault.Unavailable, err)
		}
	}
	return nil
}

// load reads files of a folder.
func load(dir string, files []string) (map[string]string, error) {
	texts := make(map[string]string)
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return nil, fault.As("agents.load", fault.Unavailable, err)
		}
		texts[file] = string(text)
	}
	return texts, nil
}

func (s *folder) read(_ context.Context, _ *agent, files []string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return load(s.dir, files)
}

func (s *folder) write(ctx context.Context, _ *agent, e edit) (verdict, error) {
	if err := e.pause(ctx); err != nil {
		return refused, err
	}
	s.mu.Lock() // a write is whole, so nothing is lost but by its order
	defer s.mu.Unlock()
	for file, text := range e.texts {
		if err := os.WriteFile(filepath.Join(s.dir, file), []byte(text), 0o600); err != nil {
			return refused, fault.As("agents.write", fault.Unavailable, err)
		}
		if e.tokens[file] < s.last[file] {
			s.older++
		}
		s.last[file] = max(s.last[file], e.tokens[file])
	}
	if e.dies {
		return unknown, nil
	}
	return accepted, nil
}

func (s *folder) check(_ context.Context, files []string) (map[string]string, int, error) {
	texts, err := load(s.dir, files)
	return texts, s.older, err
}
