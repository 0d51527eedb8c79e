package oracle

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// Config describes a trial of a running network without offers.
type Config struct {
	Network   *network.Network
	Records   int // to begin with
	Questions int // half of them after a quarter of the records has changed
	Watches   int
	Seed      uint64
}

// Report counts what was asked and found.
type Report struct {
	Questions  int            `json:"questions"`
	Results    int            `json:"results"`
	Complete   int            `json:"complete"`
	Unsure     int            `json:"unsure"`     // complete answers that are not judged
	Incomplete map[string]int `json:"incomplete"` // answers that said so, by reason
	Watches    int            `json:"watches"`
	Events     int            `json:"events"`
	Wrong      []string       `json:"wrong"` // the first of them, told
	Mismatches int            `json:"mismatches"`
}

// Held reports whether nothing was wrong, and at most 1 % of the answers were not complete.
func (r *Report) Held() bool { return r.Mismatches == 0 && 100*(r.Questions-r.Complete) <= r.Questions }

// Show tells people what came out.
func (r *Report) Show(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d questions with %d results, %d answers complete, %d of them not judged at an edge, %d states of watches after %d events: %d mismatches\n",
		r.Questions, r.Results, r.Complete, r.Unsure, r.Watches, r.Events, r.Mismatches)
	for _, reason := range slices.Sorted(maps.Keys(r.Incomplete)) {
		_, err = fmt.Fprintf(w, "not complete, %d times: %s\n", r.Incomplete[reason], reason)
	}
	for _, wrong := range r.Wrong {
		_, err = fmt.Fprintln(w, wrong)
	}
	return fault.As("oracle.Show", fault.Unavailable, err)
}

// settling limits the time from a change until every watch shows it. Other cells than a provider's own one hear of a price within a minute.
const settling = 3 * time.Minute

// trial is one run. Many goroutines use it.
type trial struct {
	Config
	client    *http.Client
	providers []string
	offers    []Record // as their providers' peers show them

	mu     sync.Mutex // guards report
	report Report
}

// Play registers random offers, puts random questions, follows random watches, changes offers, and puts further questions. It compares
// each complete answer, each page of the stable order, and the state of each watch with a loop over all offers. It fails if the network does.
func Play(ctx context.Context, c Config) (Report, error) {
	t := &trial{Config: c, client: &http.Client{Timeout: time.Minute}, report: Report{Incomplete: make(map[string]int)}}
	defer t.client.CloseIdleConnections()
	for _, p := range c.Network.Peers {
		t.providers = append(t.providers, p.ID.String())
	}
	d := draws{rand.New(rand.NewPCG(c.Seed, 0))}
	if err := t.change(ctx, d, c.Records, 0); err != nil {
		return t.report, err
	}
	if err := t.settle(ctx); err != nil {
		return t.report, err
	}
	watches, end := t.watch(ctx, d)
	defer end()
	if err := t.agree(ctx, watches); err != nil {
		return t.report, err
	}
	if err := t.ask(ctx, d, c.Questions/2); err != nil {
		return t.report, err
	}
	if err := t.change(ctx, d, c.Records/8, c.Records/4); err != nil {
		return t.report, err
	}
	if err := t.settle(ctx); err != nil {
		return t.report, err
	}
	if err := t.agree(ctx, watches); err != nil {
		return t.report, err
	}
	return t.report, t.ask(ctx, d, c.Questions-c.Questions/2)
}

// change registers new offers, and withdraws one of three and replaces two of three of some others.
func (t *trial) change(ctx context.Context, d draws, added, changed int) error {
	const path = "/v1/discovery/records"
	before := slices.Clone(t.offers)
	d.Shuffle(len(before), func(i, j int) { before[i], before[j] = before[j], before[i] })
	for n := range added {
		if _, err := t.call(ctx, n, http.MethodPost, path, d.offer(fmt.Sprint("s", len(t.offers)+n)).body()); err != nil {
			return err
		}
	}
	for n, r := range before[:changed] {
		at, method, body := slices.Index(t.providers, text(r["provider_id"])), http.MethodDelete, []byte(nil)
		if n%3 > 0 {
			method, body = http.MethodPut, d.offer(text(r["id"])).body()
		}
		if _, err := t.call(ctx, at, method, path+"/"+text(r["id"]), body); err != nil {
			return err
		}
	}
	t.offers = nil
	for n := range t.providers {
		b, err := t.call(ctx, n, http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		var own struct{ Records []Record }
		if err := read(b, &own); err != nil {
			return err
		}
		t.offers = append(t.offers, own.Records...)
	}
	return nil
}

func (r Record) body() []byte { return Question(r).body() }

// settle waits until all keepers have all changes.
func (t *trial) settle(ctx context.Context) error {
	return t.Network.AwaitSpread(ctx, len(t.offers))
}

// call calls peer n modulo their number.
func (t *trial) call(ctx context.Context, n int, method, path string, body []byte) ([]byte, error) {
	peer := t.Network.Peers[n%len(t.Network.Peers)]
	req, err := http.NewRequestWithContext(ctx, method, "http://"+peer.HTTP+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fault.New("oracle.call", fault.Conflict, "%s %s at %s with %s: %s", method, path, peer.Name, body, b)
	}
	return b, err
}

// ask puts questions to peers in turn, some at a time.
func (t *trial) ask(ctx context.Context, d draws, n int) error {
	const width = 4
	questions := make([]Question, n)
	for i := range questions {
		questions[i] = d.question(t.providers)
	}
	errs := make([]error, width)
	var all sync.WaitGroup
	for worker := range width {
		all.Go(func() {
			for i := worker; i < n && errs[worker] == nil; i += width {
				errs[worker] = t.question(ctx, i, questions[i])
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// question asks once, by the body or by the URL, and follows all pages of the stable order.
func (t *trial) question(ctx context.Context, n int, q Question) error {
	const path = "/v1/discovery/query"
	at := n / 2 // each peer gets both forms
	ask := func(at int, q Question) (a Answer, err error) {
		method, to, body := http.MethodPost, path, q.body()
		if n%2 == 1 {
			method, to, body = http.MethodGet, path+"?"+q.parameters().Encode(), nil
		}
		b, err := t.call(ctx, at, method, to, body)
		if err == nil {
			err = read(b, &a)
		}
		return a, err
	}
	a, err := ask(at, q)
	if err != nil {
		return err
	}
	unsure, wrong := Judge(q, t.offers, &a)
	switch {
	case !a.Complete:
	case wrong != nil:
	case q["sort"] == "random":
		again, err := ask(at+1, q)
		if err != nil {
			return err
		}
		if again.Complete && !slices.EqualFunc(a.Results, again.Results, sameResult) {
			wrong = fmt.Errorf("two peers have two orders of one seed")
		}
	case q["sort"] == "stable":
		q, whole := maps.Clone(q), a
		for page := a; page.Next != "" && page.Complete; {
			q["after"] = page.Next
			if page, err = ask(at, q); err != nil {
				return err
			}
			whole.Results, whole.Complete, whole.Reason = append(whole.Results, page.Results...), page.Complete, page.Reason
		}
		q["limit"] = float64(len(t.offers))
		a = whole
		unsure, wrong = Judge(q, t.offers, &whole)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Questions++
	t.report.Results += len(a.Results)
	switch {
	case !a.Complete:
		t.report.Incomplete[a.Reason]++
	case wrong != nil:
		t.report.Complete++
		t.report.mismatch("%s of %s, source %s: %v; %s", q.body(), t.Network.Peers[at%len(t.providers)].Name, a.Source, wrong, strings.Join(a.Notes, "; "))
	default:
		t.report.Complete++
		if unsure {
			t.report.Unsure++
		}
	}
	return nil
}

func sameResult(a, b struct{ Record Record }) bool { return a.Record.name() == b.Record.name() }

func (r *Report) mismatch(format string, args ...any) {
	const told = 10
	if r.Mismatches++; r.Mismatches <= told {
		r.Wrong = append(r.Wrong, fmt.Sprintf(format, args...))
	}
}

// watch follows random questions at the peers in turn. Callers must call end.
func (t *trial) watch(ctx context.Context, d draws) (all []*view, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var streams sync.WaitGroup
	for n := range t.Watches {
		v := &view{question: d.filter(t.providers), peer: t.Network.Peers[n%len(t.Network.Peers)]}
		if v.question["max_price"] != nil {
			v.question["price_unit"] = "per-hour"
		}
		all = append(all, v)
		streams.Go(func() { v.follow(ctx) })
	}
	return all, func() {
		cancel()
		streams.Wait()
	}
}

// agree waits until the watches show all matches. Those that say that they are not complete need not, and those at an edge are left out.
func (t *trial) agree(ctx context.Context, watches []*view) error {
	for _, v := range watches {
		want, unsure := make(map[string]Record), false
		for _, r := range t.offers {
			match, edge := v.question.Matches(r)
			if unsure = unsure || edge; match {
				want[r.name()] = r
			}
		}
		if unsure {
			continue
		}
		t.report.Watches++
		err := await.Until(ctx, settling, "a watch shows all matches", func(context.Context) error { return v.compare(want) })
		t.report.Events += v.counted()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && v.said() != "":
			t.report.Incomplete["watch: "+v.said()]++
		case err != nil:
			t.report.mismatch("the watch of %s at %s: %v", v.question.body(), v.peer.Name, err)
		}
	}
	return nil
}
