package httpapi

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/instance"
)

// tallied is what one viewer of the benchmark saw.
type tallied struct {
	changes, resets int
	tail            [2]string // the last two events
}

// look reads a stream of events until the instance with the id last changes. The first reset is the state.
func look(b *testing.B, addr, last string, seen *tallied, ready *sync.WaitGroup) {
	r, err := http.NewRequestWithContext(b.Context(), "GET", "http://"+addr+"/v1/events?topics=services", nil)
	if err != nil {
		b.Error(err)
		return
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		b.Error(err)
		return
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 64<<20)
	end := []byte(`"id":"` + last + `"`)
	for lines.Scan() {
		text := lines.Bytes()
		if bytes.HasPrefix(text, []byte(`data: {"kind":"reset"`)) {
			if seen.resets++; seen.resets == 1 {
				ready.Done()
			}
		}
		if bytes.HasPrefix(text, []byte("data: ")) {
			seen.tail = [2]string{seen.tail[1], string(text)}
		}
		seen.changes += bytes.Count(text, []byte(`"type":"`))
		if bytes.Contains(text, end) {
			return
		}
	}
	b.Error("the stream ended early", lines.Err())
}

// BenchmarkViewers changes 10,000 instances a second, in 100 revisions, under 100 viewers of /v1/events. Each viewer
// ends with the last state of each instance: from its changes, merged while it was slow, or from a reset.
func BenchmarkViewers(b *testing.B) {
	const viewers, revisions, each = 100, 100, 100
	c, addr := serveCatalog(b, each)
	seen := make([]tallied, viewers)
	var ready, done sync.WaitGroup
	ready.Add(viewers)
	for i := range seen {
		done.Go(func() { look(b, addr, "last", &seen[i], &ready) })
	}
	ready.Wait()
	rev := uint64(2)
	pace := time.NewTicker(time.Second / revisions)
	defer pace.Stop()
	b.ResetTimer()
	began := time.Now()
	for b.Loop() { // a second of changes
		for range revisions {
			rev++
			require.NoError(b, c.Apply(rev, changesOf(each, rev)))
			<-pace.C
		}
	}
	sent := time.Now()
	require.NoError(b, c.Apply(rev+1, []instance.Change{{Key: paymentOf("last"), Instance: &instance.Instance{Key: paymentOf("last"), Spec: instance.Spec{Host: "10.0.0.1", Port: 1}, Status: instance.StatusUp}}}))
	done.Wait()
	late := time.Since(sent)
	changes, resets := 0, 0
	for _, v := range seen {
		changes, resets = changes+v.changes, resets+v.resets-1
		final := fmt.Sprintf(`"revision":%d}`, rev)
		whole := strings.Count(v.tail[0]+v.tail[1], final) == each || strings.Contains(v.tail[0]+v.tail[1], `{"kind":"reset"`)
		require.True(b, whole, "the last state of an instance is missing")
	}
	b.ReportMetric(float64(changes)/time.Since(began).Seconds(), "events/s")
	b.ReportMetric(float64(resets), "resets")
	b.ReportMetric(late.Seconds(), "s-behind")
}

func paymentOf(id string) instance.Key {
	return instance.Key{Namespace: "default", Service: "payment", ID: id}
}

func changesOf(n int, rev uint64) []instance.Change {
	list := make([]instance.Change, n)
	for i := range list {
		key := paymentOf(fmt.Sprintf("payment-%04d", i))
		list[i] = instance.Change{Key: key, Instance: &instance.Instance{
			Key:  key,
			Spec: instance.Spec{Host: "10.0.0.1", Port: 8080, Version: "2.1.0", Zone: "us-east-1a", Weight: 1 + int(rev%100)}, Status: instance.StatusUp,
		}}
	}
	return list
}
