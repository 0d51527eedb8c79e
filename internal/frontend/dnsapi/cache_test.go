package dnsapi

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/instance"
)

// TestCache compares a responder that has answered before with one that never has: what an answer says,
// but for its order, depends on the question and the catalog alone.
func TestCache(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newFixture(t)
		pool := shop()
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "step") {
			case 0:
				b.catalog.set(rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 0, len(pool), rapid.ID).Draw(rt, "instances")...)
			case 1:
				b.catalog.contact.Stale = !b.catalog.contact.Stale
			default:
				name := rapid.SampledFrom([]string{
					"web.service.consul.", "WEB.service.consul.", "web.service.blackhole.", "canary.web.service.consul.", "db.service.consul.",
					"_web._tcp.consul.", "mixed.service.consul.", "web.service.us-east-1a.consul.", "twice.service.consul.", "cli.service.consul.",
				}).Draw(rt, "name")
				m := question(name, rapid.SampledFrom([]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT}).Draw(rt, "type"), 1232)
				fresh := newResponder(b.server)
				got, want := b.udp(m), (&fixture{t: t, server: b.server, r: fresh}).udp(m)
				require.Equal(rt, want.MsgHdr, got.MsgHdr)
				for _, pair := range [][2][]dns.RR{{want.Ns, got.Ns}, {want.Answer, got.Answer}, {want.Extra, got.Extra}} {
					if strings.HasPrefix(name, "db") && len(pair[0]) == 1 {
						continue // one alias of several
					}
					require.Equal(rt, lines(pair[0]), lines(pair[1]))
				}
			}
		}
	})
}

// TestCacheIsBounded: neither existing nor missing names fill memory.
func TestCacheIsBounded(t *testing.T) {
	b := newFixture(t)
	var list []*instance.Instance
	for k := range 3 * maxCached {
		list = append(list, at(fmt.Sprintf("s%d", k), "i", "10.0.0.1", 80))
	}
	for k := range list {
		b.udp(question(fmt.Sprintf("s%d.service.consul.", k), dns.TypeA, 0))
	}
	require.Empty(t, b.r.cache.young, "absences are not kept")
	for _, i := range list {
		b.catalog.set(i)
		require.Len(t, b.udp(question(i.Service+".service.consul.", dns.TypeA, 0)).Answer, 1)
	}
	require.LessOrEqual(t, len(b.r.cache.young), maxCached)
	require.LessOrEqual(t, len(b.r.cache.old), maxCached)

	c := newRecent[int](10)
	for k := range 1000 {
		c.put(fmt.Append(nil, k), k)
		if v, ok := c.get([]byte("7")); ok {
			require.Equal(t, 7, v)
		}
		require.LessOrEqual(t, len(c.young)+len(c.old), 20)
	}
	_, ok := c.get([]byte("7"))
	require.True(t, ok, "asked for all the time")
	_, ok = c.get([]byte("9"))
	require.False(t, ok)
}

// drawn counts the first records of n draws, and checks that each draw is a permutation.
func drawn(t *testing.T, o *order, records []record, uniform bool, n int) []int {
	first := make([]int, len(records))
	for range n {
		o.reset(records, uniform)
		seen := make([]bool, len(records))
		for k := range records {
			i, ok := o.next()
			require.True(t, ok)
			require.False(t, seen[i])
			seen[i] = true
			if k == 0 {
				first[i]++
			}
		}
		_, ok := o.next()
		require.False(t, ok)
	}
	return first
}

func TestOrder(t *testing.T) {
	o := &order{rand: rand.New(rand.NewPCG(1, 2))}
	const n = 20_000
	same := make([]record, 8)
	for i, count := range drawn(t, o, same, true, n) {
		require.InDelta(t, n/8, count, 5*50, "record %d", i) // 5 standard deviations
	}
	weights := []int{1, 2, 3, 4, 10, 30, 50}
	weighted := make([]record, len(weights))
	for i, w := range weights {
		weighted[i].weight = w
	}
	for i, count := range drawn(t, o, weighted, false, n) {
		require.InDelta(t, n*weights[i]/100, count, 5*71, "weight %d", weights[i])
	}
	drawn(t, o, same[:0], true, 1)
	drawn(t, o, same[:1], false, 1)
}

// TestOrderOfAnswers checks the order on the wire.
func TestOrderOfAnswers(t *testing.T) {
	b := newFixture(t)
	list := crowd(4)
	list[2].Spec.Weight = 97
	b.catalog.set(list...)
	for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
		heavy := 0
		for range 1000 {
			first := b.udp(question("web.service.consul.", qtype, 1232)).Answer[0].String()
			if strings.Contains(first, "10.1.0.3") || strings.Contains(first, "0a010003") {
				heavy++
			}
		}
		require.InDelta(t, 970, heavy, 27)
	}
}
