package fence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestGuarded tests the common rule of all guards: a write happens if and only if no greater
// token came before.
func TestGuarded(t *testing.T) {
	for name, open := range map[string]func(dir string) func() fence.Guarded{
		"guard": func(string) func() fence.Guarded {
			g := new(fence.Guard)
			return func() fence.Guarded { return g }
		},
		"file, opened each time": func(dir string) func() fence.Guarded {
			return func() fence.Guarded { return fence.NewFile(filepath.Join(dir, "f")) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				dir, err := os.MkdirTemp("", "fence")
				require.NoError(t, err)
				defer func() { _ = os.RemoveAll(dir) }()
				next, highest := open(dir), fence.Token(0)
				for _, token := range rapid.SliceOfN(rapid.Int64Range(-1, 9), 0, 20).Draw(t, "tokens") {
					wrote := false
					err := next().Do(fence.Token(token), func() error { wrote = true; return nil })
					switch {
					case token <= 0:
						require.ErrorIs(t, err, fault.Invalid)
					case fence.Token(token) < highest:
						require.ErrorIs(t, err, fault.Conflict)
					default:
						require.NoError(t, err)
						highest = fence.Token(token)
					}
					require.Equal(t, err == nil, wrote)
				}
			})
		})
	}
}

func TestGuard(t *testing.T) {
	var g fence.Guard
	require.Zero(t, g.Highest())
	require.NoError(t, g.Check(3))
	require.ErrorIs(t, g.Check(2), fault.Conflict)
	require.Equal(t, fence.Token(3), g.Highest())
	failure := errors.New("disk on fire")
	require.ErrorIs(t, g.Do(4, func() error { return failure }), failure)
	require.Equal(t, fence.Token(4), g.Highest(), "who failed to write holds the lock all the same")
}

// TestOneAtATime expects writes to exclude each other.
func TestOneAtATime(t *testing.T) {
	for name, g := range map[string]fence.Guarded{
		"guard": new(fence.Guard), "file": fence.NewFile(filepath.Join(t.TempDir(), "f")),
	} {
		t.Run(name, func(t *testing.T) {
			inside := 0
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					assert.NoError(t, g.Do(1, func() error {
						inside++
						defer func() { inside-- }()
						assert.Equal(t, 1, inside)
						return nil
					}))
				})
			}
			all.Wait()
		})
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	f := fence.NewFile(path)
	highest, err := f.Highest()
	require.NoError(t, err)
	require.Zero(t, highest)
	require.NoError(t, f.Write(7, []byte("seven"), 0o600))
	require.ErrorIs(t, f.Write(6, []byte("six"), 0o600), fault.Conflict)
	require.NoError(t, fence.NewFile(path).Write(7, []byte("seven again"), 0o640))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "seven again", string(text))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	highest, err = f.Highest()
	require.NoError(t, err)
	require.Equal(t, fence.Token(7), highest)
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 3, "and nothing half-written")
}

// TestFileDamaged expects a damaged token to refuse every writer.
func TestFileDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"", "7\n", "fencing token, format 1", "fencing token, format 1\n", "fencing token, format 1\nx\n",
		"fencing token, format 1\n-1\n", "fencing token, format 1\n0\n", "fencing token, format 1\n7x\n", "fencing token, format 0\n7\n"} {
		require.NoError(t, os.WriteFile(path+".fence", []byte(text), 0o600))
		require.ErrorIs(t, fence.NewFile(path).Write(9, nil, 0o600), fault.Internal)
	}
	later := []byte("fencing token, format 2\nseven")
	require.NoError(t, os.WriteFile(path+".fence", later, 0o600))
	err := fence.NewFile(path).Write(9, nil, 0o600)
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "f.fence has format 2, this program reads formats 1 to 1")
	after, err := os.ReadFile(path + ".fence")
	require.NoError(t, err)
	require.Equal(t, later, after)
	_, err = os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorIs(t, fence.NewFile(filepath.Join(t.TempDir(), "none", "f")).Write(1, nil, 0o600), fault.Internal)
}

// TestFileBetweenProcesses runs several processes that write with rising tokens: see TestMain.
func TestFileBetweenProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	path := filepath.Join(t.TempDir(), "f")
	var all sync.WaitGroup
	for p := range 3 {
		all.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "FENCE_TEST_FILE="+path, "FENCE_TEST_FIRST="+strconv.Itoa(p+1))
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s", out)
		})
	}
	all.Wait()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "60", string(text), "the greatest token wrote last")
}

func TestMain(m *testing.M) {
	path := os.Getenv("FENCE_TEST_FILE")
	if path == "" {
		os.Exit(m.Run())
	}
	first, _ := strconv.Atoi(os.Getenv("FENCE_TEST_FIRST"))
	f := fence.NewFile(path)
	for token := first; token <= 57+first; token += 3 {
		err := f.Do(fence.Token(token), func() error {
			before, err := os.ReadFile(path)
			if old, _ := strconv.Atoi(string(before)); err == nil && old > token {
				return errors.New("a stale writer came through")
			}
			return os.WriteFile(path, []byte(strconv.Itoa(token)), 0o600)
		})
		if err != nil && fault.KindOf(err) != fault.Conflict {
			_, _ = io.WriteString(os.Stderr, err.Error())
			os.Exit(1)
		}
	}
}

func TestHandler(t *testing.T) {
	wrote := 0
	server := httptest.NewServer(fence.Handler(new(fence.Guard), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			wrote++
		}
		w.WriteHeader(http.StatusNoContent)
	})))
	defer server.Close()
	for _, c := range []struct {
		method, token string
		status        int
	}{
		{"GET", "", 204}, {"PUT", "", 428}, {"PUT", "x", 400}, {"PUT", "0", 400}, {"PUT", "-3", 400}, {"PUT", "99999999999999999999", 400},
		{"PUT", "5", 204}, {"PUT", "5", 204}, {"PUT", "4", 412}, {"GET", "4", 204}, {"PUT", "6", 204},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, server.URL, nil)
		require.NoError(t, err)
		if c.token != "" {
			req.Header.Set(fence.Header, c.token)
		}
		resp, err := server.Client().Do(req)
		require.NoError(t, err)
		require.Equal(t, c.status, resp.StatusCode, "%+v", c)
		if resp.StatusCode >= 400 {
			require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
		}
		require.NoError(t, resp.Body.Close())
	}
	require.Equal(t, 3, wrote)
	req := httptest.NewRequestWithContext(t.Context(), "PUT", "/", nil)
	fence.Sign(req, 42)
	require.Equal(t, "42", req.Header.Get(fence.Header))
}

// row is a database with a single row (token, value) and a single statement.
type row struct {
	mu    sync.Mutex
	token int64
	value string
	fail  error
}

const statement = "UPDATE row SET value = ?, token = ? WHERE token <= ?"

func (r *row) Connect(context.Context) (driver.Conn, error) { return conn{r}, nil }
func (r *row) Driver() driver.Driver                        { return nil }

type conn struct{ *row }

func (c conn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c conn) Close() error                        { return nil }
func (c conn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }

func (c conn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil || query != statement {
		return nil, errors.Join(c.fail, errors.New("cannot "+strings.ToLower(query)))
	}
	if c.token > args[2].Value.(int64) {
		return driver.RowsAffected(0), nil
	}
	c.value, c.token = args[0].Value.(string), args[1].Value.(int64)
	return driver.RowsAffected(1), nil
}

func TestExec(t *testing.T) {
	r := new(row)
	db := sql.OpenDB(r)
	defer func() { require.NoError(t, db.Close()) }()
	set := func(token fence.Token, value string) error {
		return fence.Exec(t.Context(), db, token, statement, value, token, token)
	}
	require.NoError(t, set(5, "five"))
	require.NoError(t, set(5, "five again"))
	require.ErrorIs(t, set(4, "four"), fault.Conflict)
	require.Equal(t, "token", fault.FieldOf(set(4, "four")))
	require.ErrorIs(t, set(0, "none"), fault.Invalid)
	require.Equal(t, "five again", r.value)
	r.fail = errors.New("out of order")
	require.ErrorIs(t, set(6, "six"), fault.Internal)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, fence.Exec(ctx, db, 7, statement, "seven", 7, 7), fault.Canceled)
}
