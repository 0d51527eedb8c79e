package consulclient

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/stretchr/testify/require"
)

// TestDifferential plays the same random calls at Consul itself and at a peer, and compares what they answer: codes, keys, values, flags, lock
// indexes, which indexes of a key are equal, sessions, the operations of transactions that fail, outside services with their nodes and checks.
// The words of errors may differ. What else may stands in docs/howto/from-consul.md, and is asked for there. CONSUL_DIFFERENTIAL is the number
// of calls, CONSUL_SEED the seed, CONSUL_PROGRAM a program of Consul, which otherwise is built.
func TestDifferential(t *testing.T) {
	calls, err := strconv.Atoi(os.Getenv("CONSUL_DIFFERENTIAL"))
	if err != nil {
		t.Skip("builds Consul: set CONSUL_DIFFERENTIAL=24000, the number of calls")
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("CONSUL_SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	page, err := os.ReadFile("../../../docs/howto/from-consul.md")
	require.NoError(t, err)
	t.Logf("CONSUL_SEED=%d", seed)
	d := &differential{t: t, Rand: rand.New(rand.NewPCG(seed, 0)), page: string(page)}
	for _, address := range []string{server(t), peer(t)} {
		d.sides = append(d.sides, newSide(t, address))
	}
	for d.n = range calls {
		if d.n%200 == 0 {
			d.begin()
		}
		d.call()
	}
	d.begin()
}

// server runs Consul's server, and returns its address for clients.
func server(t *testing.T) string {
	program := os.Getenv("CONSUL_PROGRAM")
	if program == "" {
		program = filepath.Join(t.TempDir(), "consul")
		peers.Output(t, "testdata/server", "go", "build", "-o", program, "github.com/hashicorp/consul")
	}
	var ports [4]string
	for n := range ports {
		ports[n] = peers.Port(t)
	}
	run := exec.Command(program, "agent", "-dev", "-bind", "127.0.0.1", "-client", "127.0.0.1", "-http-port", ports[0], "-server-port", ports[1],
		"-serf-lan-port", ports[2], "-serf-wan-port", ports[3], "-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1", "-log-level", "error",
		"-hcl", "connect { enabled = false } limits { http_max_conns_per_client = 1000 }")
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		_ = run.Process.Kill()
		_ = run.Wait()
	})
	address := "127.0.0.1:" + ports[0]
	peers.Eventually(t, "Consul has a leader", time.Minute, func() bool {
		answer, err := http.Get("http://" + address + "/v1/health/service/consul?passing")
		if err != nil {
			return false
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		return err == nil && strings.Contains(string(text), "serfHealth")
	})
	return address
}

// side is one of the two servers. What it chooses itself has a symbol, equal at both: sessions in the order of their making, indexes in that of their sight.
type side struct {
	url, node string
	real      map[string]string // by symbol
	symbols   map[string]string
	indexes   map[string][]string // symbols of those of a key
}

func newSide(t *testing.T, address string) *side {
	s := &side{url: "http://" + address + "/v1/"}
	answer, err := http.Get(s.url + "agent/self")
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	var self struct{ Config struct{ NodeName string } }
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&self))
	s.node = self.Config.NodeName
	return s
}

func (s *side) name(symbol, real string) {
	s.real[symbol], s.symbols[real] = real, symbol
}

// symbol finds the symbols in a call: <s1> is the second session, <i3> the fourth index.
var symbol = regexp.MustCompile(`<(n|s\d+|i[^>]*)>`)

func (s *side) expand(text string) string {
	return symbol.ReplaceAllStringFunc(text, func(of string) string {
		switch {
		case of == "<n>":
			return s.node
		case s.real[of] != "":
			return s.real[of]
		case of[1] == 'i':
			return "1"
		}
		return "11111111-2222-3333-4444-555555555555" // it never was
	})
}

// mostDifferences ends the comparison.
const mostDifferences = 20

// differential makes calls. All that a begin leaves is of names that no later one uses.
type differential struct {
	*rand.Rand
	t        *testing.T
	page     string
	sides    []*side
	n        int // of the call
	sessions int
	prefix   string
	began    int // how often
	found    int // differences
	calls    []string
}

// begin ends the sessions, and begins with other names: a lock delay lasts longer than the calls between two begins.
func (d *differential) begin() {
	sessions := d.sessions
	d.sessions = 0
	for n := range sessions {
		d.play("PUT", fmt.Sprintf("session/destroy/<s%d>", n), "")
	}
	d.began, d.calls = d.began+1, nil
	d.prefix = fmt.Sprintf("d%d", d.began)
	for _, s := range d.sides {
		s.real, s.symbols, s.indexes = map[string]string{}, map[string]string{}, map[string][]string{}
	}
}

// differs reports that a peer answers otherwise than Consul, where the page says so in these words.
func (d *differential) differs(words string) bool {
	require.Contains(d.t, strings.Join(strings.Fields(d.page), " "), words, "docs/howto/from-consul.md no longer tells this difference")
	return true
}

// play makes a call at both sides and compares the answers.
func (d *differential) play(method, path, body string) {
	d.t.Helper()
	var said, raw [2]string
	var codes [2]int
	for n, s := range d.sides {
		request, err := http.NewRequestWithContext(d.t.Context(), method, s.url+s.expand(path), strings.NewReader(s.expand(body)))
		require.NoError(d.t, err)
		answer, err := http.DefaultClient.Do(request)
		require.NoError(d.t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(d.t, err)
		_ = answer.Body.Close()
		raw[n] = fmt.Sprint(answer.StatusCode, " ", string(text))
		codes[n] = answer.StatusCode
		said[n] = fmt.Sprint(answer.StatusCode, " ", d.normal(s, path, answer, text))
	}
	if codes == [2]int{500, 400} && d.differs("what a client must mend is 400, also where Consul answers 500, which its clients repeat") {
		return
	}
	if codes == [2]int{500, 200} && strings.Contains(path, "acquire=") && raw[1] == "200 false" &&
		d.differs("a session that has ended gets `false` of a key that another one holds, and no error") {
		return
	}
	if said[0] != said[1] { // later calls use other names, so another difference is of its own
		d.t.Errorf("call %d differs: %s %s %s\nConsul: %s\n%s\npeer: %s\n%s\nbefore it:\n%s", d.n, method, path, body, said[0], raw[0], said[1], raw[1], strings.Join(d.calls, "\n"))
		if d.found++; d.found == mostDifferences {
			d.t.FailNow()
		}
		d.begin()
	}
	d.calls = append(d.calls, fmt.Sprint(method, " ", path, " ", body, " ", said[0]))
}

// normal returns an answer with symbols, and without what is empty within objects.
func (d *differential) normal(s *side, path string, answer *http.Response, text []byte) string {
	failed := answer.StatusCode >= 400
	if failed && answer.StatusCode != http.StatusConflict {
		return ""
	}
	if !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
		return string(text)
	}
	var v any
	read := json.NewDecoder(bytes.NewReader(text))
	read.UseNumber()
	if len(text) == 0 || read.Decode(&v) != nil {
		return string(text)
	}
	if m, ok := v.(map[string]any); ok && strings.HasPrefix(path, "session/create") {
		s.name(fmt.Sprintf("<s%d>", d.sessions), m["ID"].(string))
	}
	v = d.walk(s, path, v)
	if index := answer.Header.Get("X-Consul-Index"); strings.HasPrefix(path, "kv/") && answer.Request.Method == http.MethodGet && !strings.Contains(path, "recurse") && !strings.Contains(path, "keys") {
		key, _ := url.PathUnescape(strings.Split(strings.TrimPrefix(path, "kv/"), "?")[0])
		v = []any{v, s.index(key, index)}
	}
	out, err := json.Marshal(v)
	require.NoError(d.t, err)
	return string(out)
}

// index is the symbol of an index of a key. Those of different keys are not compared: the end of a session counts one up here.
func (s *side) index(key, real string) string {
	of := key + " " + real
	if s.symbols[of] == "" {
		symbol := fmt.Sprintf("<i%s.%d>", key, len(s.indexes[key]))
		s.symbols[of], s.real[symbol] = symbol, real
		s.indexes[key] = append(s.indexes[key], symbol)
	}
	return s.symbols[of]
}

// left are the fields that are not compared, because versions of Consul differ in them, or a peer counts them otherwise.
var left = []string{"LastContact", "KnownLeader", "Index"}

func (d *differential) walk(s *side, path string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) { // symbols come in this order
			of := d.walk(s, path, v[name])
			switch v[name] = of; {
			case slices.Contains(left, name) || of == json.Number("0"):
			case strings.HasSuffix(name, "Index") && name != "LockIndex" && name != "OpIndex":
				if v[name] = ""; strings.HasPrefix(path, "kv/") || path == "txn" {
					v[name] = s.index(fmt.Sprint(v["Key"]), fmt.Sprint(of))
				}
			case name == "What":
				v[name] = "" // the words may differ
			case name == "Definition":
				delete(of.(map[string]any), "Interval")
			}
			tags := name == "ServiceTags" && v["CheckID"] != nil && d.differs("`ServiceTags` of a check are the present ones of its service")
			if slices.Contains(left, name) || tags || empty(v[name]) {
				delete(v, name)
			}
		}
	case []any:
		for n := range v {
			v[n] = d.walk(s, path, v[n])
		}
		if strings.HasPrefix(path, "session/") {
			v = slices.DeleteFunc(v, func(of any) bool { m, ok := of.(map[string]any); return ok && m["ID"] == nil })
		}
		if !strings.HasPrefix(path, "kv/") && path != "txn" && !strings.HasPrefix(path, "catalog/services") {
			slices.SortFunc(v, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		return v
	case string:
		if v == s.node {
			return "<n>"
		}
		if of := s.symbols[v]; of != "" {
			return of
		}
	}
	return v
}

func empty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return v == nil || v == "" || v == false || v == json.Number("0")
}

// call makes one random call.
func (d *differential) call() {
	switch d.IntN(20) {
	case 0, 1, 2, 3, 4, 5:
		d.put()
	case 6, 7, 8, 9, 10:
		d.get()
	case 11, 12:
		d.remove()
	case 13, 14:
		d.session()
	case 15, 16:
		d.txn()
	case 17:
		d.register()
	case 18:
		d.deregister()
	default:
		d.catalog()
	}
}

func pick[T any](d *differential, of ...T) T { return of[d.IntN(len(of))] }

func (d *differential) key() string {
	return d.prefix + "/" + pick(d, "a", "b", "b/c", "b/d/e", "b/", "f", "ü")
}

func escaped(key string) string { return strings.ReplaceAll(url.PathEscape(key), "%2F", "/") }

// of is a session that is, was, or never was; rarely something else.
func (d *differential) of() string {
	if d.IntN(12) == 0 {
		return pick(d, "<s999>", "", "none")
	}
	return fmt.Sprintf("<s%d>", d.IntN(max(d.sessions, 1)))
}

// at is an index that a key has or had, 0, or one that never was.
func (d *differential) at(key string) string {
	seen := d.sides[0].indexes[key]
	if d.IntN(5) == 0 || len(seen) == 0 {
		return pick(d, "0", "1", "99999999")
	}
	return seen[max(len(seen)-1-d.IntN(3), 0)]
}

// some is the query of a call: each parameter with a chance of one in some.
func (d *differential) some(in int, all ...string) string {
	out := []string{}
	for _, one := range all {
		if d.IntN(in) == 0 {
			out = append(out, one)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "?" + strings.Join(out, "&")
}

func (d *differential) put() {
	key := d.key()
	query := d.some(4, fmt.Sprint("flags=", d.Uint64N(4)), pick(d, "acquire=", "acquire=", "release=")+d.of(), "cas="+d.at(key))
	d.play("PUT", "kv/"+escaped(key)+query, pick(d, "", "x", fmt.Sprint(d.IntN(4)), `{"a": 1}`))
}

func (d *differential) get() {
	key := escaped(pick(d, d.key(), d.key(), d.prefix+"/", d.prefix+"/b", d.prefix+"/none"))
	d.play("GET", "kv/"+key+d.some(4, "recurse", "keys", "raw", "separator=/", "consistent"), "")
}

func (d *differential) remove() {
	key := pick(d, d.key(), d.key(), d.prefix+"/b")
	d.play("DELETE", "kv/"+escaped(key)+d.some(4, "recurse", "cas="+d.at(key)), "")
}

func (d *differential) session() {
	switch d.IntN(6) {
	case 0, 1:
		body := map[string]any{}
		for name, of := range map[string]any{
			"LockDelay": pick[any](d, "0s", "60s", "1m", 0), "Behavior": pick(d, "release", "delete", "", "other"), "TTL": pick(d, "1h", "24h", "9s", "25h", "x", ""), "Name": "n",
		} {
			if d.IntN(2) == 0 {
				body[name] = of
			}
		}
		if body["LockDelay"] == nil {
			body["LockDelay"] = "60s"
		}
		text, err := json.Marshal(body)
		require.NoError(d.t, err)
		before := len(d.sides[0].real)
		d.play("PUT", "session/create", string(text))
		if len(d.sides[0].real) > before {
			d.sessions++
		}
	case 2:
		d.play("PUT", "session/destroy/"+cmp.Or(d.of(), "none"), "")
	case 3:
		d.play("PUT", "session/renew/"+cmp.Or(d.of(), "none"), "")
	case 4:
		d.play("GET", "session/info/"+cmp.Or(d.of(), "none"), "")
	default:
		d.play("GET", pick(d, "session/list", "session/node/<n>", "session/node/none"), "")
	}
}

func (d *differential) txn() {
	var ops []any
	changes := []string{"set", "cas", "lock"}
	if d.IntN(2) == 0 && d.differs("a key that one transaction deletes and writes again keeps its `CreateIndex`") {
		changes = []string{"delete", "delete-tree", "delete-cas"}
	}
	for range d.IntN(5) {
		verb := pick(d, append(changes, "unlock", "get", "get-or-empty", "get-tree", "check-index", "check-session", "check-not-exists", "none")...)
		key := d.key()
		op := map[string]any{"Verb": verb, "Key": key}
		if d.IntN(3) > 0 {
			op["Session"] = d.of()
		}
		if d.IntN(3) > 0 {
			op["Value"] = pick(d, "eA==", "")
		}
		if d.IntN(3) == 0 {
			op["Flags"] = d.IntN(9)
		}
		if d.IntN(2) == 0 {
			op["Index"] = d.at(key)
		}
		if verb == "get-or-empty" && d.differs("`get-or-empty` of an absent key is empty, where Consul repeats the operation") {
			op = map[string]any{"Verb": verb, "Key": op["Key"]}
		}
		ops = append(ops, map[string]any{"KV": op})
	}
	text, err := json.Marshal(ops)
	require.NoError(d.t, err)
	body := regexp.MustCompile(`"Index":"([^"]*)"`).ReplaceAllString(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(text)), `"Index":$1`)
	d.play("PUT", "txn", body)
}

func (d *differential) node() string { return d.prefix + pick(d, "-n1", "-n2", "-n3") }

// service is one of a few ids of a service, with its name.
func (d *differential) service() (id, name string) {
	if n := d.IntN(3); d.differs("the checks of an outside service that gets another name go with it") {
		id, name = fmt.Sprint("s", n), d.prefix+[]string{"-web", "-db", "-web"}[n]
	}
	return id, name
}

func (d *differential) check() map[string]any {
	c := map[string]any{"CheckID": pick(d, "c1", "c2", "c3"), "Name": pick(d, "name", "")}
	if d.IntN(2) == 0 {
		c["ServiceID"], _ = d.service()
	}
	for name, of := range map[string]any{
		"Status": pick(d, "passing", "warning", "critical"), "Notes": "notes", "Output": "output", "Node": d.node(), "Type": "tcp",
		"Definition": map[string]any{"HTTP": "http://127.0.0.1", "Interval": "10s"},
	} {
		if d.IntN(3) == 0 {
			c[name] = of
		}
	}
	return c
}

func (d *differential) register() {
	r := map[string]any{"Node": d.node(), "Address": pick(d, "10.0.0.1", "10.0.0.2", "host.example")}
	for name, of := range map[string]any{
		"NodeMeta": map[string]string{"external-node": "true"}, "TaggedAddresses": map[string]string{"lan": "10.0.0.1"}, "SkipNodeUpdate": true, "Datacenter": "dc1",
		"Check": d.check(), "Checks": []any{d.check()},
	} {
		if d.IntN(3) == 0 {
			r[name] = of
		}
	}
	if d.IntN(2) == 0 {
		id, name := d.service()
		s := map[string]any{"ID": id, "Service": name}
		for name, of := range map[string]any{
			"Tags": []string{"z", "a"}, "Port": d.IntN(3), "Address": "10.1.1.1", "Meta": map[string]string{"m": "1"}, "EnableTagOverride": true,
			"Weights": map[string]int{"Passing": 2, "Warning": 1}, "TaggedAddresses": map[string]any{"wan": map[string]any{"Address": "192.0.2.1", "Port": 1}},
		} {
			if d.IntN(3) == 0 {
				s[name] = of
			}
		}
		r["Service"] = s
	}
	text, err := json.Marshal(r)
	require.NoError(d.t, err)
	d.play("PUT", "catalog/register", string(text))
}

func (d *differential) deregister() {
	r := map[string]any{"Node": d.node()}
	switch d.IntN(4) {
	case 0:
		r["ServiceID"], _ = d.service()
	case 1:
		r["CheckID"] = pick(d, "c1", "c2", "c3")
	}
	text, err := json.Marshal(r)
	require.NoError(d.t, err)
	d.play("PUT", "catalog/deregister", string(text))
}

func (d *differential) catalog() {
	_, name := d.service()
	of := d.some(5, "passing", "tag=a", "node-meta=external-node:true")
	d.play("GET", pick(d,
		"catalog/service/"+name, "catalog/node/"+d.node(), "catalog/node-services/"+d.node(), "health/service/"+name+of, "health/node/"+d.node(), "health/checks/"+name,
	), "")
}
