package keeper

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/query"
)

// The default question about the whole world, with the window that the asking peer adds, moves little more than its results: no claim
// orders anything, so keepers send their first ones alone. The answer is exactly what all records together give.
func TestDefaultQuestionsAreCheap(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		recs := world(t, 3000, atCities(t))
		w := newLightCluster(t, 40)
		defer w.close()
		for from := 0; from < len(recs); from += 750 {
			for _, o := range w.nodes[0].Store(t.Context(), recs[from:from+750]) {
				require.NoError(t, o.Err)
			}
		}
		time.Sleep(10 * time.Minute)
		size := 0
		for _, r := range recs {
			size += len(r.Envelope())
		}
		sent := regexp.MustCompile(`^asked .* about .*: (\d+) of `)
		for _, sort := range []query.Sort{query.SortScore, query.SortPrice, query.SortUptime, query.SortResponseTime} {
			plan := keepertest.Compile(t, query.Query{Sort: sort, Limit: 10, Claims: query.ClaimsCheck, Explain: true}).Window(5)
			found, err := w.nodes[7].Query(t.Context(), plan)
			require.NoError(t, err)
			require.True(t, found.Complete, "%s: %s", sort, found.Reason)
			require.Equal(t, best(plan, recs), keepertest.NamesOf(found.Records)[:plan.Limit()])
			answers, envelopes := 0, 0
			for _, note := range found.Notes {
				if m := sent.FindStringSubmatch(note); m != nil {
					n, err := strconv.Atoi(m[1])
					require.NoError(t, err)
					answers, envelopes = answers+1, envelopes+n
				}
			}
			t.Logf("10 by %s: %d answers, %d records, %.1f KB", sort, answers, envelopes, float64(envelopes*size)/float64(len(recs))/1000)
			require.NotZero(t, answers, strings.Join(found.Notes, "\n"))
			require.LessOrEqual(t, envelopes, 60, fmt.Sprint(sort))
			require.LessOrEqual(t, envelopes*size/len(recs), 25_000)
		}
	})
}
