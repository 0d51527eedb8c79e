package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// TestSilentReaders: answers that nobody takes stay within the budget, who asks for more is refused by the name of the pool, and
// small answers go on.
func TestSilentReaders(t *testing.T) {
	answers := access.NewPool("answer_bytes", 16<<20, nil)
	p := newCoordFixture(t, func(c *coordConfig) {
		c.Answers, c.Guard = answers, nil
		c.ConnContext = func(ctx context.Context, raw net.Conn) context.Context {
			require.NoError(t, raw.(*conn).Conn.(*net.TCPConn).SetWriteBuffer(1<<10)) // or the kernel would hold all
			return access.ConnContext(ctx, raw)
		}
	})
	for _, key := range []string{"a", "b"} {
		req, err := http.NewRequestWithContext(t.Context(), "PUT", p.base+"/keys/"+key, bytes.NewReader(bytes.Repeat([]byte("v"), 1<<20)))
		require.NoError(t, err)
		resp, err := p.client.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, 200, resp.StatusCode)
	}
	get := func(path string) *http.Response {
		resp, err := p.client.Get(p.base + path)
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	var silent []net.Conn
	ask := func(path string) {
		c, err := net.Dial("tcp", strings.TrimPrefix(strings.TrimSuffix(p.base, "/v1/coordination"), "http://"))
		require.NoError(t, err)
		require.NoError(t, c.(*net.TCPConn).SetReadBuffer(1<<10))
		_, err = fmt.Fprintf(c, "GET /v1/coordination%s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n", path)
		require.NoError(t, err)
		silent = append(silent, c)
		if n := len(silent); n == 1 { // of the first the header comes
			_, err = http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
			require.NoError(t, err)
		}
	}
	for _, path := range []string{"/keys?prefix=true", "/watch?prefix=true&start_revision=1&prev_kv=true"} {
		for range 40 {
			ask(path)
		}
		var refusal *http.Response
		require.Eventually(t, func() bool {
			refusal = get("/keys?prefix=true")
			return refusal.StatusCode != 200
		}, time.Minute, time.Millisecond, path)
		require.Equal(t, 429, refusal.StatusCode)
		text := new(bytes.Buffer)
		_, err := text.ReadFrom(refusal.Body)
		require.NoError(t, err)
		require.Contains(t, text.String(), `"pool.answer_bytes.share"`)
		require.LessOrEqual(t, answers.Used(), 12<<20)
		require.Equal(t, 404, get("/keys/none").StatusCode, "small answers go on")
		for _, c := range silent {
			c.Close()
		}
		silent = nil
		require.Eventually(t, func() bool { return answers.Used() == 0 }, time.Minute, time.Millisecond, path)
	}
}

// TestHalfBodies: large bodies that do not end take no more than their budget, small requests go on, and one that finds no room is refused by
// the name of the pool. It is free again when they have gone.
func TestHalfBodies(t *testing.T) {
	bodies := access.NewPool("request_bytes", 16<<20, nil)
	p := newCoordFixture(t, func(c *coordConfig) { c.Bodies, c.ConnContext, c.Guard = bodies, access.ConnContext, nil })
	host := strings.TrimPrefix(strings.TrimSuffix(p.base, "/v1/coordination"), "http://")
	put := func(size int) (code int, text string) {
		req, err := http.NewRequestWithContext(t.Context(), "PUT", p.base+"/keys/a", bytes.NewReader(make([]byte, size)))
		require.NoError(t, err)
		resp, err := p.client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(all)
	}
	for _, half := range []string{
		"PUT /v1/coordination/keys/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\nv",
		"PUT /v1/coordination/keys/b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nv",
		"POST /v1/coordination/txn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4194304\r\n\r\n{",
		"POST /v1/coordination/leases HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65536\r\n\r\n{",
		"POST /v1/discovery/records:batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4194304\r\n\r\n{",
	} {
		var code int
		var text string
		// The server may accept connections of the last turn after they were closed, so the budget is free some moments later.
		require.Eventually(t, func() bool { code, text = put(1 << 20); return code == 200 }, time.Minute, time.Millisecond, half)
		var open []net.Conn
		require.Eventually(t, func() bool {
			for range 20 {
				c, err := net.Dial("tcp", host)
				require.NoError(t, err)
				open = append(open, c)
				_, err = io.WriteString(c, half)
				require.NoError(t, err)
			}
			code, text = put(1 << 20)
			return code == 429
		}, time.Minute, 10*time.Millisecond, half)
		require.Contains(t, text, `"pool.request_bytes.share"`)
		require.LessOrEqual(t, bodies.Used(), 12<<20)
		code, text = put(10_000)
		require.Equal(t, 200, code, text)
		for _, c := range open {
			c.Close()
		}
	}
	require.Eventually(t, func() bool { return bodies.Used() == 0 }, time.Minute, time.Millisecond)
}

// TestLongAnswers: an answer of several pieces is the same as a whole, compressed or not, and one that fails in the middle breaks off.
func TestLongAnswers(t *testing.T) {
	element := []byte(strings.Repeat("0123456789abcdef", 600))
	var failure error
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp := &response{ResponseWriter: w}
		if acceptsGzip(r.Header) {
			resp.packer = newPacker()
		}
		if err := writePieces(resp, 1<<20, func(put func([]byte)) error {
			for range 50 {
				put(element)
			}
			put(bytes.Repeat(element, 20))
			put([]byte("end"))
			return failure
		}); err != nil {
			writeError(resp, err)
		}
	}))
	defer s.Close()
	want := strings.Repeat(string(element), 70) + "end\n"
	for _, compressed := range []bool{false, true} {
		failure = nil
		client := &http.Client{Transport: &http.Transport{DisableCompression: !compressed}}
		resp, err := client.Get(s.URL)
		require.NoError(t, err)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, want, string(got))
		require.Equal(t, compressed, resp.Uncompressed)
		require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		failure = io.ErrUnexpectedEOF
		resp, err = client.Get(s.URL)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		require.Error(t, err)
		client.CloseIdleConnections()
	}
}

// TestOneWayOut: only the writers that know the budget write answers.
func TestOneWayOut(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if n := len(regexp.MustCompile(`\b(w|r\.ResponseWriter)\.Write\(|Fprint\w*\(\w*\.?w\b|io\.Copy\(`).FindAll(text, -1)); n > 0 {
			found[file] = n
		}
	}
	require.Equal(t, map[string]int{
		"conn.go":              3, // writeWhole twice, eventStream.write
		"coordination_keys.go": 1, // download.write: parts of 128 KiB, of two backups at a time
		"server.go":            1, // response.Write
	}, found, "write, writePieces or writeLarge charges the budget")
}

// TestSharedBodiesWait: a body that many requests share waits for others that are being read, and not for ever. So does the answer to a
// change.
func TestSharedBodiesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 1<<20, nil)
		send := func(patience time.Duration) int {
			w := httptest.NewRecorder()
			resp := &response{ResponseWriter: w, answers: answers, caller: t.Context()}
			release, err := reserve(resp, 1<<19, patience)
			if err != nil {
				writeError(resp, err)
				return w.Code
			}
			defer release()
			writeReserved(resp, 200, make([]byte, 1<<19), 1<<19)
			return w.Code
		}
		release, err := answers.TakeBytes(t.Context(), "test", 1<<19, 0)
		require.NoError(t, err)
		require.Equal(t, 429, send(0))
		require.Equal(t, 429, send(sharedPatience))
		w := httptest.NewRecorder()
		write(&response{ResponseWriter: w, answers: answers, caller: t.Context(), changes: true}, 200, make([]byte, 1<<19))
		require.Equal(t, 504, w.Code, "a change that was made is not refused")
		require.Contains(t, w.Body.String(), "was carried out")
		time.AfterFunc(sharedPatience/2, release)
		require.Equal(t, 200, send(sharedPatience))
		require.Zero(t, answers.Used())
	})
}

// TestRefusedBeforeItIsBuilt: an answer without room is refused before anything of it is rendered.
func TestRefusedBeforeItIsBuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 1<<20, nil)
		full, err := answers.TakeBytes(t.Context(), "test", 1<<19, 0)
		require.NoError(t, err)
		defer full()
		more, err := answers.TakeBytes(t.Context(), "test", 1<<18-1, 0)
		require.NoError(t, err)
		defer more()
		i := &instance.Instance{Key: instance.Key{Namespace: "default", Service: "web", ID: "a"}, Spec: instance.Spec{Metadata: map[string]string{"a": strings.Repeat("x", 200<<10)}}}
		view := instance.NewView(1, []*instance.Instance{i}, instance.NewRenderings(1<<22))
		built := 0
		resp := &response{ResponseWriter: httptest.NewRecorder(), answers: answers, caller: t.Context()}
		for name, answer := range map[string]func() error{
			"shared": func() error { return writeInstances(resp, "web", instance.Result{View: view}) },
			"page": func() error {
				return (&agentAPI{Agent: Agent{Catalog: newRegistry()}}).writeServices(resp, view, 0, 1)
			},
			"list": func() error {
				return writeList(resp, "[", view.Instances, (*instance.Instance).Bytes, func(*instance.Instance) []byte { built++; return []byte("x") }, "]")
			},
			"record": func() error {
				return new(bufferPool).write(resp, 200<<10, func(b []byte) []byte { built++; return b })
			},
		} {
			err := answer()
			require.ErrorIs(t, err, fault.PoolExhausted, name)
			require.Equal(t, "pool.answer_bytes.share", fault.FieldOf(err), name)
			code, _ := bodyOf(err)
			require.Equal(t, 429, code)
		}
		view.Form("httpapi", func() []byte { built++; return nil })
		for _, name := range []string{"dialect.Brief", "dialect.Service"} {
			for range view.Pieces(name, 0, 1, func(*instance.Instance) []byte { built++; return []byte("x") }) {
				continue
			}
		}
		require.Equal(t, 3, built, "only this test renders")
	})
}

// TestSilentReadersOfLists: readers of the biggest lists of instances who do not read stay within the budget, and
// honest calls pass.
func TestSilentReadersOfLists(t *testing.T) {
	answers := access.NewPool("answer_bytes", 4<<20, nil)
	a := newAgentFixture(t, func(c *Config) {
		c.Answers, c.Guard = answers, nil
		c.ConnContext = func(ctx context.Context, raw net.Conn) context.Context {
			require.NoError(t, raw.(*conn).Conn.(*net.TCPConn).SetWriteBuffer(1<<10)) // or the kernel would hold all
			return access.ConnContext(ctx, raw)
		}
	})
	for n := range 100 {
		k := instance.Key{Namespace: "default", Service: "big", ID: fmt.Sprint("i", n)}
		a.put(k, &instance.Instance{Key: k, Status: instance.StatusUp, Spec: instance.Spec{
			Host: "10.0.0.1", Port: 80, Metadata: map[string]string{"a": strings.Repeat("x", 4000), "b": strings.Repeat("y", 4000)},
		}})
	}
	k := instance.Key{Namespace: "default", Service: "small", ID: "a"}
	a.put(k, &instance.Instance{Key: k, Status: instance.StatusUp, Spec: instance.Spec{Host: "10.0.0.1", Port: 80}})
	for _, path := range []string{"/v1/services/big/instances", "/v1/services/big", "/v1/services", "/v1/prometheus/sd"} {
		var silent []net.Conn
		most := 0
		for range 40 {
			c, err := net.Dial("tcp", strings.TrimPrefix(a.base, "http://"))
			require.NoError(t, err)
			require.NoError(t, c.(*net.TCPConn).SetReadBuffer(1<<10))
			_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			require.NoError(t, err)
			silent = append(silent, c)
			most = max(most, answers.Used())
		}
		require.Eventually(t, func() bool { most = max(most, answers.Used()); return most > 1<<20 }, time.Minute, time.Millisecond, path)
		require.LessOrEqual(t, most, 3<<20)
		require.Equal(t, 200, a.send(t, "GET /v1/services/small/instances", "").code, "small answers go on")
		for _, c := range silent {
			c.Close()
		}
		require.Eventually(t, func() bool { return answers.Used() == 0 }, time.Minute, time.Millisecond, path)
	}
}

// reads counts what is asked of a group.
type reads struct {
	*coordtest.Solo
	n int
}

func (r *reads) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	r.n++
	return r.Solo.Read(ctx, q)
}

func (r *reads) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	r.n++
	return r.Solo.Execute(ctx, cmd)
}

// TestRefusedBeforeTheGroupIsAsked: lists of the group wait for room of a page before the group is asked.
func TestRefusedBeforeTheGroupIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 8<<20, nil)
		group := &reads{Solo: coordtest.New(coordtest.Config{})}
		s := New(Config{
			Answers: answers, Metrics: http.NotFoundHandler(),
			Coordination: coordinationOf(t, grpcapi.Config{Coordination: &grpcapi.Coordination{Service: group, Admin: group, Owner: ownerOf}}),
		})
		send := func(line, body string) *httptest.ResponseRecorder {
			method, path, _ := strings.Cut(line, " ")
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest(method, "http://localhost/v1/coordination"+path, strings.NewReader(body)))
			return w
		}
		require.Equal(t, 200, send("PUT /requirements/store", storage).Code)
		require.Equal(t, 200, send("PUT /keys/a", "v").Code)
		for line, body := range map[string]string{
			"GET /keys?prefix=true": "", "GET /locks": "", "GET /leases": "", "GET /requirements": "",
			"POST /txn": `{"then":[{"range":{"key":"YQ==","range_end":"Yg=="}}]}`,
		} {
			want := send(line, body)
			require.Equal(t, 200, want.Code, want.Body.String())
			var releases []func()
			for left := 8 << 20; left > 20<<10; left = 8<<20 - answers.Used() {
				other := access.With(t.Context(), access.Principal{Name: fmt.Sprint("other", left)})
				release, err := answers.TakeWithin(other, "test", left/2, 0)
				require.NoError(t, err)
				releases = append(releases, release)
			}
			asked := group.n
			got := send(line, body)
			require.Equal(t, 429, got.Code, line)
			require.Contains(t, got.Body.String(), `"pool.answer_bytes`)
			require.Equal(t, asked, group.n, line)
			require.Equal(t, 200, send("GET /keys/a", "").Code, "a small answer goes on")
			for _, release := range releases {
				time.AfterFunc(2*time.Second, release)
			}
			require.Equal(t, want.Code, send(line, body).Code, line)
			synctest.Wait()
			require.Zero(t, answers.Used(), line)
		}
	})
}
