package machine_test

import (
	"fmt"
	"testing"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// BenchmarkLockUnlock measures one cycle of an uncontended lock, alone and among other held locks.
func BenchmarkLockUnlock(b *testing.B) {
	for _, held := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			l := newLog()
			for i := range held {
				l.do(bob, lock(fmt.Sprintf("held-%d", i), l.lease(b, bob)))
			}
			id := l.lease(b, alice)
			take, give := coordtest.Command(alice, lock("locks/db", id)), coordtest.Command(alice, unlock("locks/db", id, 0))
			b.ReportAllocs()
			for b.Loop() {
				r, _ := l.apply(take)
				give.GetUnlock().FencingToken = r.Answer.GetLock().GetFencingToken()
				if r, _ = l.apply(give); r.Err != nil {
					b.Fatal(r.Err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
		})
	}
}

// BenchmarkHandOver measures one unlock with a grant from a long queue, and the loser's new claim.
func BenchmarkHandOver(b *testing.B) {
	l := newLog()
	ids := l.leases(b, 1000)
	tokens := make([]coord.Token, len(ids))
	for i, id := range ids {
		r, _ := l.must(b, lock("db", id))
		tokens[i] = r.Lock.Token
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := i % len(ids)
		if r, e := l.do(alice, unlock("db", ids[at], tokens[at])); r.Err != nil || len(e.Grants) != 1 {
			b.Fatal(r.Err)
		}
		r, _ := l.do(alice, lock("db", ids[at]))
		tokens[at] = r.Lock.Token
	}
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", size), func(b *testing.B) {
			l := newLog()
			ops := make([]*coordv1.Command, size)
			for i := range ops {
				ops[i] = coordtest.Command(alice, write(put(fmt.Sprintf("services/payment/%06d", i), "10.0.0.1:8080", 0)))
				l.send(ops[i])
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.apply(ops[i*7919%size])
			}
		})
	}
}

// BenchmarkWatch measures one put and its delivery to every watcher.
func BenchmarkWatch(b *testing.B) {
	for _, watchers := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			l := newLog()
			all := make([]coord.Watch, watchers)
			for i := range all {
				all[i] = coord.Watch{From: 1, Span: coord.Under("services/")}
			}
			change := coordtest.Command(alice, write(put("services/payment", "10.0.0.1:8080", 0)))
			b.ReportAllocs()
			for b.Loop() {
				l.apply(change)
				for i := range all {
					batch, err := l.Events(all[i])
					if err != nil || len(batch.Events) != 1 {
						b.Fatal(err)
					}
					all[i].From = batch.Next
				}
			}
			b.ReportMetric(float64(b.N*watchers)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	l := newLog()
	for i := range 100_000 {
		l.do(alice, write(put(fmt.Sprintf("services/payment/%06d", i), "10.0.0.1:8080", 0)))
	}
	b.Run("view", func(b *testing.B) {
		for b.Loop() {
			l.View()
		}
	})
	b.Run("hash", func(b *testing.B) {
		for b.Loop() {
			l.StateHash()
		}
	})
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(l.Snapshot())))
		for b.Loop() {
			l.Snapshot()
		}
	})
	b.Run("restore", func(b *testing.B) {
		snapshot := l.Snapshot()
		b.SetBytes(int64(len(snapshot)))
		for b.Loop() {
			if _, err := machine.Restore(snapshot); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	encoded, err := encode(coordtest.Once(7, 9, coordtest.Command(alice, lock("locks/db", 1234))))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(encoded); err != nil {
			b.Fatal(err)
		}
	}
}
