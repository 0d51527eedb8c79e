package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
	"github.com/blackhole/blackhole/testnet/network"
)

// settles is the longest time until all that a visitor sees is measured, on a busy machine.
const settles = 2 * time.Minute

// window looks at what a visitor gets after the tour, at the address of the page that was printed before it.
func window(t *testing.T, printed string, peers, offers int) {
	t.Helper()
	pages := regexp.MustCompile(`page of peer-1: (http://[0-9.:]+)/ui/`).FindAllStringSubmatch(printed, -1)
	require.Len(t, pages, 2, "the first line and the invitation: %s", printed)
	require.Equal(t, pages[0], pages[1])
	at := pages[0][1]

	for _, what := range []string{"requirements", "locks", "leases"} {
		var left map[string]json.RawMessage
		require.NoError(t, fetch(t.Context(), at+"/v1/coordination/"+what, &left))
		require.Equal(t, "[]", string(left[what]), "%s of the tour are left", what)
	}
	var keys struct{ KVs []struct{ Key []byte } }
	require.NoError(t, fetch(t.Context(), at+"/v1/coordination/keys?prefix=true", &keys))
	for _, kv := range keys.KVs {
		require.Regexp(t, "^(blackhole/trade|directory/default/"+network.Demo+")/", string(kv.Key))
	}
	require.NoError(t, await.Until(t.Context(), settles, "all is well", func(ctx context.Context) error { return well(ctx, at, peers) }))
	require.NoError(t, await.Until(t.Context(), settles, "offers answer", func(ctx context.Context) error { return sold(ctx, at, offers) }))
	drawn(t, at)
}

// fetch reads a document of a peer.
func fetch(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s %w", url, resp.Status, text, err)
	}
	return json.Unmarshal(text, into)
}

// well requires a healthy peer, and an instance of the demo at each peer that is UP.
func well(ctx context.Context, at string, peers int) error {
	var health struct {
		Status     string
		Conditions []any
	}
	if err := fetch(ctx, at+"/v1/health", &health); err != nil || health.Status != "healthy" || len(health.Conditions) > 0 {
		return fmt.Errorf("%+v %w", health, err)
	}
	var demo struct{ Instances []struct{ ID string } } // those that are UP
	if err := fetch(ctx, at+"/v1/services/"+network.Demo+"/instances", &demo); err != nil || len(demo.Instances) != peers {
		return fmt.Errorf("%+v %w", demo, err)
	}
	return nil
}

// sold requires that most offers of each type answer, at about the prices with which they began.
func sold(ctx context.Context, at string, offers int) error {
	all, err := cities.All()
	if err != nil {
		return err
	}
	made, err := market.Offers(all, offers, seed)
	if err != nil {
		return err
	}
	began := map[string][]float64{}
	for _, o := range made {
		began[o.Metadata.Type] = append(began[o.Metadata.Type], *o.Pricing.BasePrice)
	}
	for kind, prices := range began {
		var answer struct {
			Results []struct {
				Record   struct{ Pricing struct{ Base_price float64 } } //nolint:revive // the name of the document
				Endpoint struct{ State string }
			}
		}
		if err := fetch(ctx, at+"/v1/discovery/query?limit=100&types="+kind, &answer); err != nil {
			return err
		}
		var now []float64
		answering := 0
		for _, r := range answer.Results {
			now = append(now, r.Record.Pricing.Base_price)
			if r.Endpoint.State == "answers" {
				answering++
			}
		}
		if len(now) == 0 || 2*answering <= len(now) {
			return fmt.Errorf("%d of %d %s offers answer", answering, len(now), kind)
		}
		if was, is := middle(prices), middle(now); is < was/3 || is > was*3 {
			return await.Never(fmt.Errorf("the median price of %s was %v and is %v", kind, was, is))
		}
	}
	return nil
}

func middle(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// drawn opens each view in a browser, where there is one: nothing speaks of the tour, and no badge is red.
func drawn(t *testing.T, at string) {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Log("chromium is not installed: .ci/run installs it")
		return
	}
	for view, shown := range map[string]string{
		"overview": "All well.", "timeline": "this peer started", "services": network.Demo, "requirements": "", "locks": "", "keys": "", "group": "peer-1",
		"peers": "peer-1", "map": "offers", "search?type=compute&near=Berlin&radius_km=20000": "USDC",
	} {
		c := exec.CommandContext(t.Context(), program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
			"--user-data-dir="+t.TempDir(), "--virtual-time-budget=15000", "--dump-dom", at+"/ui/#/"+view)
		page, err := c.Output()
		require.NoError(t, err)
		_, body, _ := strings.Cut(string(page), "<main")
		require.Contains(t, body, shown, view)
		require.NotContains(t, body, "tour-", view)
		require.NotRegexp(t, `class="[^"]*\b(bad|silent)\b`, body, view)
	}
}
