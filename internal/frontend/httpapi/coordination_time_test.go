package httpapi

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
)

// inTime runs a test against a served coordination plane in virtual time.
func inTime(t *testing.T, test func(t *testing.T, p coordFixture), edits ...func(*coordConfig)) {
	synctest.Test(t, func(t *testing.T) {
		conns := newPipes()
		p := coordFixture{
			Solo: coordtest.New(coordtest.Config{
				Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
			}),
			client: &http.Client{Transport: &http.Transport{DialContext: conns.dial}},
			base:   "http://localhost/v1/coordination",
		}
		p.serve(t, conns, edits...)
		test(t, p)
	})
}

// TestLongWaits: longer than a request may take to arrive, longer than an answer may take to
// write, with and without a bound.
func TestLongWaits(t *testing.T) {
	inTime(t, func(t *testing.T, p coordFixture) {
		day := `{"ttl":86400}`
		one := p.lease(t, day)
		token := p.take(t, "db", one)
		began := time.Now()
		got := p.ok(t, 200, "POST /locks/db", `{"lease_id":"`+p.lease(t, day)+`","timeout_ms":1800000}`)
		require.Equal(t, false, got["acquired"])
		require.Equal(t, 30*time.Minute, time.Since(began))

		waits := p.later(t, "POST /locks/db", `{"lease_id":"`+p.lease(t, day)+`","timeout_ms":-1}`)
		time.Sleep(3 * time.Hour)
		p.ok(t, 200, "DELETE /locks/db?lease_id="+one+"&fencing_token="+token, "")
		answer := <-waits
		require.Equal(t, []any{200, true}, []any{answer.code, answer.json["acquired"]})
	})
}

// TestNoHangs: a request to a silent group ends with an error that names the reason.
func TestNoHangs(t *testing.T) {
	var solo *coordtest.Solo
	inTime(t, func(t *testing.T, p coordFixture) {
		began := time.Now()
		p.refused(t, refusal{504, "timeout", ""}, "POST /leases", halfMinute)
		require.Equal(t, answerWithin, time.Since(began))
		p.Halt("no leader")
		solo = p.Solo
		began = time.Now()
		p.refused(t, refusal{503, "no_quorum", ""}, "POST /leases", halfMinute)
		require.Equal(t, answerWithin, time.Since(began))
		began = time.Now()
		p.refused(t, refusal{503, "no_quorum", ""}, "POST /locks/db", `{"lease_id":"1","timeout_ms":5000}`)
		require.Equal(t, 5*time.Second+answerWithin, time.Since(began))
	}, func(c *coordConfig) { c.Calls.Coordination.Service = hanging{solo} })
}

// TestKeyWatchLivesLong, with a sign of life every now and then.
func TestKeyWatchLivesLong(t *testing.T) {
	inTime(t, func(t *testing.T, p coordFixture) {
		w := p.openStream(t, "?key=a")
		w.expectKeys("created", "1")
		for began := time.Now(); time.Since(began) < 10*time.Minute; {
			before := time.Now()
			w.expectKeys("progress", "1")
			require.LessOrEqual(t, time.Since(before), readRequest/2)
		}
		p.put(t, "a", "")
		w.expectKeys("events", "2", "a")
	})
}
