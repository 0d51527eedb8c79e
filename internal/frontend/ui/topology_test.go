package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakePeer answers the page with states that a test chooses: those of networks that are large or ill.
type fakePeer struct {
	mu      sync.Mutex
	answers map[string]any    // by path; a function is called for each
	streams map[string]string // first events, by path
}

// id is the id of peer n; peer 0 is the one that answers.
func id(n int) string { return fmt.Sprintf("12D3KooW%044d", n) }

type object = map[string]any

// refusal is an answer that is an error.
type refusal struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

// fakeOf is a peer that knows n others, the first two of which are voters as itself is. Peer 1 leads.
func fakeOf(t *testing.T, n int) (f *fakePeer, page string) {
	var peers, voters []object
	for i := 1; i <= n; i++ {
		peers = append(peers, object{"id": id(i), "name": fmt.Sprint("peer-", i), "addrs": []string{"/ip4/10.0.0.1/tcp/1"}})
	}
	for i := range min(n+1, 3) {
		voters = append(voters, object{"peer_id": id(i), "name": fmt.Sprint("peer-", i), "active": true, "silent_ms": "0"})
	}
	f = &fakePeer{streams: map[string]string{
		"/v1/discovery/watch":  "event: progress\nid: end\ndata: {\"complete\":true}\n\n",
		"/v1/services/*/watch": "event: reset\nid: 1\ndata: {\"instances\":[{\"service\":\"web\",\"id\":\"web-1\",\"health\":\"UP\",\"peer\":\"" + id(1) + "\"}]}\n\n",
		"/v1/events":           "event: open\ndata: {\"planes\":[\"discovery\",\"agent\",\"coordination\"],\"role\":\"admin\",\"open\":true,\"fronts\":{\"grpc\":\"off\",\"dns\":\"off\"}}\n\nevent: history\nid: 1\ndata: {\"kind\":\"past\",\"notes\":[]}\n\n",
	}}
	f.answers = object{
		"/v1/status":              object{"peer_id": id(0), "name": "peer-0", "network": "dev", "peers": n, "records_kept": 0},
		"/v1/peers":               object{"peers": append([]object{}, peers...)},
		"/v1/health":              object{"status": "healthy"},
		"/v1/coordination/group":  object{"phase": "member", "term": "2", "leader": id(min(n, 1)), "voters": voters, "revision": "7", "failures_survived": 1},
		"/v1/coordination/locks":  object{"locks": []object{}},
		"/v1/trade/grants":        object{"held": []object{}, "given": []object{}, "stocks": []object{}},
		"/v1/discovery/query":     object{"total": 0, "results": []object{}},
		"/v1/metrics":             "blackhole_connections 3\nprocess_cpu_seconds_total 12\nprocess_start_time_seconds 1\n",
		"/v1/removed":             object{"removed": []object{}},
		"/v1/coordination/leases": object{"leases": []object{}},
	}
	mux := http.NewServeMux()
	mux.Handle(Prefix, Handler())
	mux.HandleFunc("/v1/", f.serve)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	return f, s.URL + Prefix
}

func (f *fakePeer) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	events, stream := f.streams[r.URL.Path]
	answer := f.answers[r.URL.Path]
	if next, ok := answer.(func() any); ok {
		answer = next()
	}
	text, err := json.Marshal(answer)
	f.mu.Unlock()
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(events)) // the viewer may leave
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	if no, ok := answer.(refusal); ok {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(no) // the viewer may leave
		return
	}
	if plain, ok := answer.(string); ok {
		_, _ = w.Write([]byte(plain)) // the viewer may leave
		return
	}
	if err != nil || answer == nil {
		http.Error(w, "{}", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the viewer may leave
}

// now changes answers.
func (f *fakePeer) now(answers object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.answers, answers)
}

func lockOf(name string, holder, token int) object {
	return object{"locks": []object{{"name": name, "waiting": []object{}, "holding": []object{{"key": name + "/x", "holder_id": "~" + id(holder) + "~uid:0", "fencing_token": fmt.Sprint(token), "age_ms": "10"}}}}}
}

func grantOf(provider, bytes int) object {
	return object{"given": []object{}, "stocks": []object{}, "held": []object{{"token": "5", "key": "/blackhole/services/tool/_/u/x/render", "provider_id": id(provider), "consumer_id": id(0),
		"state": "STATE_ACTIVE", "units": 1, "left_ms": "60000", "sent_bytes": fmt.Sprint(bytes), "received_bytes": "0"}}}
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// TestTopology: alone, with three and with sixty peers, the drawing is bounded, says what it leaves out, and marks who leads.
func TestTopology(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	for _, n := range []int{0, 2, 60} {
		_, page := fakeOf(t, n)
		b.visit(page + "#/overview")
		b.until(fmt.Sprintf("document.querySelectorAll('.topology .node').length === %d", min(n, 48)+1))
		b.until("document.querySelectorAll('.topology .leads').length === 2") // the leader, and the sign below
		b.until(fmt.Sprintf("document.querySelectorAll('.node.voter').length === %d", min(n, 2)))
		b.until(fmt.Sprintf("document.querySelector('.key').textContent.includes('%d more peers are not drawn') === %t", n-48, n > 48))
		b.until(fmt.Sprintf("document.querySelector('.topology svg').getAttribute('aria-label').includes('%d other peer%s: %d voter%s')", n, plural(n), min(n+1, 3), plural(min(n+1, 3))))
		for _, width := range []int{390, 1440} {
			b.size(width, 900)
			b.until(fmt.Sprintf("document.documentElement.scrollWidth <= %d", width))
			b.until(`[...document.querySelectorAll('.node')].every(e => { const p = document.querySelector('.topology svg').getBoundingClientRect(), q = e.querySelector('circle').getBoundingClientRect(); return q.left >= p.left && q.right <= p.right && q.top >= p.top && q.bottom <= p.bottom; })`)
			b.shoot(fmt.Sprintf("topology-%d-%d", n, width))
		}
		b.clean()
	}
}

// TestTopologyLives: a lock moves to its next holder as one mark, events fly from peer to peer, and bytes make a grant flow. A reader who
// wants no movement has none.
func TestTopologyLives(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	f, page := fakeOf(t, 4)
	f.now(object{"/v1/coordination/locks": lockOf("backups/nightly", 3, 7), "/v1/trade/grants": grantOf(4, 1000)})
	b.visit(page + "#/peers")
	b.until("document.querySelector('.lock text').textContent === 'nightly'")
	b.until("document.querySelector('.grant text').textContent === 'render'")
	const sparks = "(globalThis.flown = [], new MutationObserver(all => all.forEach(m => m.addedNodes.forEach(n => n.classList?.contains('spark') && flown.push(n.className.baseVal)))).observe(document.querySelector('.topology svg'), { subtree: true, childList: true }))"
	b.eval(sparks + ", globalThis.mark = document.querySelector('g.lock'), globalThis.place = mark.style.transform, true")
	bytes := 1000
	f.now(object{"/v1/coordination/locks": lockOf("backups/nightly", 4, 8), "/v1/trade/grants": func() any { bytes += 5_000_000; return grantOf(4, bytes) }})
	b.until("document.querySelector('g.lock') === mark && mark.style.transform !== place")
	b.until("flown.includes('spark lock')")
	b.until("document.querySelector('.grant.flows') && /render [\\d.]+ MB\\/s/.test(document.querySelector('.grant text').textContent)")
	b.until("document.querySelector('.key .last').textContent.includes('peer-1 → peer-4 lock backups/nightly to peer-4, token 8')")
	b.until("getComputedStyle(document.querySelector('.raft')).animationName === 'flow'")
	b.still()
	b.until("getComputedStyle(document.querySelector('.raft')).animationName === 'none'")
	b.until("getComputedStyle(document.querySelector('g.lock')).transitionDuration === '0s'")
	b.eval("document.querySelectorAll('.node')[0].dispatchEvent(new PointerEvent('pointerenter'))")
	b.text("voter, leads")
	b.text("1 instance of 1 service")
	b.eval("document.querySelectorAll('.node')[0].dispatchEvent(new PointerEvent('pointerleave'))")
	b.until("!document.querySelector('.topology .tip')")
	f.now(object{"/v1/coordination/group": object{"phase": "member", "term": "2", "leader": id(1), "revision": "8", "voters": []object{{"peer_id": id(0), "active": true}, {"peer_id": id(1), "active": true}, {"peer_id": id(2), "active": false, "silent_ms": "65000"}}, "failures_survived": 0}})
	b.until("document.querySelector('.node.silent .sub-name').textContent === 'silent for 65 s'")
	b.clean()
}

// TestAsked: a search shows which peers were asked, and how the question went there and back.
func TestAsked(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	f, page := fakeOf(t, 4)
	f.now(object{"/v1/discovery/query": object{"total": 0, "took_ms": 12.345, "complete": true, "results": []object{}, "notes": []string{
		"type compute", "asked " + id(2) + " about 3 cells: 2 records in 4ms", "asked " + id(3) + " about 3 cells: failed after 9ms: closed", "asked " + id(2) + " about 1 cells: none in 1ms", "asked this peer about 3 cells: none"}}})
	b.visit(page + "#/search?type=compute")
	b.press(".asked summary", "Asked 2 peers in 12 ms")
	b.text("asked peer-3 about 3 cells: failed after 9ms")
	b.until("document.querySelectorAll('.asked .node').length === 5")
	b.until("document.querySelector('.key .last').textContent.includes('peer-0 → peer-3 → peer-0')")
	f.now(object{"/v1/discovery/query": object{"total": 0, "took_ms": 0.3, "complete": true, "results": []object{}, "notes": []string{"this peer answers alone"}}})
	b.visit(page + "#/search?type=storage")
	b.text("Answered by this peer alone in 0.3 ms")
	b.clean()
}

// sentence is what a group without a leader says.
const sentence = "no leader in term 2: 2 of the voters peer-0, peer-1, peer-2 are needed"

// losesQuorum leaves the peer without a leader for three minutes, with a copy of the services from before and another trouble.
func (f *fakePeer) losesQuorum() {
	silent := []object{{"peer_id": id(0), "name": "peer-0", "active": false, "silent_ms": "0"}, {"peer_id": id(1), "name": "peer-1", "active": false, "silent_ms": "0"}, {"peer_id": id(2), "name": "peer-2", "active": false, "silent_ms": "0"}}
	f.now(object{
		"/v1/peers":              object{"peers": []object{{"id": id(1), "name": "peer-1"}, {"id": id(3), "name": "peer-3"}}},
		"/v1/coordination/group": object{"phase": "member", "term": "2", "leader": "", "missing": sentence, "voters": silent, "revision": "7"},
		"/v1/health": object{"status": "degraded", "reason": "locks fail: " + sentence, "conditions": []object{
			{"name": "no_quorum", "message": "locks fail: " + sentence, "since": time.Now().Add(-3 * time.Minute)}, {"name": "isolated", "message": "past", "what": "past", "state": "over"},
			{"name": "space_low", "message": "x", "what": "little room", "effect": "puts fail soon", "remedy": "delete keys: blackholed kv del", "state": "coming", "since": time.Now().Add(-5 * time.Hour)}}},
	})
	f.streams["/v1/services/*/watch"] += "event: contact\ndata: {\"stale\":true,\"reason\":\"lost\",\"age_seconds\":240}\n\n"
}

// TestNoQuorum: without a leader one sentence says so once, and since when. Nobody is red whom this peer hears, itself least of all, and a copy says
// its age.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	f, page := fakeOf(t, 3)
	f.losesQuorum()
	b.visit(page + "#/overview")
	b.text(sentence)
	b.text("for 3 min")
	b.text("little room: puts fail soon for 5 h. What helps: delete keys: blackholed kv del")
	require.Equal(t, false, b.eval("document.body.innerText.includes('past')"))
	require.Equal(t, 1.0, b.eval("document.body.innerText.split('2 of the voters').length - 1"))
	b.until("document.querySelector('.verdict.bad') && document.querySelector('.state .badge.bad')")
	b.text("all UP, as of 4 min ago")
	b.until("document.querySelectorAll('.node.silent').length === 1 && document.querySelector('.node.silent .name').textContent === 'peer-2'")
	b.shoot("no-quorum")
	b.visit(page + "#/group")
	b.text("no contact")
	require.Equal(t, 1.0, b.eval("document.body.innerText.split('2 of the voters').length - 1"))
	b.until("[...document.querySelectorAll('tbody .badge')].map(e => e.textContent).join() === 'this peer,connected,no contact'")
	b.visit(page + "#/services")
	b.text("This is a copy, 4 min old")
	b.clean()
	no := refusal{"no_quorum", "no_quorum: " + sentence}
	f.now(object{"/v1/coordination/locks": no, "/v1/coordination/leases": no})
	b.visit(page + "#/locks")
	b.text("The group does not answer, as the top of the page says")
	require.Equal(t, 1.0, b.eval("document.body.innerText.split('2 of the voters').length - 1"))
}

// TestHour: the hour that a peer remembers is drawn when the page is opened: who led, what was wrong, what happened.
func TestHour(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	f, page := fakeOf(t, 3)
	var notes []object
	at := func(minutes int, kind, subject, text string) {
		notes = append(notes, object{"at": time.Now().Add(-time.Duration(minutes) * time.Minute), "kind": kind, "subject": subject, "text": text})
	}
	at(50, "peer", id(0), "this peer started: it remembers nothing before")
	at(49, "leader", id(1), "peer-1 leads the group in term 1")
	at(30, "quorum", "no_quorum", "the quorum is lost: peer-1 is silent")
	at(25, "quorum", "no_quorum", "the quorum is back after 5m0s")
	at(25, "leader", id(2), "peer-2 leads: peer-1 is silent")
	at(10, "condition", "no_reserve", "no_reserve began: 2 of 3 voters answer")
	at(9, "lock", "a", "lock a is lost: the lease of its holder expired")
	at(9, "grant", "4", "1 unit of x granted to y")
	at(2, "grant", "5", "1 unit of x granted to y")
	past, err := json.Marshal(object{"kind": "past", "notes": notes})
	require.NoError(t, err)
	f.streams["/v1/events"] = strings.Replace(f.streams["/v1/events"], `{"kind":"past","notes":[]}`, string(past), 1)
	b.visit(page + "#/figures")
	b.text("this peer started 50 min ago")
	b.until("document.querySelector('.hour svg').getAttribute('aria-label') === 'The last hour: 2 leaders, 2 disturbances, 1 locks lost, 2 grants'")
	b.until("[...document.querySelectorAll('.hour .in')].map(e => e.textContent).join() === 'peer-1,peer-2'")
	width := func(selector string) float64 {
		return b.eval("Number(document.querySelector('" + selector + "').getAttribute('width'))").(float64)
	}
	const minute = 850.0 / 60
	require.InDelta(t, 5*minute, width(".hour .band.bad"), minute/4)   // the lost quorum
	require.InDelta(t, 10*minute, width(".hour .band.wait"), minute/4) // what lasts
	require.InDelta(t, 19*minute, width(".hour .band.l0"), minute/4)
	require.InDelta(t, 10*minute, width(".hour .unknown"), minute/4) // before the start
	require.Equal(t, 3.0, b.eval("document.querySelectorAll('.hour .band[width=\"12\"]').length"))
	b.shoot("hour")
	b.size(390, 800)
	b.until("document.querySelector('.hour .word').getBoundingClientRect().height > 9") // it stays readable
	b.until("document.documentElement.scrollWidth <= 390")
	b.shoot("hour-narrow")
}
